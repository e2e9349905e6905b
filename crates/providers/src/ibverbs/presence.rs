//! Is the device still there? When it is removed the kernel first ends all that processes have of it, so that
//! nothing touches their memory any more, and takes its directory in sysfs away last (`__ib_unregister_device`,
//! Linux 6.18). The library's functions fail from before that on (EIO), which by itself proves nothing.

use rustix::fs::stat;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// A device, as it was when it was opened.
#[derive(Debug)]
pub(super) struct Presence {
    directory: PathBuf,
    /// None if it has no directory: then nothing is known of it.
    inode: Option<u64>,
}

impl Presence {
    pub(super) fn of_device(name: &str) -> Self {
        Self::of(Path::new("/sys/class/infiniband").join(name))
    }

    fn of(directory: PathBuf) -> Self {
        let inode = stat(&directory).ok().map(|found| found.st_ino);
        Self { directory, inode }
    }

    /// It was there, and is not any more, or another one has its name.
    pub(super) fn is_gone(&self) -> bool {
        let Some(before) = self.inode else {
            return false;
        };
        match stat(&self.directory) {
            Ok(found) => found.st_ino != before,
            Err(error) => error == Errno::NOENT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_device_is_gone_with_its_directory_or_when_another_has_its_name() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("mlx5_0");
        let nowhere = Presence::of(directory.clone());
        fs::create_dir(&directory).unwrap();
        let device = Presence::of(directory.clone());
        assert!(!device.is_gone());
        fs::rename(&directory, root.path().join("was")).unwrap();
        assert!(device.is_gone());
        fs::create_dir(&directory).unwrap();
        assert!(device.is_gone());
        fs::remove_dir(&directory).unwrap();
        assert!(!nowhere.is_gone(), "it was never seen");
    }
}
