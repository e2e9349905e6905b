//! A shell in the emulated guest, for tests beside it (`scripts/rdma-guest/beside`) and for programs in it.
#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod beside;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};

/// Where the guest's shell comes to.
const SHELL: &str = "10.77.0.1:7000";
/// And where one comes to that is started by a program in the guest.
const OWN_SHELL: &str = "127.0.0.1:7001";
/// The guest's processor is emulated, and this machine may be busy.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// The first test waits for its boot, which takes more than a minute where ten others want a processor.
const BOOT: std::time::Duration = std::time::Duration::from_secs(240);

/// The shell of the guest.
pub(crate) struct Guest {
    stream: TcpStream,
    coming: Receiver<String>,
    /// Those that nobody has taken yet.
    pub(crate) lines: Vec<String>,
    /// The shell, where this program has started it.
    own: Option<Child>,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind(SHELL).expect("on the link, as beside_a_guest runs it");
        let mut guest = Self::coming_to(listener);
        // What a test that failed has left.
        guest.say(&format!(
            "killall -q -9 rping ibv_rc_pingpong ib_read_lat ib_write_bw peer {}",
            own_name()
        ));
        guest
    }

    /// A shell of its own for a program that is in the guest itself.
    pub(crate) fn own() -> Self {
        let listener = TcpListener::bind(OWN_SHELL).unwrap();
        let (ip, port) = OWN_SHELL.split_once(':').unwrap();
        let shell = Command::new("nc").args([ip, port, "-e", "sh"]).spawn();
        let mut guest = Self::coming_to(listener);
        guest.own = Some(shell.unwrap());
        guest
    }

    fn coming_to(listener: TcpListener) -> Self {
        let (accepted, stream) = channel();
        std::thread::spawn(move || accepted.send(listener.accept().unwrap().0));
        let stream = stream.recv_timeout(BOOT);
        let stream = stream.expect("the guest comes up");
        let (read, coming) = channel();
        let reader = BufReader::new(stream.try_clone().unwrap());
        // It ends with the connection.
        std::thread::spawn(move || {
            let lines = reader.lines().map_while(Result::ok);
            lines.map(|line| read.send(line)).all(|sent| sent.is_ok())
        });
        let mut guest = Self {
            stream,
            coming,
            lines: Vec::new(),
            own: None,
        };
        guest.say("exec 2>&1");
        guest
    }

    /// A line for the shell, or for the program that it runs.
    pub(crate) fn say(&mut self, line: &str) {
        let line = format!("{line}\n");
        self.stream.write_all(line.as_bytes()).unwrap();
    }

    /// Takes the first line that begins so.
    pub(crate) fn take(&mut self, begin: &str) -> Option<String> {
        while let Ok(line) = self.coming.try_recv() {
            self.came(line);
        }
        let found = self.lines.iter().position(|line| line.starts_with(begin))?;
        Some(self.lines.remove(found))
    }

    fn came(&mut self, line: String) {
        println!("  guest: {}", line.get(..100).unwrap_or(&line));
        assert!(!line.starts_with("error "), "{line}");
        self.lines.push(line);
    }

    /// Waits for a line, where no NIC of this side has anything to do.
    pub(crate) fn await_line(&mut self, begin: &str) -> String {
        loop {
            if let Some(line) = self.take(begin) {
                return line;
            }
            let line = self.coming.recv_timeout(PATIENCE);
            self.came(line.expect("the guest says something"));
        }
    }
}

/// Of this program, which the guest has too.
pub(crate) fn own_name() -> String {
    let program = std::env::current_exe().unwrap();
    program.file_name().unwrap().to_str().unwrap().to_owned()
}

impl Drop for Guest {
    /// The shell ends, and the guest asks for the next.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(mut shell) = self.own.take() {
            // Its input has ended.
            let _ = shell.wait();
        }
    }
}
