//! The environment that the program was started with.

use core::ffi::CStr;
use rustix::fs::{Mode, OFlags};

/// Of the program's own memory, as the kernel or the loader says where it is.
#[derive(Clone, Copy)]
pub(crate) enum Environment {
    /// As the loader passes it: pointers to zero-terminated strings, the last one null.
    Pointers(*const *const u8),
    /// As the kernel has laid it out: the strings one after the other, each with a zero.
    Strings(&'static [u8]),
}

impl Environment {
    /// glibc's loader passes `main`'s arguments to initialisation functions; the System V gABI does not
    /// ask for it, and musl's passes nothing, so that whatever is in the registers comes here. None if
    /// the environment cannot be had at all.
    ///
    /// # Safety
    /// If the environment follows the arguments, they must be the process's.
    pub(crate) unsafe fn find(
        count: i32,
        arguments: *const *const u8,
        environment: *const *const u8,
    ) -> Option<Self> {
        let behind = usize::try_from(count).map(|count| arguments.wrapping_add(count + 1));
        if behind == Ok(environment) && arguments.is_aligned() && count > 0 {
            return Some(Self::Pointers(environment));
        }
        let mut text = [0u8; 2048];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let stat = rustix::fs::open(c"/proc/self/stat", flags, Mode::empty()).ok()?;
        let length = rustix::io::read(&stat, &mut text).ok()?;
        let (start, end) = place(&text[..length])?;
        // SAFETY: the kernel put the strings there when the program was executed, and nothing but the
        // loader has run since.
        let strings = unsafe { core::slice::from_raw_parts(start as *const u8, end - start) };
        Some(Self::Strings(strings))
    }

    /// # Safety
    /// Pointers must be as described.
    pub(crate) unsafe fn variable(self, name: &[u8]) -> Option<&'static [u8]> {
        match self {
            // SAFETY: the caller's promise.
            Self::Pointers(first) => unsafe { find_variable(first, name) },
            Self::Strings(strings) => strings
                .split(|&byte| byte == 0)
                .find_map(|text| text.strip_prefix(name)),
        }
    }
}

/// Where the environment begins and ends: fields 50 and 51 of proc_pid_stat(5). The second field is a
/// name in parentheses, which may have spaces and parentheses itself.
fn place(stat: &[u8]) -> Option<(usize, usize)> {
    let stat = core::str::from_utf8(stat.rsplit(|&byte| byte == b')').next()?).ok()?;
    let mut fields = stat.split_ascii_whitespace().skip(50 - 3);
    let start = fields.next()?.parse().ok()?;
    let end = fields.next()?.parse().ok()?;
    (start != 0 && start < end).then_some((start, end))
}

/// # Safety
/// As for [`Environment::variable`].
unsafe fn find_variable(environment: *const *const u8, variable: &[u8]) -> Option<&'static [u8]> {
    let mut place = environment;
    loop {
        // SAFETY: `place` is inside the array or at its final null pointer.
        let text = unsafe { *place };
        if text.is_null() {
            return None;
        }
        // SAFETY: a zero-terminated string that stays at least until `main`.
        let text = unsafe { CStr::from_ptr(text.cast()) }.to_bytes();
        if let Some(value) = text.strip_prefix(variable) {
            return Some(value);
        }
        // SAFETY: not yet at the final null pointer.
        place = unsafe { place.add(1) };
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn stat(name: &str, start: &str) -> Vec<u8> {
        let zeros = std::iter::repeat_n("0", 46).collect::<Vec<_>>().join(" ");
        std::format!("17 ({name}) S {zeros} {start} 140737488351000 0").into_bytes()
    }

    #[test]
    fn the_environment_is_where_the_kernel_says() {
        let expected = Some((140_737_488_350_000, 140_737_488_351_000));
        for name in ["cat", "a) S 1 (b", ""] {
            assert_eq!(place(&stat(name, "140737488350000")), expected, "{name}");
        }
        assert_eq!(place(&stat("cat", "0")), None);
        assert_eq!(place(b"17 (cat) S 0 0"), None);
        assert_eq!(place(b""), None);
    }

    #[test]
    fn arguments_that_were_not_passed_are_not_followed() {
        let strings: [*const u8; 4] = [
            c"program".as_ptr().cast(),
            core::ptr::null(),
            c"A=1".as_ptr().cast(),
            core::ptr::null(),
        ];
        let arguments = strings.as_ptr();
        // SAFETY: they are arguments and an environment.
        let passed = unsafe { Environment::find(1, arguments, arguments.wrapping_add(2)) };
        // SAFETY: as above.
        let value = unsafe { passed.and_then(|passed| passed.variable(b"A=")) };
        assert_eq!(value, Some(&b"1"[..]));
        // What musl 1.2.3 left in the registers.
        // SAFETY: the environment does not follow the arguments.
        let none = unsafe { Environment::find(1, 0x7fff_f7e3_ab92 as *const _, 0xf as *const _) };
        assert!(matches!(none, Some(Environment::Strings(_))));
        let path = std::env::var("PATH").unwrap();
        // SAFETY: there are no pointers.
        let found = unsafe { none.and_then(|none| none.variable(b"PATH=")) };
        assert_eq!(found, Some(path.as_bytes()));
    }
}
