//! `legato allow-users`.

use super::{CAPABILITY, DEVICE, INSTALLED};
use crate::args::AllowUsersArguments;
use crate::failure::{Failure, advised};
use crate::output::print;
use rustix::fs::XattrFlags;
use std::fs::{self, Permissions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

const HELPER: &str = "legato-uffd";
/// Sets the device's permissions when the machine starts.
const RULE: &str = "/etc/udev/rules.d/60-legato-userfaultfd.rules";
/// Permission and effective set of CAP_SYS_PTRACE (19), as the kernel has it in [`CAPABILITY`]
/// (`struct vfs_cap_data` of linux/capability.h).
const SYS_PTRACE: [u32; 5] = [0x0200_0001, 1 << 19, 0, 0, 0];
const ROOT: u32 = 0;

/// Who may.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    Everybody,
    Group { name: String, number: u32 },
}

impl Allowed {
    fn group(&self) -> u32 {
        match self {
            Self::Everybody => ROOT,
            Self::Group { number, .. } => *number,
        }
    }

    const fn mode_of_helper(&self) -> u32 {
        match self {
            Self::Everybody => 0o755,
            Self::Group { .. } => 0o750,
        }
    }

    const fn mode_of_device(&self) -> u32 {
        match self {
            Self::Everybody => 0o666,
            Self::Group { .. } => 0o660,
        }
    }

    fn rule(&self) -> String {
        let group = match self {
            Self::Everybody => String::new(),
            Self::Group { name, .. } => format!(", GROUP=\"{name}\""),
        };
        let mode = self.mode_of_device();
        format!("KERNEL==\"userfaultfd\", MODE=\"{mode:04o}\"{group}\n")
    }

    fn words(&self) -> String {
        match self {
            Self::Everybody => "every user".to_owned(),
            Self::Group { name, .. } => format!("every member of the group {name}"),
        }
    }
}

/// Allows it, or takes that back.
pub(crate) fn run(arguments: &AllowUsersArguments) -> Result<u8, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::refused(
            "only root can allow others to use far memory; run it as root",
        ));
    }
    if arguments.undo {
        return undo();
    }
    let allowed = match &arguments.group {
        None => Allowed::Everybody,
        Some(name) => Allowed::Group {
            name: name.clone(),
            number: group(name)?,
        },
    };
    let helper = beside_this_program()?;
    let failed =
        |what: &str, error: Error| Failure::refused(format_args!("{what}: {}", advised(&error)));
    open_device(&allowed).map_err(|error| failed(DEVICE, error))?;
    install(&helper, &allowed).map_err(|error| failed(INSTALLED, error))?;
    let lasts = write_rule(&allowed).map_err(|error| failed(RULE, error))?;
    let again = match lasts {
        true => "",
        false => " This machine has no udev: after its next start this has to be done again.",
    };
    print(format_args!(
        "From now on {} may run programs on far memory. With that they may use userfaultfd in full mode, with which other \
         defects of a kernel are easier to use (sysctl vm.unprivileged_userfaultfd of the kernel's documentation). \
         legato allow-users --undo takes it back.{again}",
        allowed.words()
    ))?;
    Ok(0)
}

fn undo() -> Result<u8, Failure> {
    let removed = |path: &str| match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::refused(format_args!(
            "{path}: {}",
            advised(&error)
        ))),
        _ => Ok(()),
    };
    removed(INSTALLED)?;
    removed(RULE)?;
    let closed = fs::set_permissions(DEVICE, Permissions::from_mode(0o600));
    closed
        .and_then(|()| chown(DEVICE, Some(ROOT), Some(ROOT)))
        .or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(Failure::refused(format_args!(
                "{DEVICE}: {}",
                advised(&error)
            ))),
        })?;
    print("From now on only root may run programs on far memory; what runs already goes on.")?;
    Ok(0)
}

/// Its number, from /etc/group (group(5)).
fn group(name: &str) -> Result<u32, Failure> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    number_of(&groups, name).ok_or_else(|| {
        Failure::refused(format_args!(
            "there is no group {name}; make it (groupadd), or name another"
        ))
    })
}

fn number_of(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

fn beside_this_program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().unwrap_or_default();
    let helper = own.with_file_name(HELPER);
    match helper.is_file() {
        true => Ok(helper),
        false => Err(Failure::refused(format_args!(
            "{}: there is no {HELPER} beside this legato; install both",
            helper.display()
        ))),
    }
}

fn open_device(allowed: &Allowed) -> std::io::Result<()> {
    chown(DEVICE, Some(ROOT), Some(allowed.group()))?;
    fs::set_permissions(DEVICE, Permissions::from_mode(allowed.mode_of_device()))
}

/// Nobody can use it before it is complete.
fn install(helper: &Path, allowed: &Allowed) -> std::io::Result<()> {
    let installed = Path::new(INSTALLED);
    fs::create_dir_all(installed.parent().unwrap_or(Path::new("/")))?;
    let new = installed.with_extension("new");
    let _ = fs::remove_file(&new);
    fs::copy(helper, &new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o700))?;
    chown(&new, Some(ROOT), Some(allowed.group()))?;
    let capability: Vec<u8> = SYS_PTRACE
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    rustix::fs::setxattr(&new, CAPABILITY, &capability, XattrFlags::empty())?;
    fs::set_permissions(&new, Permissions::from_mode(allowed.mode_of_helper()))?;
    fs::rename(&new, installed)
}

/// False where nothing reads it.
fn write_rule(allowed: &Allowed) -> std::io::Result<bool> {
    let rule = Path::new(RULE);
    if !rule.parent().is_some_and(Path::is_dir) {
        return Ok(false);
    }
    fs::write(rule, allowed.rule())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_their_names() {
        let groups = "root:x:0:\nmemory:x:1017:ada,grace\nbroken\n";
        assert_eq!(number_of(groups, "memory"), Some(1017));
        assert_eq!(number_of(groups, "mem"), None);
        assert_eq!(number_of(groups, "broken"), None);
    }

    #[test]
    fn the_rule_says_who_may_open_the_device() {
        let name = "memory".to_owned();
        let group = Allowed::Group { name, number: 7 };
        let rule = "KERNEL==\"userfaultfd\", MODE=\"0660\", GROUP=\"memory\"\n";
        assert_eq!(group.rule(), rule);
        assert_eq!(
            Allowed::Everybody.rule(),
            "KERNEL==\"userfaultfd\", MODE=\"0666\"\n"
        );
        assert_eq!((group.mode_of_helper(), group.group()), (0o750, 7));
    }
}
