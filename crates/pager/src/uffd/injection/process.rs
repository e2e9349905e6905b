//! What /proc tells about the process, and its memory.

use super::InjectionError;
use crate::uffd::context::HIGHEST_PAGE;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Bytes read at a time.
const CHUNK: usize = 16 << 10;
/// Auxiliary vector: where the dynamic loader is (0: there is none), and the end (getauxval(3)).
const AT_NULL: u64 = 0;
const AT_BASE: u64 = 7;
/// Bytes of code that are searched for a system call instruction, if the vDSO has none.
const SEARCH_MAX: u64 = 64 << 20;
/// `include/uapi/linux/seccomp.h`
const SECCOMP_MODE_STRICT: u64 = 1;
const SYSCALL_INSTRUCTION: &[u8] = &[0x0F, 0x05];

/// A process, as /proc has it.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
}

/// The memory that a process had when this was opened, through `/proc/PID/mem`: a tracer may write
/// where the process itself may only read or execute, so that nothing has to be writable first
/// (proc_pid_mem(5)).
#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
}

impl Process {
    pub(super) const fn new(pid: i32) -> Self {
        Self { pid }
    }

    fn file(&self, name: &str) -> Option<Vec<u8>> {
        read_whole(&alloc::format!("/proc/{}/{name}", self.pid)).ok()
    }

    /// A number from the status file of the process or of one of its threads.
    fn status(&self, field: &str, radix: u32) -> Option<u64> {
        number_in(&self.file("status")?, field, radix)
    }

    /// Why a thread of it could not be traced: the kernel's answer is the same for all reasons.
    pub(super) fn why_not_traced(&self) -> InjectionError {
        let Some(status) = self.file("status") else {
            return InjectionError::Gone;
        };
        if has_line(&status, b"State:\tZ") || has_line(&status, b"State:\tX") {
            InjectionError::Gone
        } else if self
            .status("TracerPid", 10)
            .is_some_and(|tracer| tracer != 0)
        {
            InjectionError::TracedByAnother
        } else {
            InjectionError::NotPermitted
        }
    }

    /// Does nothing but a processor keep the thread from running?
    pub(super) fn is_runnable(&self) -> bool {
        self.file("status")
            .is_some_and(|status| has_line(&status, b"State:\tR"))
    }

    /// Has it filtered its system calls by more than what this process came with? Such a filter
    /// may kill for a call that the program itself never makes.
    pub(super) fn is_filtered(&self) -> bool {
        // Filters are inherited and only ever added (seccomp(2)); counted since Linux 5.9.
        let filters = |process: &Self| {
            let status = process.file("status").unwrap_or_default();
            let number = |field| number_in(&status, field, 10).unwrap_or(0);
            (number("Seccomp"), number("Seccomp_filters"))
        };
        let (mode, count) = filters(self);
        let (own_mode, own_count) = filters(&Self::new(rustix::process::getpid().as_raw_pid()));
        // The agents' own filter is there before the program could add any (`filter`). While it is added the kernel may
        // count it before it says that there is one.
        let is_agents = mode != SECCOMP_MODE_STRICT && count == own_count + 1;
        (mode, count) != (own_mode, own_count) && !is_agents
    }

    /// The thread that has the process's number first: it has the process's own settings, where
    /// others may be bound to a processor or to a deadline.
    pub(super) fn threads(&self) -> Vec<i32> {
        let mut threads = vec![self.pid];
        let path = alloc::format!("/proc/{}/task", self.pid);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::open(path.as_str(), flags, Mode::empty()) else {
            return threads;
        };
        let mut buffer = Vec::with_capacity(CHUNK);
        let mut entries = rustix::fs::RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name().to_str().ok();
            let thread = name.and_then(|name| name.parse::<i32>().ok());
            threads.extend(thread.filter(|&thread| thread != self.pid));
        }
        threads
    }

    pub(super) fn memory(&self) -> Result<Memory, InjectionError> {
        let path = alloc::format!("/proc/{}/mem", self.pid);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(path.as_str(), flags, Mode::empty()) {
            Ok(file) => Ok(Memory { file }),
            Err(Errno::NOENT | Errno::SRCH) => Err(InjectionError::Gone),
            Err(Errno::ACCESS | Errno::PERM) => Err(InjectionError::NotPermitted),
            Err(error) => Err(InjectionError::of_memory(error)),
        }
    }

    /// Does a dynamic loader start this program?
    pub(super) fn has_loader(&self) -> bool {
        let vector = self.file("auxv").unwrap_or_default();
        let long = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        vector
            .chunks_exact(16)
            .map(|entry| (long(&entry[..8]), long(&entry[8..])))
            .take_while(|&(kind, _)| kind != AT_NULL)
            .any(|(kind, value)| kind == AT_BASE && value != 0)
    }

    /// Where a system call instruction is: in the vDSO, or else in any code.
    pub(super) fn system_call_instruction(&self, memory: &Memory) -> Option<u64> {
        let maps = String::from_utf8_lossy(&self.file("maps")?).into_owned();
        let code = || maps.lines().filter_map(executable);
        let vdso = code().filter(|(_, _, name)| *name == "[vdso]");
        let other = code().filter(|(_, _, name)| *name != "[vdso]");
        let mut budget = SEARCH_MAX;
        for (start, end, _) in vdso.chain(other) {
            let found = memory.find(start, end.min(start.saturating_add(budget)));
            if found.is_some() {
                return found;
            }
            budget = budget.saturating_sub(end - start);
        }
        None
    }
}

/// Start, end and name of a mapping that is readable and executable.
fn executable(line: &str) -> Option<(u64, u64, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16)
        .ok()
        .filter(|&end| end > start)?;
    fields.next().filter(|permissions| {
        permissions.starts_with('r') && permissions.as_bytes().get(2) == Some(&b'x')
    })?;
    Some((start, end, fields.nth(3).unwrap_or("")))
}

impl Memory {
    /// False once every process that had it has ended or executes another program: then there is
    /// nothing to read, where an address that nothing maps is an error (`mem_rw` in fs/proc/base.c).
    pub(super) fn is_in_use(&self) -> bool {
        rustix::io::pread(&self.file, &mut [0], HIGHEST_PAGE) != Ok(0)
    }

    pub(super) fn write(&self, mut address: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.file, bytes, address) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    bytes = &bytes[count..];
                    address += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::io::pread(&self.file, &mut bytes[filled..], address + filled as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn read_long(&self, address: u64) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A page that cannot be read holds no instruction that is found.
    fn find(&self, start: u64, end: u64) -> Option<u64> {
        let mut chunk = vec![0; CHUNK];
        let mut at = start;
        while at < end {
            let length = CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK));
            if self.read(at, &mut chunk[..length]).is_ok() {
                let mut pairs = chunk[..length].windows(SYSCALL_INSTRUCTION.len());
                if let Some(offset) = pairs.position(|pair| pair == SYSCALL_INSTRUCTION) {
                    return Some(at + offset as u64);
                }
            }
            at += length as u64;
        }
        None
    }
}

/// A number in the text of a status file (proc_pid_status(5)).
fn number_in(status: &[u8], field: &str, radix: u32) -> Option<u64> {
    let text = core::str::from_utf8(status).ok()?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    u64::from_str_radix(value.trim(), radix).ok()
}

fn has_line(text: &[u8], start: &[u8]) -> bool {
    text.split(|&byte| byte == b'\n')
        .any(|line| line.starts_with(start))
}

fn read_whole(path: &str) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let mut bytes = Vec::new();
    let mut filled = 0;
    loop {
        bytes.resize(filled + CHUNK, 0);
        match rustix::io::read(&file, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_in_maps() {
        let line = "7fff1000-7fff3000 r-xp 00000000 00:00 0                          [vdso]";
        assert_eq!(executable(line), Some((0x7fff_1000, 0x7fff_3000, "[vdso]")));
        for line in [
            "",
            "x",
            "3000-1000 r-xp 0 0 0",
            "1000-3000 rw-p 00000000 00:00 0",
            "ff600000-ff601000 --xp 00000000 00:00 0 [vsyscall]",
        ] {
            assert_eq!(executable(line), None, "{line}");
        }
    }

    #[test]
    fn this_process_is_known() {
        let pid = rustix::process::getpid().as_raw_pid();
        let own = Process::new(pid);
        assert!(!own.is_filtered());
        assert!(own.threads().len() > 1 && own.threads()[0] == pid);
        let memory = own.memory().unwrap();
        let found = own.system_call_instruction(&memory).unwrap();
        let mut bytes = [0; 2];
        memory.read(found, &mut bytes).unwrap();
        assert_eq!(bytes, SYSCALL_INSTRUCTION);
        assert!(memory.is_in_use());
        assert_eq!(
            Process::new(i32::MAX).memory().unwrap_err(),
            InjectionError::Gone
        );
        assert_eq!(
            Process::new(i32::MAX).why_not_traced(),
            InjectionError::Gone
        );
    }
}
