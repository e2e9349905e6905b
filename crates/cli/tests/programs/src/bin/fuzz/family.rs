//! Processes: forked, told from one another, and waited for.

use crate::calls;
use crate::content::Content;
use crate::space::{Backing, Page, Protection};
use crate::worker::{Failure, Worker};
use legato_base::PAGE_SIZE;
use libc::{c_int, pid_t};

/// A child that is at work; what it has to say comes in a file of memory.
#[derive(Debug)]
pub(crate) struct Child {
    path: String,
    pid: pid_t,
    report: c_int,
}

/// The child's end: it tells when it no longer uses memory that its parent may write.
#[derive(Debug)]
pub(crate) struct Birth {
    ready: c_int,
    report: c_int,
}

pub(crate) enum Forked {
    Parent(Child),
    Child(Birth),
}

/// Exit status of a process that found something wrong.
pub(crate) const WRONG: c_int = 70;

/// Writes to a descriptor without a lock that another thread could have held when this process was
/// forked.
fn write_all(file: c_int, text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: reads from a slice.
        let count = unsafe { libc::write(file, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(count) {
            Ok(count) => rest = &rest[count..],
            Err(_) => return,
        }
    }
}

/// Ends the process at once, whatever its other threads do.
pub(crate) fn die(failure: &Failure) -> ! {
    write_all(libc::STDERR_FILENO, &format!("fuzz: {failure}\n"));
    // SAFETY: ends the process.
    unsafe { libc::_exit(WRONG) }
}

/// Forks. The parent goes on when the child no longer uses shared memory, or has ended.
pub(crate) fn fork(path: &str) -> Result<Forked, Failure> {
    let failed = |errno: i32| Failure(format!("process {path}: errno {errno}"));
    let report = calls::memory_file(0).map_err(failed)? as c_int;
    let [wait, ready] = calls::pipe().map_err(failed)?;
    // SAFETY: the child goes on with this thread only, and does not use what other threads held.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => {
            // SAFETY: a number; the child does not outlive the thread that waits for it.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            calls::close(wait);
            Ok(Forked::Child(Birth { ready, report }))
        }
        1.. => {
            wait_for(wait, pid);
            calls::close(wait);
            calls::close(ready);
            let path = path.to_owned();
            Ok(Forked::Parent(Child { path, pid, report }))
        }
        _ => Err(Failure(format!(
            "fork of {path}: {}",
            std::io::Error::last_os_error()
        ))),
    }
}

/// Until there is something in the pipe or the process has ended.
fn wait_for(pipe: c_int, pid: pid_t) {
    // SAFETY: numbers.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int;
    let poll = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut ends = [poll(pipe), poll(process)];
    // SAFETY: room for two; interrupted calls are made again.
    while unsafe { libc::poll(ends.as_mut_ptr(), 2, -1) } < 0 {}
    calls::close(process);
}

impl Birth {
    pub(crate) fn tell_ready(&self) {
        write_all(self.ready, "r");
        calls::close(self.ready);
    }

    pub(crate) fn end(&self, report: &str) -> ! {
        write_all(self.report, report);
        // SAFETY: ends the process, without the exit handlers that are the parent's.
        unsafe { libc::_exit(0) }
    }
}

impl Child {
    /// Waits for its end; the report.
    pub(crate) fn collect(self) -> Result<String, Failure> {
        let mut status = 0;
        // SAFETY: status lives on this stack; interrupted calls are made again.
        while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } < 0 {}
        if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
            return Err(Failure(format!(
                "process {} ended with status {status:#x}",
                self.path
            )));
        }
        let mut text = vec![0; 1 << 16];
        // SAFETY: room for as much as is asked for.
        let count = unsafe { libc::pread(self.report, text.as_mut_ptr().cast(), text.len(), 0) };
        calls::close(self.report);
        text.truncate(usize::try_from(count).unwrap_or(0));
        String::from_utf8(text).map_err(|_| Failure(format!("report of {} is no text", self.path)))
    }
}

/// Starts a program by vfork and exec, and waits for its end.
pub(crate) fn execute() -> Result<(), Failure> {
    let mut pid = 0;
    let program = c"/bin/true";
    let arguments = [program.as_ptr().cast_mut(), core::ptr::null_mut()];
    // SAFETY: the arguments are C strings and end with null; the environment is the process's.
    let errno = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            core::ptr::null(),
            core::ptr::null(),
            arguments.as_ptr(),
            libc::environ.cast_const(),
        )
    };
    if errno != 0 {
        return Err(Failure(format!("posix_spawn: errno {errno}")));
    }
    let mut status = 0;
    // SAFETY: status lives on this stack; interrupted calls are made again.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {}
    match status {
        0 => Ok(()),
        _ => Err(Failure(format!("/bin/true ended with status {status:#x}"))),
    }
}

impl Worker<'_> {
    /// What fork makes of the pages in the child.
    pub(crate) fn apply_fork(&mut self) {
        for page in &mut self.space.pages {
            page.is_locked = false;
            if page.is_left_by_fork {
                page.clear();
            } else if page.is_wiped_by_fork {
                page.content = Content::default();
                page.is_free = false;
            }
        }
        // Two mappings that were one before a hole came between them never become one again in the
        // child: each has an `anon_vma` of its own there (anon_vma_fork in mm/rmap.c).
        let all = 0..self.space.pages.len();
        self.space.change(all, |_| ());
    }

    /// Checks what is shared with the parent, and puts private memory in its place.
    pub(crate) fn leave_shared(&mut self) -> Result<(), Failure> {
        for page in 0..self.space.pages.len() {
            let state = &self.space.pages[page];
            if !state.is_shared() {
                continue;
            }
            if state.is_readable() {
                self.check_page(page)?;
            }
            let address = self.space.address(page);
            let flags = calls::PRIVATE | libc::MAP_FIXED;
            let found = calls::map(
                address,
                PAGE_SIZE,
                calls::READ_WRITE,
                flags,
                calls::NO_FILE,
                0,
            );
            let new = |_| (Backing::Anonymous, Content::default());
            self.space.place(page..page + 1, Protection::ReadWrite, new);
            self.note(page..page + 1);
            self.expect("mmap over shared memory", found, Ok(address))?;
        }
        for object in self.objects.drain(..) {
            object.file.into_iter().for_each(calls::close);
        }
        debug_assert!(
            !self.space.pages.iter().any(Page::is_shared),
            "all is private now"
        );
        Ok(())
    }
}
