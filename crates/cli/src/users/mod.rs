//! Far memory for ordinary users, which root allows once: `legato allow-users`, and the helper that it installs.

mod allow;
mod helper;

pub(crate) use allow::run;
pub(crate) use helper::Helper;

/// Where the helper is, owned by root. The one beside this program is not asked: it has no capability.
pub(crate) const INSTALLED: &str = "/usr/local/libexec/legato-uffd";
/// The device that userfaultfds are made from (Linux 6.1).
pub(crate) const DEVICE: &str = "/dev/userfaultfd";
/// The extended attribute with what a program may do (capabilities(7)).
const CAPABILITY: &str = "security.capability";

/// Is the helper there, with its capability?
pub(crate) fn is_installed() -> bool {
    rustix::fs::getxattr(INSTALLED, CAPABILITY, &mut [0u8; 64]).is_ok()
}
