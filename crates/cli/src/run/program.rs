//! Whether the program can run on far memory, found out before anything is started.
//!
//! The program must be this machine's 64-bit code. The agent enters through `LD_PRELOAD` where
//! there is a dynamic loader, and that must not be in secure-execution mode (`ld.so(8)`); where
//! there is none, through `ptrace(2)`. Programs that gain rights are not for either: traced, they
//! would silently start without those.

use crate::failure::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Failure, advised};
use elf::ElfStream;
use elf::abi::{EM_X86_64, ET_DYN, ET_EXEC, PT_INTERP};
use elf::endian::AnyEndian;
use elf::file::Class;
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Scripts whose interpreters are scripts: the kernel follows four (`execve(2)`).
const INTERPRETER_DEPTH_MAX: u32 = 4;
/// The kernel reads this much of a script's first line (Linux 5.1 and later, `execve(2)`).
const SCRIPT_LINE_MAX: u64 = 255;
/// Where programs are when PATH is not set (`execvp(3)`).
const DEFAULT_PATH: &str = "/bin:/usr/bin";
const SET_USER_OR_GROUP_ID: u32 = 0o6000;

/// Why a program is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("{}: no such program; check its name, and PATH", .0.display())]
    NotFound(PathBuf),
    #[error("{}: not executable; give it the right to be (chmod +x), or name another file", .0.display())]
    NotExecutable(PathBuf),
    #[error("{}: neither a program nor a script with an interpreter; name its interpreter before it", .0.display())]
    UnknownFormat(PathBuf),
    #[error("{}: cannot be read: {}", .program.display(), advised(cause))]
    Unreadable {
        program: PathBuf,
        cause: std::io::Error,
    },
    #[error("{}: 32-bit programs cannot run on far memory; use a 64-bit build", .0.display())]
    ThirtyTwoBit(PathBuf),
    #[error("{}: built for another kind of processor; use a build for x86-64", .0.display())]
    ForeignMachine(PathBuf),
    #[error(
        "{}: it changes user, group or capabilities when it starts (setuid), so the system does \
         not let an agent into it; run it without legato", .0.display()
    )]
    Privileged(PathBuf),
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Self {
        let code = match error {
            ProgramError::NotFound(_) => Some(EXIT_NOT_FOUND),
            ProgramError::NotExecutable(_) | ProgramError::UnknownFormat(_) => {
                Some(EXIT_NOT_EXECUTABLE)
            }
            _ => None,
        };
        Self {
            code,
            text: error.to_string(),
        }
    }
}

/// A program that can be started with an agent.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// A dynamic loader starts it, or the interpreter if it is a script.
    pub(crate) has_loader: bool,
}

/// Finds the program as `execvp(3)` does and checks that it can be started with an agent.
pub(crate) fn find(name: &OsStr) -> Result<Found, ProgramError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let program = resolve(name, &path)?;
    let has_loader = check(&program, 0)?;
    Ok(Found {
        path: program,
        has_loader,
    })
}

fn resolve(name: &OsStr, path: &OsStr) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        let program = PathBuf::from(name);
        check_executable(&program)?;
        return Ok(program);
    }
    let not_found = || ProgramError::NotFound(name.into());
    if name.is_empty() {
        return Err(not_found());
    }
    // A match that may not be executed does not end the search, but it is the better answer.
    let mut refused = None;
    for directory in std::env::split_paths(path) {
        let program = if directory.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            directory.join(name)
        };
        match check_executable(&program) {
            Ok(()) => return Ok(program),
            Err(error @ ProgramError::NotExecutable(_)) => refused = refused.or(Some(error)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(not_found))
}

fn check_executable(program: &Path) -> Result<(), ProgramError> {
    let metadata = std::fs::metadata(program).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => ProgramError::NotExecutable(program.into()),
        _ => ProgramError::NotFound(program.into()),
    })?;
    // As root, access(2) grants execution only if some execute bit is set, as execve(2) does.
    let allowed = rustix::fs::accessat(CWD, program, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
    if metadata.is_file() && allowed {
        Ok(())
    } else {
        Err(ProgramError::NotExecutable(program.into()))
    }
}

/// Does a dynamic loader start it?
fn check(program: &Path, depth: u32) -> Result<bool, ProgramError> {
    let unreadable = |cause| ProgramError::Unreadable {
        program: program.into(),
        cause,
    };
    let mut file = File::open(program).map_err(unreadable)?;
    let mut start = Vec::new();
    file.by_ref()
        .take(SCRIPT_LINE_MAX)
        .read_to_end(&mut start)
        .map_err(unreadable)?;
    if let Some(interpreter) = script_interpreter(&start) {
        if depth == INTERPRETER_DEPTH_MAX {
            return Err(ProgramError::UnknownFormat(program.into()));
        }
        let interpreter = PathBuf::from(interpreter);
        check_executable(&interpreter)?;
        return check(&interpreter, depth + 1);
    }
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.permissions().mode() & SET_USER_OR_GROUP_ID != 0 || has_capabilities(&file) {
        return Err(ProgramError::Privileged(program.into()));
    }
    file.rewind().map_err(unreadable)?;
    check_elf(program, file)
}

/// The interpreter that a script's first line names.
fn script_interpreter(start: &[u8]) -> Option<OsString> {
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let word = line
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\r' | 0))
        .find(|word| !word.is_empty())?;
    Some(OsString::from_vec(word.to_vec()))
}

/// File capabilities raise the program's rights as setuid does (`capabilities(7)`).
fn has_capabilities(file: &File) -> bool {
    rustix::fs::fgetxattr(file, "security.capability", &mut [0u8; 64]).is_ok()
}

/// True for a program that a dynamic loader starts.
pub(crate) fn is_dynamic(program: &Path) -> bool {
    let Ok(file) = File::open(program) else {
        return false;
    };
    ElfStream::<AnyEndian, _>::open_stream(file).is_ok_and(|elf| has_interpreter(&elf))
}

fn has_interpreter(elf: &ElfStream<AnyEndian, File>) -> bool {
    let mut segments = elf.segments().iter();
    segments.any(|segment| segment.p_type == PT_INTERP)
}

fn check_elf(program: &Path, file: File) -> Result<bool, ProgramError> {
    let elf = ElfStream::<AnyEndian, _>::open_stream(file)
        .map_err(|_| ProgramError::UnknownFormat(program.into()))?;
    if elf.ehdr.class == Class::ELF32 {
        return Err(ProgramError::ThirtyTwoBit(program.into()));
    }
    if elf.ehdr.e_machine != EM_X86_64 {
        return Err(ProgramError::ForeignMachine(program.into()));
    }
    if !matches!(elf.ehdr.e_type, ET_EXEC | ET_DYN) {
        return Err(ProgramError::UnknownFormat(program.into()));
    }
    Ok(has_interpreter(&elf))
}

#[cfg(test)]
mod tests;
