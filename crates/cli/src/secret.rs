//! The secret that a node and those who use it share, as a file: made by `legato secret new`, and read by
//! whatever serves or connects.

use crate::args::{SecretArguments, SecretNewArguments};
use crate::failure::{Failure, advised};
use crate::machine;
use crate::output;
use legato_base::secret::{RunId, RunKey, SECRET_TEXT_LENGTH, Secret, SecureRandom, wipe};
use legato_verbs::Address;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Permissions of a new file, and the most that one that is read may have beside what its owner may do.
const OWNER_ONLY: u32 = 0o600;
const OTHERS: u32 = 0o077;
/// Bytes of a file that are looked at: a secret and the end of its line.
const FILE_LENGTH_MAX: usize = SECRET_TEXT_LENGTH + 2;

/// `legato secret new`.
pub(crate) fn run(arguments: &SecretNewArguments) -> Result<u8, Failure> {
    let secret = Secret::draw(&mut random()?);
    let mut text = secret.to_text().into_bytes();
    text.push(b'\n');
    let result = match &arguments.file {
        Some(file) => write_new(file, &text).and_then(|()| output::print(file.display())),
        None => output::write(&text),
    };
    wipe(&mut text);
    result.map(|()| 0)
}

/// What other machines reach is reached by whoever knows the secret; shm needs none, because the kernel
/// says who is at the other end of its socket.
pub(crate) const fn is_for(address: &Address) -> bool {
    match address {
        Address::Roce(_)
        | Address::RoceService(_)
        | Address::RoceTcp(_)
        | Address::Verbs(_)
        | Address::VerbsPort(_)
        | Address::Any(_) => true,
        Address::Shm(_) | Address::Sim(_) => false,
    }
}

impl SecretArguments {
    /// The secret, if one was named and an address needs it.
    pub(crate) fn load(&self, addresses: &[Address]) -> Result<Option<Secret>, Failure> {
        let file = self.secret_file.as_deref();
        match file.filter(|_| addresses.iter().any(is_for)) {
            Some(file) => read(file).map(Some),
            None => Ok(None),
        }
    }

    /// The key of a new run.
    pub(crate) fn new_run(&self, addresses: &[Address]) -> Result<Option<RunKey>, Failure> {
        let secret = self.load(addresses)?;
        let mut random = random()?;
        Ok(secret.map(|secret| {
            let mut id = RunId([0; _]);
            random.fill(&mut id.0);
            secret.key_of(id)
        }))
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        let file = self.secret_file.as_deref();
        file.map_or_else(|| "no file".to_owned(), |file| file.display().to_string())
    }
}

/// Randomness that nobody can guess.
pub(crate) fn random() -> Result<SecureRandom, Failure> {
    let seed = machine::random_bytes();
    seed.map(SecureRandom::from_seed)
        .map_err(|error| Failure::system("cannot draw a random number", error))
}

fn write_new(file: &Path, text: &[u8]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::system(file.display(), error);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let opened = rustix::fs::open(file, flags, Mode::from_raw_mode(OWNER_ONLY));
    let descriptor = match opened {
        Err(Errno::EXIST) => {
            return Err(Failure::refused(format_args!(
                "{}: the file exists already, and a secret is never overwritten; name another one",
                file.display()
            )));
        }
        other => other.map_err(|error| failed(error.into()))?,
    };
    let mut opened = std::fs::File::from(descriptor);
    opened
        .write_all(text)
        .and_then(|()| opened.sync_all())
        .map_err(failed)
}

fn read(file: &Path) -> Result<Secret, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::refused(format_args!("secret file {}: {why}", file.display()))
    };
    // A pipe without a writer must not keep the command waiting.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(file, flags, Mode::empty());
    let opened = opened.map_err(|error| refused(&advised(&error.into())))?;
    let mut opened = std::fs::File::from(opened);
    let facts = opened
        .metadata()
        .map_err(|error| refused(&advised(&error)))?;
    if !facts.is_file() {
        return Err(refused(
            &"it is no file; name one that legato secret new has made",
        ));
    }
    if facts.mode() & OTHERS != 0 {
        let mode = facts.mode() & 0o7777;
        return Err(refused(&format_args!(
            "others than its owner may use it (mode {mode:04o}); chmod 600 it, and make a new secret if \
             others could read it"
        )));
    }
    let own = rustix::process::geteuid();
    if !own.is_root() && facts.uid() != own.as_raw() && facts.uid() != 0 {
        return Err(refused(
            &"it belongs to another user; make a copy of your own",
        ));
    }
    let mut bytes = [0; FILE_LENGTH_MAX + 1];
    let mut length = 0;
    while length < bytes.len() {
        match opened.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) => return Err(refused(&advised(&error))),
        }
    }
    let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
    let secret =
        Secret::from_text(text).map_err(|error| refused(&format_args!("{error}; copy it again")));
    wipe(&mut bytes);
    secret
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_new_secret_is_its_owners_and_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        let arguments = SecretNewArguments {
            file: Some(file.clone()),
        };
        assert_eq!(run(&arguments).unwrap(), 0);
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        let secret = read(&file).unwrap();
        let again = run(&arguments).unwrap_err();
        assert!(again.text.contains("never overwritten"), "{}", again.text);
        assert!(read(&file).unwrap() == secret);
    }

    #[test]
    fn what_other_machines_reach_needs_a_secret() {
        for (address, needs) in [
            ("shm:@a", false),
            ("roce://192.0.2.1", true),
            ("roce://192.0.2.1/7000", true),
            ("roce+tcp://192.0.2.1", true),
            ("verbs://192.0.2.1", true),
            ("verbs://mlx5_0/1", true),
            ("192.0.2.1", true),
        ] {
            assert_eq!(is_for(&address.parse().unwrap()), needs, "{address}");
        }
    }

    #[test]
    fn a_file_that_others_may_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        let arguments = SecretNewArguments {
            file: Some(file.clone()),
        };
        run(&arguments).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o610, 0o601] {
            set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let text = read(&file).unwrap_err().text;
            assert!(text.contains(&format!("mode {mode:04o}")), "{text}");
        }
        for mode in [0o600, 0o400] {
            set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert!(read(&file).is_ok());
        }
    }

    #[test]
    fn what_is_no_secret_is_refused_and_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        let arguments = SecretNewArguments {
            file: Some(file.clone()),
        };
        run(&arguments).unwrap();
        let good = std::fs::read_to_string(&file).unwrap();
        for bad in [
            good[..40].to_owned(),
            good.replace("-1 ", "-2 "),
            format!("{good}{good}"),
            String::new(),
            "hunter2".to_owned(),
        ] {
            std::fs::write(&file, &bad).unwrap();
            let text = read(&file).unwrap_err().text;
            assert!(
                text.lines().count() == 1 && !text.contains("hunter2"),
                "{text}"
            );
            assert!(!text.contains(&good[20..40]), "{text}");
        }
        assert!(read(directory.path()).unwrap_err().text.contains("no file"));
        assert!(read(&directory.path().join("none")).is_err());
    }
}
