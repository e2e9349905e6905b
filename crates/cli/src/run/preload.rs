//! The agent's shared object, and how programs are told to load it.

use std::ffi::OsString;
use std::path::Path;

/// The name of the file, as mappings of it show it. It has the name of AddressSanitizer's library in it: that ends a
/// program in which another object comes before it, which could take its place for functions of the C library; but
/// not one with this in its path (`AsanCheckDynamicRTPrereqs` in compiler-rt/lib/asan/asan_linux.cpp). This object
/// takes no place.
pub(crate) const OBJECT_NAME: &str = "legato-agent-before-libasan.so";

pub(crate) static OBJECT: &[u8] = include_bytes!(env!("LEGATO_AGENT_OBJECT"));

/// The value of `LD_PRELOAD`: the object first, then what the user had there.
pub(crate) fn variable(object: &Path, inherited: Option<OsString>) -> OsString {
    let mut value = object.as_os_str().to_owned();
    if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
        value.push(":");
        value.push(inherited);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_comes_before_what_was_there() {
        let value = |inherited: Option<&str>| {
            let value = variable(Path::new("/run/it"), inherited.map(OsString::from));
            value.into_string().unwrap()
        };
        assert_eq!(value(Some("/lib/other.so")), "/run/it:/lib/other.so");
        assert_eq!(value(Some("")), "/run/it");
        assert_eq!(value(None), "/run/it");
    }
}
