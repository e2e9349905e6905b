//! Another process looks at far pages and writes to them.

use crate::forked::{fork, reap};
use crate::ground::{Case, Checked, Failure, Ground, Outcome, bytes_of, call, ensure};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("process-vm-from-outside", process_vm),
    ("proc-mem-from-outside", proc_mem),
    ("ptrace-from-outside", ptrace),
    ("core-dump", core_dump),
    ("part-aborts", aborts),
];

const PAGES: u64 = 64;

/// A child process looks at this one, whose region is far, and changes the second half of it.
fn look(
    ground: &Ground,
    look: fn(libc::pid_t, &Arena, &[u8]) -> Checked,
) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let expected = bytes_of(&region);
    // Where a kernel module guards ptrace (Yama), the child has to be named.
    let any = libc::c_ulong::MAX;
    // Fails where there is no such guard.
    let _ = crate::ground::outcome!(prctl(libc::PR_SET_PTRACER, any));
    let pid = call!(getpid())? as libc::pid_t;
    ground.evict(&region)?;
    reap(fork("the other process", || look(pid, &region, &expected))?)?;
    for page in 0..PAGES {
        region.check(page, 1 + u32::from(page >= PAGES / 2))?;
    }
    ground.evict(&region)?;
    for page in 0..PAGES {
        region.check(page, 1 + u32::from(page >= PAGES / 2))?;
    }
    Ok(Outcome::Passed)
}

/// What the second half becomes, in memory of the process that writes it.
fn changed() -> Result<Vec<u8>, Failure> {
    let other = Arena::new(PAGES)?;
    crate::ground::fill(&other, 2);
    Ok(bytes_of(&other)[PAGES as usize / 2 * PAGE_SIZE..].to_vec())
}

fn vector(address: *const u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address.cast_mut().cast(),
        iov_len: length,
    }
}

fn process_vm(ground: &Ground) -> Result<Outcome, Failure> {
    look(ground, |pid, region, expected| {
        let mut found = vec![0; expected.len()];
        let local = vector(found.as_mut_ptr(), found.len());
        let remote = vector(region.address(0).cast(), found.len());
        let read = call!(process_vm_readv(
            pid,
            &raw const local,
            1,
            &raw const remote,
            1,
            0
        ))?;
        ensure!(
            read == found.len() && found == expected,
            "{read} bytes were read, or other ones"
        );
        let bytes = changed()?;
        let local = vector(bytes.as_ptr(), bytes.len());
        let remote = vector(region.address(PAGES / 2).cast(), bytes.len());
        let written = call!(process_vm_writev(
            pid,
            &raw const local,
            1,
            &raw const remote,
            1,
            0
        ))?;
        ensure!(written == bytes.len(), "{written} bytes were written");
        Ok(())
    })
}

fn proc_mem(ground: &Ground) -> Result<Outcome, Failure> {
    look(ground, |pid, region, expected| {
        let mut options = OpenOptions::new();
        let memory = options
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))?;
        let mut found = vec![0; expected.len()];
        memory.read_exact_at(&mut found, region.address(0) as u64)?;
        ensure!(found == expected, "other bytes were read");
        memory.write_all_at(&changed()?, region.address(PAGES / 2) as u64)?;
        Ok(())
    })
}

/// As a debugger does it: stops the process, and reads and writes word by word.
fn ptrace(ground: &Ground) -> Result<Outcome, Failure> {
    look(ground, |pid, region, expected| {
        let none = core::ptr::null_mut::<libc::c_void>();
        call!(ptrace(libc::PTRACE_SEIZE, pid, none, none))?;
        call!(ptrace(libc::PTRACE_INTERRUPT, pid, none, none))?;
        let mut status = 0;
        call!(waitpid(pid, &raw mut status, libc::__WALL))?;
        ensure!(
            libc::WIFSTOPPED(status),
            "the traced process is {status:#x}"
        );
        let bytes = changed()?;
        for offset in (0..expected.len()).step_by(1016) {
            let mut word = 0_u64;
            let address = region.address(0).wrapping_byte_add(offset);
            // The raw call puts the word where the fourth argument says (ptrace(2), C library
            // differences).
            call!(syscall(
                libc::SYS_ptrace,
                libc::PTRACE_PEEKDATA,
                pid,
                address,
                &raw mut word
            ))?;
            let right = &expected[offset..offset + 8];
            ensure!(
                word.to_le_bytes() == *right,
                "the word at {offset} is {word:x}"
            );
        }
        for (index, bytes) in bytes.chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            let address = region.address(PAGES / 2).wrapping_byte_add(8 * index);
            call!(ptrace(
                libc::PTRACE_POKEDATA,
                pid,
                address,
                u64::from_le_bytes(word)
            ))?;
        }
        call!(ptrace(libc::PTRACE_DETACH, pid, none, none))?;
        Ok(())
    })
}

/// Only told of by the file that the kernel writes, so the process dies on purpose.
fn aborts(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    println!("{:x}", region.address(0) as usize);
    ground.evict(&region)?;
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    call!(setrlimit(libc::RLIMIT_CORE, &raw const unlimited))?;
    std::process::abort()
}

fn core_dump(ground: &Ground) -> Result<Outcome, Failure> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    if pattern.trim() != "core"
        || std::fs::read_to_string("/proc/sys/kernel/core_uses_pid")?.trim() != "0"
    {
        return Ok(Outcome::Skipped(
            "the kernel gives dumps to another program",
        ));
    }
    let directory = std::env::temp_dir().join(format!("semantics-core-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let result = dump_in(ground, &directory);
    std::fs::remove_dir_all(&directory)?;
    result.map(|()| Outcome::Passed)
}

fn dump_in(ground: &Ground, directory: &std::path::Path) -> Checked {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--case", "part-aborts", "--alone", "--bytes", "64MiB"]);
    command.args(ground.expect_evicted.then_some("--expect-evicted"));
    command
        .current_dir(directory)
        .stdout(Stdio::piped())
        .process_group(0);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let address = u64::from_str_radix(text.trim(), 16).map_err(|_| Failure(text.clone()))?;
    let dump = File::open(directory.join("core"))?;
    if ground.expect_evicted {
        // Nothing is better than zeros in place of data.
        let pages = (0..PAGES).map(|page| address + page * PAGE_SIZE as u64);
        let found = pages.filter(|&page| position_in_dump(&dump, page).is_ok());
        let count = found.count();
        ensure!(
            count == 0,
            "{count} of {PAGES} evicted pages are in the dump"
        );
        // Nor has it the memory of nodes, which the agent sees: without these, little is left.
        let length = dump.metadata()?.len();
        ensure!(length < 32 << 20, "the dump has {length} bytes");
        return Ok(());
    }
    let expected = bytes_of(&crate::ground::filled_region(PAGES)?);
    let position = position_in_dump(&dump, address)?;
    let mut found = vec![0; expected.len()];
    dump.read_exact_at(&mut found, position)?;
    let pages = found.chunks(PAGE_SIZE).zip(expected.chunks(PAGE_SIZE));
    let zeros = found
        .chunks(PAGE_SIZE)
        .filter(|page| page.iter().all(|byte| *byte == 0));
    let wrong = pages.filter(|(found, expected)| found != expected).count();
    ensure!(
        wrong == 0,
        "{wrong} of {PAGES} pages are wrong in the dump, {} are zeros",
        zeros.count()
    );
    Ok(())
}

/// Where in an ELF core file the memory at an address is (elf(5)): program headers of 56 bytes.
fn position_in_dump(dump: &File, address: u64) -> Result<u64, Failure> {
    let word = |position: u64| -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        dump.read_exact_at(&mut bytes, position)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let (table, count) = (word(32)?, word(56)? & 0xFFFF);
    for header in (0..count).map(|index| table + 56 * index) {
        let (kind, offset) = (word(header)? & 0xFFFF_FFFF, word(header + 8)?);
        let (start, length) = (word(header + 16)?, word(header + 32)?);
        if kind == 1 && (start..start + length).contains(&address) {
            return Ok(offset + (address - start));
        }
    }
    Err(Failure("the memory is not in the dump".to_owned()))
}
