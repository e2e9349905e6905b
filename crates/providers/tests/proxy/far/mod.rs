//! Far halves in threads of their own, as the supervisor has them.

use legato_base::{Duration, Time};
use legato_providers::proxy::{ProxyEnd, ProxyProvider, ProxyServer, connection};
use legato_providers::{ForeignMemory, Pollable};
use legato_verbs::{Provider, ResourceCounts};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// How a far half ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) end: ProxyEnd,
    /// Regions that the NIC did not let go of.
    pub(crate) leaked: usize,
    /// What the provider had then.
    pub(crate) left: ResourceCounts,
}

/// A far half that serves until its near half is gone, or until it is killed.
pub(crate) struct Far {
    thread: JoinHandle<Option<Ended>>,
    /// Rung when it is to die.
    bell: Arc<OwnedFd>,
}

impl Far {
    /// Of one whose near half is gone, or has broken the protocol.
    pub(crate) fn join(self) -> Ended {
        self.thread.join().unwrap().expect("nobody has killed it")
    }

    /// As when its process dies: it says nothing more, and all its descriptors are closed.
    pub(crate) fn kill(self) {
        rustix::io::write(&*self.bell, &1u64.to_le_bytes()).unwrap();
        self.thread.join().unwrap();
    }
}

/// Nothing that a test waits for takes so long.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A far half with what `open` opens in its thread, and the other end of its connection.
pub(crate) fn start<P>(open: impl FnOnce() -> P + Send + 'static) -> (OwnedFd, Far)
where
    P: Provider + ForeignMemory + Pollable,
{
    let (near, far) = connection().unwrap();
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let rung = Arc::clone(&bell);
    let serve = move || serve(&mut ProxyServer::new(far, open()), &rung);
    let thread = std::thread::spawn(serve);
    (near, Far { thread, bell })
}

/// Both halves.
pub(crate) fn proxied<P>(open: impl FnOnce() -> P + Send + 'static) -> (ProxyProvider, Far)
where
    P: Provider + ForeignMemory + Pollable,
{
    let (near, far) = start(open);
    (ProxyProvider::open(near).unwrap(), far)
}

fn serve<P: Provider + ForeignMemory + Pollable>(
    server: &mut ProxyServer<P>,
    bell: &OwnedFd,
) -> Option<Ended> {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE * 10, "the near half never ends");
        let turn = server.turn(now(begun));
        if let Some(end) = server.ended() {
            return Some(Ended {
                end,
                leaked: server.leaked(),
                left: server.provider().resource_counts(),
            });
        }
        if !turn.worked && sleep(server, turn.deadline, (begun, bell)) {
            return None;
        }
    }
}

/// True if it was told to die.
fn sleep<P: Provider + ForeignMemory + Pollable>(
    server: &mut ProxyServer<P>,
    deadline: Time,
    (begun, bell): (Instant, &OwnedFd),
) -> bool {
    let mut is_rung = false;
    if server.set_sleeping(true) {
        let mut descriptors = vec![bell.as_fd()];
        server.descriptors(&mut descriptors);
        wait(&descriptors, deadline.since(now(begun)));
        let mut rung = [PollFd::new(bell, PollFlags::IN)];
        is_rung = poll(&mut rung, Some(&Timespec::default())).unwrap() > 0;
    }
    server.set_sleeping(false);
    is_rung
}

/// Sleeps until there is something at a descriptor, or for so long.
pub(crate) fn wait(descriptors: &[rustix::fd::BorrowedFd<'_>], most: Duration) {
    let mut polled: Vec<_> = descriptors
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let nanos = most.as_nanos().min(PATIENCE.as_nanos() as u64);
    let timeout = Timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    let _ = poll(&mut polled, Some(&timeout));
}

pub(crate) fn now(begun: Instant) -> Time {
    Time::ZERO + Duration::from_nanos(begun.elapsed().as_nanos() as u64 + 1)
}
