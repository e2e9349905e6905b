//! Reads the memory of another process (process_vm_readv(2)), which waits for pages that are missing.
//!
//! `peek PID`: a word of each page of the largest mapping that is filled with no zeros. Prints
//! `reading`, and in the end `peek: R read, Z zeros, E errors`.

use legato_base::PAGE_SIZE;
use legato_test_programs::end_at_a_panic;

fn main() {
    end_at_a_panic();
    let pid = std::env::args().nth(1).expect("the id of a process");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let largest = maps
        .lines()
        .filter_map(mapping)
        .max_by_key(|(start, end)| end - start);
    let (start, end) = largest.expect("a mapping");
    let pid = pid.parse().expect("a number");
    println!("reading");
    let (mut read, mut zeros, mut errors) = (0, 0, 0);
    for address in (start..end).step_by(PAGE_SIZE) {
        match word(pid, address) {
            Some(0) => zeros += 1,
            Some(_) => read += 1,
            None => errors += 1,
        }
    }
    println!("peek: {read} read, {zeros} zeros, {errors} errors");
}

/// Start and end of one that is private, anonymous and writable.
fn mapping(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let found = (number(start)?, number(end)?);
    (fields.next()? == "rw-p" && fields.nth(2)? == "0" && fields.next().is_none()).then_some(found)
}

fn word(pid: libc::pid_t, address: usize) -> Option<u64> {
    let mut word = 0u64;
    let vector = |base: *mut u64| libc::iovec {
        iov_base: base.cast(),
        iov_len: size_of::<u64>(),
    };
    let (local, remote) = (vector(&raw mut word), vector(address as *mut u64));
    // SAFETY: eight bytes are written to a local variable.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    (read == 8).then_some(word)
}
