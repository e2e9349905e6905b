//! The agent's shared object, as a file that the dynamic loader can open without any file system
//! having it.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

/// The name of the file, as mappings of it show it.
pub(crate) const OBJECT_NAME: &str = "legato-agent.so";

pub(crate) static OBJECT: &[u8] = include_bytes!(env!("LEGATO_AGENT_OBJECT"));

/// The object in memory. It is there for as long as this value lives.
#[derive(Debug)]
pub(crate) struct PreloadFile {
    file: File,
}

impl PreloadFile {
    pub(crate) fn create() -> std::io::Result<Self> {
        let create = |flags| memfd_create(OBJECT_NAME, flags);
        // Where vm.memfd_noexec is 1, a file is executable only if that is asked for; kernels
        // before 6.3 do not know the question (memfd_create(2)).
        let descriptor = match create(MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
            Err(Errno::INVAL) => create(MemfdFlags::CLOEXEC)?,
            result => result?,
        };
        let mut file = File::from(descriptor);
        file.write_all(OBJECT)?;
        Ok(Self { file })
    }

    /// The value of `LD_PRELOAD`: this object first, then what the user had there. The path leads
    /// through this process, so that programs need not inherit a descriptor.
    pub(crate) fn variable(&self, inherited: Option<OsString>) -> OsString {
        let own = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        let mut value = OsString::from(own);
        if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
            value.push(":");
            value.push(inherited);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_can_be_opened_by_its_path() {
        let preload = PreloadFile::create().unwrap();
        let value = preload.variable(Some("/lib/other.so".into()));
        let value = value.into_string().unwrap();
        let (own, rest) = value.split_once(':').unwrap();
        assert_eq!(rest, "/lib/other.so");
        assert_eq!(std::fs::read(own).unwrap(), OBJECT);
        assert!(
            !preload
                .variable(Some("".into()))
                .into_string()
                .unwrap()
                .contains(':')
        );
    }
}
