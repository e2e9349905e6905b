//! The file of `--stats`: written as a whole or not at all.

use crate::failure::Failure;
use crate::machine;
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Where the statistics go.
#[derive(Debug)]
pub(crate) enum StatsFile {
    /// Written beside and renamed, so that nobody sees half of it.
    Renamed(PathBuf),
    /// A pipe or a device, which a rename would replace.
    Open(PathBuf, File),
}

impl StatsFile {
    /// Finds out now whether the file can be written at the end.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        let failed = |error| refuse(path, error);
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(failed(Errno::ISDIR.into())),
            Ok(metadata) if !metadata.is_file() => {
                let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
                Ok(Self::Open(path.into(), file))
            }
            _ => {
                let beside = beside(path).map_err(failed)?;
                create(&beside).map_err(failed)?;
                std::fs::remove_file(&beside).map_err(failed)?;
                Ok(Self::Renamed(path.into()))
            }
        }
    }

    pub(crate) fn write(self, value: &Value) -> Result<(), Failure> {
        let text = format!("{value:#}\n");
        match self {
            Self::Open(path, mut file) => file
                .write_all(text.as_bytes())
                .map_err(|error| refuse(&path, error)),
            Self::Renamed(path) => {
                write_renamed(&path, &text).map_err(|error| refuse(&path, error))
            }
        }
    }
}

fn write_renamed(path: &Path, text: &str) -> std::io::Result<()> {
    let beside = beside(path)?;
    let result = create(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&beside, path));
    if result.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
    }
    result
}

/// A free name in the same directory, because a rename does not cross file systems.
fn beside(path: &Path) -> std::io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or(std::io::ErrorKind::InvalidFilename)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}", machine::random_name()?));
    Ok(path.with_file_name(hidden))
}

fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn refuse(path: &Path, error: std::io::Error) -> Failure {
    Failure::system(format_args!("cannot write {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn the_file_appears_whole_and_alone() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("stats.json");
        let file = StatsFile::prepare(&path).unwrap();
        assert!(!path.exists());
        file.write(&serde_json::json!({"faults": 3})).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\n  \"faults\": 3\n}\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_found_out_first() {
        let directory = TempDir::new().unwrap();
        assert!(StatsFile::prepare(directory.path()).is_err());
        assert!(StatsFile::prepare(Path::new("/nonexistent/stats.json")).is_err());
        assert!(StatsFile::prepare(Path::new("/proc/stats.json")).is_err());
        assert!(matches!(
            StatsFile::prepare(Path::new("/dev/null")),
            Ok(StatsFile::Open(..))
        ));
    }
}
