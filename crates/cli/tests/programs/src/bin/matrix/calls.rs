//! System calls, by address: a range that is given here is a case's memory, which no Rust object lives in.

use crate::probe::Signal;

/// The result of a call, or its errno.
pub(crate) type Outcome = Result<usize, i32>;

/// A system call, as anybody may make it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: libc::c_long,
    pub(crate) arguments: [usize; 6],
}

impl Call {
    pub(crate) fn new<const N: usize>(number: libc::c_long, given: [usize; N]) -> Self {
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&given);
        Self { number, arguments }
    }

    pub(crate) fn make(&self) -> Outcome {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: the calls of the cases change memory of the cases only, which is reached by address.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        usize::try_from(result).map_err(|_| errno())
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Makes a call at once.
pub(crate) fn call<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> Outcome {
    Call::new(number, arguments).make()
}

pub(crate) fn map(
    address: usize,
    length: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    file: libc::c_int,
) -> Outcome {
    let [protection, flags] = [protection, flags].map(|number| number as usize);
    call(
        libc::SYS_mmap,
        [address, length, protection, flags, file as usize, 0],
    )
}

pub(crate) fn name(outcome: Outcome) -> String {
    match outcome {
        Ok(value) => value.to_string(),
        Err(errno) => errno_name(errno),
    }
}

pub(crate) fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EINVAL => "EINVAL",
        libc::ENOSYS => "ENOSYS",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        errno => return format!("errno {errno}"),
    };
    name.to_owned()
}

pub(crate) fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::Segv => "segv",
        Signal::Bus => "bus",
    }
}
