use super::*;
use std::fs::Permissions;
use tempfile::TempDir;

const PT_LOAD: u32 = 1;
const EM_AARCH64: u16 = 183;

/// A 64-bit ELF header with one program header of the given type.
fn elf64(machine: u16, segment: u32) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    bytes.resize(16, 0);
    bytes.extend(ET_DYN.to_le_bytes());
    bytes.extend(machine.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([0u64, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(0u32.to_le_bytes());
    // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
    bytes.extend(
        [64u16, 56, 1, 64, 0, 0]
            .iter()
            .flat_map(|half| half.to_le_bytes()),
    );
    bytes.extend(segment.to_le_bytes());
    bytes.resize(64 + 56, 0);
    bytes
}

fn elf32() -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0];
    bytes.resize(16, 0);
    bytes.extend(ET_EXEC.to_le_bytes());
    bytes.extend(3u16.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.resize(52, 0);
    bytes
}

fn program(directory: &TempDir, name: &str, content: &[u8], mode: u32) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn exit_code<T: std::fmt::Debug>(result: Result<T, ProgramError>) -> Option<u8> {
    Failure::from(result.unwrap_err()).code
}

#[test]
fn a_dynamic_program_is_found_in_the_path() {
    let shell = find(OsStr::new("sh")).unwrap();
    assert!(shell.path.ends_with("sh") && shell.has_loader);
    assert!(find(OsStr::new("/bin/sh")).unwrap().has_loader);
}

#[test]
fn kinds_of_executables_are_told_apart() {
    let directory = TempDir::new().unwrap();
    let find_kind = |content: &[u8]| find(program(&directory, "kind", content, 0o755).as_os_str());
    assert!(find_kind(&elf64(EM_X86_64, PT_INTERP)).unwrap().has_loader);
    assert!(!find_kind(&elf64(EM_X86_64, PT_LOAD)).unwrap().has_loader);
    let foreign = find_kind(&elf64(EM_AARCH64, PT_INTERP));
    assert!(matches!(foreign, Err(ProgramError::ForeignMachine(_))));
    assert!(matches!(
        find_kind(&elf32()),
        Err(ProgramError::ThirtyTwoBit(_))
    ));
    let text = find_kind(b"echo hello\n");
    assert!(matches!(text, Err(ProgramError::UnknownFormat(_))));
    assert!(matches!(
        find_kind(b""),
        Err(ProgramError::UnknownFormat(_))
    ));
}

#[test]
fn scripts_are_judged_by_their_interpreter() {
    let directory = TempDir::new().unwrap();
    let script = |name: &str, line: String| program(&directory, name, line.as_bytes(), 0o755);
    assert!(find(script("good", "#! /bin/sh -e\ntrue\n".into()).as_os_str()).is_ok());
    let fixed = program(&directory, "fixed", &elf64(EM_X86_64, PT_LOAD), 0o755);
    let inner = script("inner", format!("#!{}\n", fixed.display()));
    let outer = script("outer", format!("#!{}\n", inner.display()));
    let found = find(outer.as_os_str()).unwrap();
    assert_eq!((found.path, found.has_loader), (outer, false));
    let lost = script("lost", "#!/nonexistent/interpreter\n".into());
    assert_eq!(exit_code(find(lost.as_os_str())), Some(EXIT_NOT_FOUND));
    let endless = directory.path().join("endless");
    script("endless", format!("#!{}\n", endless.display()));
    assert_eq!(
        exit_code(find(endless.as_os_str())),
        Some(EXIT_NOT_EXECUTABLE)
    );
}

#[test]
fn missing_and_forbidden_programs_have_the_shells_exit_codes() {
    let directory = TempDir::new().unwrap();
    assert_eq!(
        exit_code(find(OsStr::new("no-such-program-anywhere"))),
        Some(EXIT_NOT_FOUND)
    );
    assert_eq!(
        exit_code(find(OsStr::new("/no/such/program"))),
        Some(EXIT_NOT_FOUND)
    );
    assert_eq!(exit_code(find(OsStr::new(""))), Some(EXIT_NOT_FOUND));
    let plain = program(&directory, "plain", b"#!/bin/sh\n", 0o644);
    assert_eq!(
        exit_code(find(plain.as_os_str())),
        Some(EXIT_NOT_EXECUTABLE)
    );
    assert_eq!(
        exit_code(find(directory.path().as_os_str())),
        Some(EXIT_NOT_EXECUTABLE)
    );
    let found = resolve(OsStr::new("plain"), directory.path().as_os_str());
    assert_eq!(exit_code(found), Some(EXIT_NOT_EXECUTABLE));
}

#[test]
fn a_later_executable_match_wins_over_an_earlier_forbidden_one() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    program(&first, "tool", b"", 0o644);
    let good = program(&second, "tool", b"", 0o755);
    let path = std::env::join_paths([first.path(), second.path()]).unwrap();
    assert_eq!(resolve(OsStr::new("tool"), &path).unwrap(), good);
}

#[test]
fn programs_that_gain_rights_are_refused() {
    let directory = TempDir::new().unwrap();
    let path = program(&directory, "setuid", &elf64(EM_X86_64, PT_INTERP), 0o4755);
    assert!(matches!(
        find(path.as_os_str()),
        Err(ProgramError::Privileged(_))
    ));
    assert_eq!(exit_code(find(path.as_os_str())), None);
}
