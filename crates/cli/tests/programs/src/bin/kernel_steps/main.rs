//! Does on the real kernel, one by one, what a list of steps says, and prints what came of each:
//! the calls of a program and of its forked children, and those of whoever serves their memory
//! through userfaultfd.
//!
//! Standard input has `begin`, steps, `end`, again and again. A step is a call, and behind each
//! `!` what to do when it waits: before its event is read, or after its fault was. Pages are
//! numbers in the arena, frames numbers in another mapping, spaces numbers in the order of forks.

mod program;
mod userfault;

use legato_base::PAGE_SIZE;
use legato_test_programs::end_at_a_panic;
use program::{Call, Channel, Command, Reply, pipe, receive, send, serve};
use std::fmt::Write as _;
use std::io::BufRead;
use std::os::fd::RawFd;
use std::process::ExitCode;
use userfault::{Message, Userfault};

/// Where the pages of a sequence are, in every process of it.
pub(crate) const ARENA: u64 = 0x10_0000_0000;
const ARENA_PAGES: u64 = 64;
const FRAMES: u64 = 0x20_0000_0000;
const FRAMES_COUNT: u64 = 8;
const SPACES: usize = 6;
const PAGE: u64 = PAGE_SIZE as u64;

/// "ok", or the name of the error that the last system call left.
pub(crate) fn name_of(result: i32) -> &'static str {
    if result >= 0 {
        return "ok";
    }
    name_of_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn name_of_error(errno: i32) -> &'static str {
    match errno {
        libc::EAGAIN => "EAGAIN",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EFAULT => "EFAULT",
        libc::EINTR => "EINTR",
        libc::EINVAL => "EINVAL",
        libc::ENOENT => "ENOENT",
        libc::ENOMEM => "ENOMEM",
        libc::EPERM => "EPERM",
        libc::ESRCH => "ESRCH",
        _ => "another error",
    }
}

fn main() -> ExitCode {
    end_at_a_panic();
    let mut steps = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match line.as_str() {
            "begin" => steps.clear(),
            "end" => {
                if !run_apart(&steps) {
                    return ExitCode::FAILURE;
                }
            }
            _ => steps.push(line),
        }
    }
    ExitCode::SUCCESS
}

/// Each sequence has a process of its own, so that none leaves anything to the next.
fn run_apart(steps: &[String]) -> bool {
    // SAFETY: there is one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = run(steps);
        if let Err(error) = &result {
            println!("kernel_steps: {error}");
        }
        std::process::exit(i32::from(result.is_err()));
    }
    let mut status = 0;
    // SAFETY: waits for the child that was made just now.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    waited == child && status == 0
}

/// One address space, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Space {
    process: i32,
    userfault: Userfault,
    pagemap: RawFd,
    alive: bool,
}

#[derive(Debug)]
struct Agent {
    channels: Vec<Channel>,
    spaces: Vec<Space>,
    /// A child whose event was read and whose process is not known yet.
    born: Option<Userfault>,
    pinned: Vec<(u64, RawFd)>,
    line: String,
}

fn run(steps: &[String]) -> Result<(), String> {
    // SAFETY: neither takes a pointer.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
    let userfault = Userfault::open()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (frames, length) = (FRAMES as *mut libc::c_void, (FRAMES_COUNT * PAGE) as usize);
    // SAFETY: new memory where there was none; children do not have it.
    unsafe {
        libc::mmap(frames, length, access, flags, -1, 0);
        libc::madvise(frames, length, libc::MADV_DONTFORK);
    }
    if userfault.register(FRAMES, FRAMES_COUNT) != "ok" {
        return Err("the frames cannot be registered".to_owned());
    }
    let channel = |_| Channel {
        commands: pipe(),
        replies: pipe(),
        bytes: pipe(),
    };
    let channels: Vec<_> = (0..SPACES).map(channel).collect();
    let own = channels.clone();
    std::thread::spawn(move || serve(&own, 0));
    let mut agent = Agent {
        channels,
        spaces: Vec::new(),
        born: None,
        pinned: Vec::new(),
        line: String::new(),
    };
    agent.add_space(std::process::id() as i32, userfault);
    for step in steps {
        agent.line = format!("{step} ->");
        agent.take_step(step)?;
        agent.print_pages();
        println!("{}", agent.line);
    }
    for space in &agent.spaces[1..] {
        // SAFETY: they are this process's children, or were inherited from them.
        unsafe { libc::kill(space.process, libc::SIGKILL) };
    }
    Ok(())
}

impl Agent {
    fn say(&mut self, what: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.line, " {what};");
    }

    fn add_space(&mut self, process: i32, userfault: Userfault) {
        let path = format!("/proc/{process}/pagemap\0");
        // SAFETY: the path ends with a zero byte.
        let pagemap = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
        self.spaces.push(Space {
            process,
            userfault,
            pagemap,
            alive: true,
        });
    }

    fn take_step(&mut self, step: &str) -> Result<(), String> {
        let mut parts = step.split(" ! ");
        let call = parts.next().unwrap_or_default();
        let meanwhile: Vec<&str> = parts.collect();
        let (name, space, arguments) = words(call)?;
        let call = match name {
            "map" => Call::Map,
            "unmap" => Call::Unmap,
            "remap" => Call::Remap,
            "dontneed" => Call::DontNeed,
            "free" => Call::Free,
            "lock" => Call::Lock,
            "unlock" => Call::Unlock,
            "fork" => Call::Fork,
            "exit" => Call::Exit,
            "read" => Call::Read,
            "write" => Call::Write,
            _ => return self.serve_memory(call),
        };
        let mut arguments = arguments;
        if call == Call::Fork {
            arguments[0] = self.spaces.len() as u64;
        }
        send(
            self.channels[space].commands[1],
            Command { call, arguments },
        );
        if call == Call::Exit {
            self.await_end(space);
            self.say("ended");
            return Ok(());
        }
        let reply = self.await_reply(space, &meanwhile)?;
        self.finish(call, reply);
        Ok(())
    }

    fn finish(&mut self, call: Call, reply: Reply) {
        let born = self.born.take();
        match (call, reply.errno) {
            (Call::Fork, 0) => {
                self.add_space(reply.value as i32, born.unwrap_or(Userfault(-1)));
                self.say("done");
            }
            (Call::Read, 0) => self.say(&format!("value {}", reply.value)),
            (_, 0) => self.say("done"),
            (Call::Read | Call::Write, errno) if errno == libc::EFAULT as u64 => self.say("SIGBUS"),
            (_, errno) => self.say(name_of_error(errno as i32)),
        }
    }

    /// Answers what the call causes until it has ended.
    fn await_reply(&mut self, space: usize, meanwhile: &[&str]) -> Result<Reply, String> {
        let mut meanwhile = Some(meanwhile);
        loop {
            let mut fds = vec![self.channels[space].replies[0]];
            fds.extend(self.spaces.iter().map(|space| space.userfault.0));
            let ready = poll(&fds)?;
            if ready[0] {
                let reply = receive(fds[0], Reply::default());
                return reply.ok_or_else(|| "the program is gone".to_owned());
            }
            for (index, _) in ready[1..].iter().enumerate().filter(|(_, ready)| **ready) {
                self.answer(index, &mut meanwhile)?;
            }
        }
    }

    fn answer(&mut self, index: usize, meanwhile: &mut Option<&[&str]>) -> Result<(), String> {
        let userfault = self.spaces[index].userfault;
        // An event stays unread while the steps are taken that are to find the space changing. A
        // call is only known to cause a fault or an event when that is read, so a list of steps
        // begins with `before` or `after`.
        let (before, after) = match meanwhile.take() {
            Some(["before", steps @ ..]) => (steps, [].as_slice()),
            Some(["after", steps @ ..]) => ([].as_slice(), steps),
            _ => ([].as_slice(), [].as_slice()),
        };
        for step in before {
            self.serve_memory(step)?;
        }
        let Some(message) = userfault.read() else {
            return Ok(());
        };
        self.report(index, message);
        for step in after {
            self.serve_memory(step)?;
        }
        // Nothing may hang, whatever was said above.
        if message.event == 0x12 {
            userfault.zero(message.words[1] & !(PAGE - 1));
        }
        Ok(())
    }

    fn report(&mut self, space: usize, Message { event, words }: Message) {
        let page = |address: u64| address.wrapping_sub(ARENA) / PAGE;
        let [first, second, third] = words;
        let text = match event {
            0x12 => format!("fault {space} {}", page(second)),
            0x13 => {
                self.born = Some(Userfault((first & 0xFFFF_FFFF) as RawFd));
                format!("forked {space}")
            }
            0x14 => format!(
                "remapped {space} {} {} {}",
                page(first),
                third / PAGE,
                page(second)
            ),
            0x15 | 0x16 => format!(
                "removed {space} {} {}",
                page(first),
                (second - first) / PAGE
            ),
            _ => format!("event {event:#x}"),
        };
        self.say(&text);
    }

    /// A step of whoever serves the memory.
    fn serve_memory(&mut self, step: &str) -> Result<(), String> {
        let (name, space, [page, other, ..]) = words(step)?;
        let userfault = self.spaces[space].userfault;
        let address = ARENA + page * PAGE;
        let frame = FRAMES + other * PAGE;
        let result = match name {
            "register" => userfault.register(address, other),
            "out" => self.move_out(frame, address),
            // What cannot be moved there can be copied.
            "in" => match userfault.move_page(address, frame) {
                "EINVAL" => match userfault.copy(address, frame) {
                    "ok" => "copied",
                    error => error,
                },
                result => result,
            },
            "copy" => {
                let mut content = [0u64; PAGE_SIZE / 8];
                content[0] = other;
                userfault.copy(address, content.as_ptr() as u64)
            }
            "zero" => userfault.zero(address),
            "poison" => userfault.poison(address),
            "pin" => self.pin(page, address),
            "unpin" => self.unpin(page),
            _ => return Err(format!("no such step: {step}")),
        };
        self.say(&format!("{name} {result}"));
        if name == "out" && result == "ok" {
            // SAFETY: the page has just moved there.
            let value = unsafe { (frame as *const u64).read_volatile() };
            self.say(&format!("value {value}"));
        }
        Ok(())
    }

    /// A page that a forked child shares becomes the program's own first, as in Legato's agent.
    fn move_out(&self, frame: u64, address: u64) -> &'static str {
        let own = self.spaces[0].userfault;
        match own.move_page(frame, address) {
            "EBUSY" => {
                // SAFETY: the content of the page stays.
                let unshared = unsafe {
                    libc::madvise(address as *mut _, PAGE_SIZE, libc::MADV_POPULATE_WRITE)
                };
                match name_of(unshared) {
                    "ok" => own.move_page(frame, address),
                    error => error,
                }
            }
            result => result,
        }
    }

    /// Registers the page as a buffer of io_uring, which pins it for long.
    fn pin(&mut self, page: u64, address: u64) -> &'static str {
        const REGISTER_BUFFERS: u64 = 0;
        let mut parameters = [0u64; 15];
        let buffer = [address, PAGE];
        // SAFETY: the parameters have 120 bytes; the buffer is the page, which is the program's.
        unsafe {
            let ring = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) as i32;
            if ring < 0 {
                return name_of(ring);
            }
            self.pinned.push((page, ring));
            let call = libc::SYS_io_uring_register;
            name_of(libc::syscall(call, ring, REGISTER_BUFFERS, buffer.as_ptr(), 1) as i32)
        }
    }

    fn unpin(&mut self, page: u64) -> &'static str {
        const UNREGISTER_BUFFERS: u64 = 1;
        let Some(place) = self.pinned.iter().position(|&(pinned, _)| pinned == page) else {
            return "not pinned";
        };
        let (_, ring) = self.pinned.swap_remove(place);
        // SAFETY: the ring is this process's, and nothing is under way on it.
        unsafe {
            let call = libc::SYS_io_uring_register;
            let result = libc::syscall(call, ring, UNREGISTER_BUFFERS, 0, 0) as i32;
            libc::close(ring);
            name_of(result)
        }
    }

    /// Until the process has no memory any more.
    fn await_end(&mut self, space: usize) {
        let process = self.spaces[space].process;
        // SAFETY: a descriptor of a process of this test.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as RawFd;
        // An error means that it is gone.
        let _ = poll(&[fd]);
        // SAFETY: both descriptors are this process's.
        unsafe {
            libc::close(fd);
            libc::close(self.spaces[space].pagemap);
        }
        self.spaces[space].alive = false;
    }

    /// P: present, S: something else than a page or nothing.
    fn print_pages(&mut self) {
        for index in 0..self.spaces.len() {
            let space = self.spaces[index];
            if !space.alive {
                continue;
            }
            let mut entries = [0u64; ARENA_PAGES as usize];
            let offset = (ARENA / PAGE * 8) as libc::off_t;
            let size = size_of_val(&entries);
            // SAFETY: as many bytes as the array has.
            unsafe { libc::pread(space.pagemap, entries.as_mut_ptr().cast(), size, offset) };
            let pages = entries.iter().map(|entry| match entry >> 62 {
                0 => '.',
                1 => 'S',
                _ => 'P',
            });
            let pages: String = pages.collect();
            let _ = write!(self.line, " {index}={}", pages.trim_end_matches('.'));
        }
    }
}

/// A step's name, space and arguments.
fn words(step: &str) -> Result<(&str, usize, [u64; 4]), String> {
    let mut words = step.split(' ');
    let name = words.next().unwrap_or_default();
    let mut numbers = words.map(|word| word.parse::<u64>().map_err(|_| step.to_owned()));
    let space = numbers.next().ok_or_else(|| step.to_owned())?? as usize;
    let mut arguments = [0; 4];
    for (argument, number) in arguments.iter_mut().zip(numbers) {
        *argument = number?;
    }
    Ok((name, space, arguments))
}

/// Which of the descriptors have something to say.
fn poll(fds: &[RawFd]) -> Result<Vec<bool>, String> {
    const PATIENCE_MS: i32 = 60_000;
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: an array of the given length.
    let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, PATIENCE_MS) };
    if count <= 0 {
        return Err("nothing happens any more".to_owned());
    }
    let is_ready = |polled: &libc::pollfd| polled.revents & libc::POLLIN != 0;
    Ok(polled.iter().map(is_ready).collect())
}
