//! The directory of a run: what its processes find by a path, whatever their user, and whatever their pid and
//! network namespaces. It has the agent's shared object, and the sockets of the supervisor and of the memory
//! nodes that belong to the run.

use super::preload::{OBJECT, OBJECT_NAME};
use crate::failure::{Failure, advised};
use crate::machine;
use rustix::fs::{FlockOperation, Mode, OFlags, StatVfsMountFlags};
use rustix::process::getuid;
use std::fs::{DirBuilder, Permissions};
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The beginning of the names of all such directories.
const PREFIX: &str = "legato-run-";
/// Everybody may go through it and see nothing.
const MODE: u32 = 0o711;
const OBJECT_MODE: u32 = 0o555;
/// Longer ones leave no room for the name of a socket (108 bytes, unix(7)).
const PLACE_MAX: usize = 48;

/// The directory, as the supervisor has it. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    /// Whoever finds the directory unlocked removes it.
    _lock: OwnedFd,
}

impl RunDirectory {
    /// Makes it in the first place that will do, and removes there what others have left behind that were
    /// killed together with their keepers.
    pub(crate) fn create() -> Result<Self, Failure> {
        let failed = |error| Failure::system("cannot draw a random name", error);
        let name = machine::random_name().map_err(failed)?;
        let mut refusals = Vec::new();
        for place in places() {
            let made = check(&place).and_then(|()| Self::create_in(&place, &name));
            match made {
                Ok(directory) => {
                    sweep(&place);
                    return Ok(directory);
                }
                Err(error) => {
                    refusals.push(format!("{}: {}", place.display(), advised(&error)));
                }
            }
        }
        Err(Failure::refused(format_args!(
            "no directory for the run can be made where programs can load the agent from it ({}); let one of \
             them be written to, and mount it without noexec",
            refusals.join("; ")
        )))
    }

    fn create_in(place: &Path, name: &str) -> std::io::Result<Self> {
        // It gets its name when it is locked and complete.
        let unfinished = place.join(format!(".{PREFIX}{name}"));
        let path = place.join(format!("{PREFIX}{name}"));
        DirBuilder::new().mode(MODE).create(&unfinished)?;
        let made = fill(&unfinished).and_then(|lock| {
            std::fs::rename(&unfinished, &path)?;
            Ok(lock)
        });
        match made {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = std::fs::remove_dir_all(&unfinished);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The agent's shared object.
    pub(crate) fn object(&self) -> PathBuf {
        self.path.join(OBJECT_NAME)
    }

    /// The socket of the supervisor.
    pub(crate) fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    /// The socket of a memory node.
    pub(crate) fn node(&self, number: u64) -> PathBuf {
        self.path.join(format!("node-{number}"))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Keeps a run's directory from being taken for one that was left behind.
pub(crate) fn lock(path: &Path) -> std::io::Result<OwnedFd> {
    let directory = open(path)?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockShared)?;
    Ok(directory)
}

/// Removes a run's directory. What cannot be removed is found by a later run.
pub(crate) fn remove(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
}

/// The best first. Not those whose names would mean something in `LD_PRELOAD`.
fn places() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = own.filter(|path| path.is_absolute() && is_usable_name(path));
    let fixed = |path: &str| Some(PathBuf::from(path));
    let all = [fixed("/run"), own, fixed("/dev/shm"), fixed("/tmp")];
    all.into_iter().flatten()
}

fn is_usable_name(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.len() <= PLACE_MAX && !bytes.iter().any(|byte| matches!(byte, b' ' | b':' | b'\n'))
}

/// Programs must be able to load from there, and nobody else to put another directory in the place of ours.
fn check(place: &Path) -> std::io::Result<()> {
    let metadata = std::fs::metadata(place)?;
    let owner = metadata.uid();
    let of_others = metadata.mode() & 0o022 != 0 && metadata.mode() & 0o1000 == 0;
    if owner != 0 && owner != getuid().as_raw() || of_others {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "other users can change it",
        ));
    }
    let mount = rustix::fs::statvfs(place)?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "mounted with noexec",
        ));
    }
    Ok(())
}

fn fill(path: &Path) -> std::io::Result<OwnedFd> {
    let lock = lock(path)?;
    let object = path.join(OBJECT_NAME);
    std::fs::write(&object, OBJECT)?;
    std::fs::set_permissions(&object, Permissions::from_mode(OBJECT_MODE))?;
    // Whatever the umask has taken away.
    std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
    Ok(lock)
}

/// Removes directories of this user's runs that nobody locks.
fn sweep(place: &Path) {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(PREFIX))
    });
    for entry in named {
        let own = entry
            .metadata()
            .is_ok_and(|it| it.is_dir() && it.uid() == getuid().as_raw());
        let path = entry.path();
        if own && open(&path).is_ok_and(|directory| is_unlocked(&directory)) {
            remove(&path);
        }
    }
}

fn is_unlocked(directory: &OwnedFd) -> bool {
    rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn open(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_the_object_and_goes_with_its_run() {
        let directory = RunDirectory::create().unwrap();
        let path = directory.path().to_owned();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(
            (mode(&path), mode(&directory.object())),
            (MODE, OBJECT_MODE)
        );
        assert_eq!(std::fs::read(directory.object()).unwrap(), OBJECT);
        std::fs::write(directory.control(), "").unwrap();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn what_was_left_behind_is_removed_and_what_is_locked_stays() {
        let place = std::env::temp_dir().join(format!("legato-{}-sweep", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let live = RunDirectory::create_in(&place, "live").unwrap();
        let kept = RunDirectory::create_in(&place, "kept").unwrap();
        let keeper = lock(kept.path()).unwrap();
        let dead = RunDirectory::create_in(&place, "dead").unwrap();
        let (kept_path, dead_path) = (kept.path().to_owned(), dead.path().to_owned());
        for killed in [kept, dead] {
            // Nobody cleans up after it.
            let RunDirectory { path: _, ref _lock } = killed;
            rustix::fs::flock(_lock, FlockOperation::Unlock).unwrap();
            std::mem::forget(killed);
        }
        std::fs::create_dir(place.join("another")).unwrap();
        sweep(&place);
        assert!(live.path().exists() && kept_path.exists() && !dead_path.exists());
        drop(keeper);
        sweep(&place);
        assert!(live.path().exists() && !kept_path.exists());
        drop(live);
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn places_that_others_can_change_are_refused() {
        let place = std::env::temp_dir().join(format!("legato-{}-place", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let set = |mode| std::fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
        set(0o755);
        check(&place).unwrap();
        set(0o777);
        assert!(check(&place).is_err());
        set(0o1777);
        check(&place).unwrap();
        assert!(is_usable_name(&place) && !is_usable_name(Path::new("/run/a b")));
        std::fs::remove_dir(&place).unwrap();
        assert!(check(&place).is_err());
    }
}
