//! Starts a program that no dynamic loader starts. A process of this binary waits until it is
//! traced, and then executes the program, so that the agent is inside before the program's first
//! instruction.

use super::Invocation;
use super::injector::Injector;
use crate::args::LaunchArguments;
use crate::failure::{EXIT_REFUSED, Failure};
use crate::machine;
use legato_pager::uffd::Peer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

/// Written when the program may be executed.
const GO: [u8; 1] = [1];

/// The waiting process: `legato launch`.
pub(crate) fn run(arguments: &LaunchArguments) -> Result<u8, Failure> {
    let gone = |error| Failure::system("legato run is gone", error);
    let address = SocketAddr::from_abstract_name(&arguments.socket).map_err(gone)?;
    let mut socket = UnixStream::connect_addr(&address).map_err(gone)?;
    socket.read_exact(&mut [0; GO.len()]).map_err(gone)?;
    let invocation = Invocation {
        program: &arguments.program,
        name: &arguments.command[0],
        arguments: &arguments.command[1..],
        preload: &arguments.preload,
        control: &arguments.control,
    };
    let error = invocation.command().exec();
    let errno = error.raw_os_error().unwrap_or(0);
    socket.write_all(&errno.to_le_bytes()).map_err(gone)?;
    Ok(EXIT_REFUSED)
}

/// Starts a program without a dynamic loader and returns its process.
pub(super) fn start(invocation: &Invocation<'_>, injector: &mut Injector) -> Result<Pid, Failure> {
    let system = |error| Failure::system("cannot start the program", error);
    let name = format!("legato-launch-{}", machine::random_name().map_err(system)?);
    let address = SocketAddr::from_abstract_name(&name).map_err(system)?;
    let listener = UnixListener::bind_addr(&address).map_err(system)?;
    let mut child = launcher(&name, invocation).spawn().map_err(system)?;
    let result = release(&listener, &child, injector);
    match result {
        Ok(None) => Ok(Pid::from_child(&child)),
        Ok(Some(error)) => {
            end(&mut child, injector);
            Err(invocation.failure(&error))
        }
        Err(failure) => {
            end(&mut child, injector);
            Err(failure)
        }
    }
}

/// The variables go as arguments, because the agent must not get into the waiting process.
fn launcher(socket: &str, invocation: &Invocation<'_>) -> Command {
    let mut launcher = Command::new("/proc/self/exe");
    launcher
        .arg0("legato")
        .args(["launch", "--socket", socket])
        .arg("--control")
        .arg(invocation.control)
        .arg("--preload")
        .arg(invocation.preload)
        .arg("--program")
        .arg(invocation.program)
        .arg("--")
        .arg(invocation.name)
        .args(invocation.arguments);
    launcher
}

/// Lets the program be executed, once the process is traced. Returns what `execve` has said, if it
/// has failed.
fn release(
    listener: &UnixListener,
    child: &Child,
    injector: &mut Injector,
) -> Result<Option<std::io::Error>, Failure> {
    let system = |error: std::io::Error| Failure::system("cannot start the program", error);
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| system(error.into()))?;
    let mut waits = [
        PollFd::new(listener, PollFlags::IN),
        PollFd::new(&handle, PollFlags::IN),
    ];
    while poll(&mut waits, None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
    if waits[0].revents().is_empty() {
        return Err(Failure::refused(
            "cannot start the program: it was killed; see who did that; try again",
        ));
    }
    let (mut socket, _) = listener.accept().map_err(system)?;
    if Peer::of(&socket).is_ok_and(|peer| peer.pid != Some(pid)) {
        return Err(Failure::refused(
            "cannot start the program: another process came to its socket; try again",
        ));
    }
    injector
        .follow(pid)
        .map_err(|error| system(std::io::Error::other(error)))?;
    socket.write_all(&GO).map_err(system)?;
    let mut errno = [0; size_of::<i32>()];
    // The other end closes when the program is executed. A process that was killed closes it too:
    // that is an end like any other.
    Ok(match socket.read_exact(&mut errno) {
        Ok(()) => Some(std::io::Error::from_raw_os_error(i32::from_le_bytes(errno))),
        Err(_) => None,
    })
}

fn end(child: &mut Child, injector: &mut Injector) {
    // Both fail only if it has ended by itself.
    let _ = child.kill();
    while !injector.is_idle() {
        let mut waits = [PollFd::new(injector, PollFlags::IN)];
        let _ = poll(&mut waits, None);
        injector.results();
    }
    let _ = child.wait();
}
