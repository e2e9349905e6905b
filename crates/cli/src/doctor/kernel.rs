//! What the kernel has, and who may use it.

use super::check::Check;
use super::limits::{number, text};
use crate::users;
use legato_base::SystemError;
use legato_pager::uffd::OpenError;
use legato_pager::uffd::probe::{Offer, Offered, version_of};
use std::os::unix::fs::MetadataExt as _;

/// From here on nothing is missing that costs time or more (UFFDIO_MOVE).
const NEWEST_NEEDED: (u32, u32) = (6, 8);
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";
const ALLOW: &str =
    "only root runs programs on far memory until it has allowed others to (legato allow-users)";
const GRANT: &str =
    "run as root (CAP_SYS_PTRACE), or let root allow it to others (legato allow-users)";

pub(super) fn checks(offer: &Offer) -> Vec<Check> {
    let mut checks = vec![
        version(&text("/proc/sys/kernel/osrelease").unwrap_or_default()),
        present_user(offer),
        ordinary_user(
            std::fs::metadata(users::DEVICE)
                .map(|device| device.mode())
                .ok(),
            number(SYSCTL),
            users::is_installed(),
        ),
    ];
    if let Ok(offered) = &offer.features {
        checks.extend(features(offered));
    }
    checks.push(pagemap_scan(offer.pagemap_scan));
    checks.push(exact_rss(offer.exact_rss));
    checks.push(seccomp(
        status_number("Seccomp:").unwrap_or(0),
        offer.system_call.is_ok() || offer.device.is_ok(),
    ));
    let root = rustix::process::geteuid().is_root();
    checks.push(ptrace(number("/proc/sys/kernel/yama/ptrace_scope"), root));
    checks
}

fn version(release: &str) -> Check {
    const NAME: &str = "kernel";
    match version_of(release) {
        Some(version) if version >= NEWEST_NEEDED => Check::ok(NAME, format!("Linux {release}")),
        _ => Check::warning(
            NAME,
            format!("Linux {release} is older than 6.8, or its number says nothing"),
            "the lines below say what is missing; a newer kernel has it",
        ),
    }
}

fn present_user(offer: &Offer) -> Check {
    const NAME: &str = "userfaultfd";
    let way = match (offer.device, offer.system_call) {
        (Ok(()), Ok(())) => "by /dev/userfaultfd and by the system call",
        (Ok(()), Err(_)) => "by /dev/userfaultfd",
        (Err(_), Ok(())) => "by the system call",
        (Err(device), Err(call)) => {
            let why = format!(
                "this user may open it neither by /dev/userfaultfd, {}, nor by the system call, {}",
                SystemError(device),
                SystemError(call)
            );
            return match offer.features {
                Err(OpenError::NotSupported) => {
                    Check::cannot(NAME, why, "use a kernel with CONFIG_USERFAULTFD")
                }
                _ => Check::cannot(NAME, why, GRANT),
            };
        }
    };
    match offer.full {
        Ok(()) => Check::ok(
            NAME,
            format!("this user may open it {way}, with events of forks"),
        ),
        Err(error) => {
            let why = format!("this user may open it {way}, but not with events of forks: {error}");
            Check::cannot(NAME, why, GRANT)
        }
    }
}

/// From the mode of the device, if there is one, the sysctl, and whether the helper is installed.
fn ordinary_user(mode: Option<u32>, sysctl: Option<u64>, helped: bool) -> Check {
    const NAME: &str = "userfaultfd for others";
    const READ_WRITE: u32 = 0o006;
    let may = |shift: u32| mode.is_some_and(|mode| mode >> shift & READ_WRITE == READ_WRITE);
    let who = match (may(0) || sysctl == Some(1), may(3)) {
        (true, _) => Some("every user"),
        (false, true) => Some("the group of /dev/userfaultfd"),
        (false, false) => None,
    };
    match (who, helped) {
        (Some(who), true) => {
            Check::ok(NAME, format!("{who} may use it (legato-uffd is installed)"))
        }
        (Some(who), false) => Check::warning(
            NAME,
            format!("{who} may open it, but without events of forks: legato-uffd is not installed"),
            ALLOW,
        ),
        (None, _) => Check::warning(NAME, "users without privilege may not open it", ALLOW),
    }
}

fn features(offered: &Offered) -> Vec<Check> {
    let newer = |version: &str| format!("use Linux {version} or newer");
    let events = if offered.events {
        Check::ok("events", "fork, mremap, madvise and munmap are reported")
    } else {
        let why = "fork, mremap, madvise and munmap are not reported";
        Check::cannot("events", why, newer("4.11"))
    };
    let moves = match (offered.moves, offered.protects) {
        (true, _) => Check::ok("move", "pages are moved (UFFDIO_MOVE)"),
        (false, true) => Check::warning(
            "move",
            "pages are copied and dropped: slower, and what O_DIRECT or a device reads into \
             memory while it is evicted may be lost",
            newer("6.8"),
        ),
        (false, false) => {
            let why = "pages can neither be moved nor be protected and copied";
            Check::cannot("move", why, newer("6.8"))
        }
    };
    let protects = if offered.protects {
        Check::ok("write-protect", "read-only memory can be evicted")
    } else {
        let why = "read-only memory stays local";
        Check::warning("write-protect", why, newer("5.7"))
    };
    let poisons = if offered.poisons {
        Check::ok("poison", "touching a lost page is SIGBUS")
    } else {
        let why = "touching a lost page kills the program (SIGKILL) instead of SIGBUS";
        Check::warning("poison", why, newer("6.6"))
    };
    let marks = if offered.marks {
        Check::ok("pagemap", "far pages count as swapped out there")
    } else {
        let why = "far pages count as missing there: an allocator that clears only what it names could hand \
                   out old data";
        Check::warning("pagemap", why, newer("6.4"))
    };
    vec![events, moves, protects, marks, poisons]
}

fn pagemap_scan(has: bool) -> Check {
    const NAME: &str = "pagemap-scan";
    if has {
        return Check::ok(NAME, "resident pages are listed by PAGEMAP_SCAN");
    }
    let why = "resident pages are found by reading /proc/PID/pagemap: slower";
    Check::warning(NAME, why, "use Linux 6.7 or newer")
}

fn exact_rss(is_exact: bool) -> Check {
    const NAME: &str = "exact-rss";
    if is_exact {
        return Check::ok(NAME, "the kernel says exactly how much is local");
    }
    let why = "how much is local is counted roughly: page tables are walked too, and a machine with many \
               processors may for a moment hold more than --cache";
    Check::warning(NAME, why, "use Linux 6.16 or newer")
}

/// From seccomp(2)'s mode of this process.
fn seccomp(mode: u64, may_open: bool) -> Check {
    const NAME: &str = "seccomp";
    match (mode, may_open) {
        (0, _) => Check::ok(NAME, "no filter"),
        (_, true) => Check::ok(NAME, "a filter, which lets userfaultfd through"),
        (_, false) => Check::warning(
            NAME,
            "a filter (a container's?) may be what refuses userfaultfd",
            "pass /dev/userfaultfd into the container, or let its profile allow userfaultfd",
        ),
    }
}

/// From Yama's sysctl (Documentation/admin-guide/LSM/Yama.rst), if the kernel has it.
fn ptrace(scope: Option<u64>, root: bool) -> Check {
    const NAME: &str = "ptrace";
    match scope {
        None => Check::ok(NAME, "Yama is not there: own processes may be traced"),
        Some(scope @ (0 | 1)) => Check::ok(
            NAME,
            format!("kernel.yama.ptrace_scope is {scope}: own children may be traced"),
        ),
        Some(2) if root => Check::ok(NAME, "kernel.yama.ptrace_scope is 2, and this is root"),
        Some(scope) => Check::warning(
            NAME,
            format!("kernel.yama.ptrace_scope is {scope}: static programs cannot be entered"),
            "sysctl kernel.yama.ptrace_scope=1 (from 3 only a reboot leads back)",
        ),
    }
}

fn status_number(field: &str) -> Option<u64> {
    let status = text("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    const ALL: Offered = Offered {
        events: true,
        moves: true,
        protects: true,
        poisons: true,
        marks: true,
    };

    #[track_caller]
    fn expect(check: &Check, verdict: Verdict, word: &str) {
        assert_eq!(check.verdict, verdict, "{check:?}");
        let said = format!("{} {}", check.why, check.advice.clone().unwrap_or_default());
        assert!(said.contains(word), "{check:?}");
    }

    #[test]
    fn versions_are_numbers() {
        expect(&version("6.8.0-generic"), Verdict::Ok, "6.8.0");
        expect(&version("6.18.44"), Verdict::Ok, "6.18");
        expect(&version("7.0-rc1"), Verdict::Ok, "7.0");
        expect(&version("6.7.12"), Verdict::Warning, "older");
        expect(&version("nonsense"), Verdict::Warning, "nonsense");
    }

    #[test]
    fn each_missing_feature_says_what_happens_without_it() {
        let all = features(&ALL);
        assert!(all.iter().all(|check| check.verdict == Verdict::Ok));
        let without = |offered: Offered, index: usize| features(&offered).remove(index);
        let no_events = Offered {
            events: false,
            ..ALL
        };
        expect(&without(no_events, 0), Verdict::Cannot, "4.11");
        let no_move = Offered {
            moves: false,
            ..ALL
        };
        expect(&without(no_move, 1), Verdict::Warning, "6.8");
        let stuck = Offered {
            protects: false,
            ..no_move
        };
        expect(&without(stuck, 1), Verdict::Cannot, "6.8");
        expect(&without(stuck, 2), Verdict::Warning, "read-only");
        let no_poison = Offered {
            poisons: false,
            ..ALL
        };
        expect(&without(no_poison, 4), Verdict::Warning, "6.6");
        let no_marks = Offered {
            marks: false,
            ..ALL
        };
        expect(&without(no_marks, 3), Verdict::Warning, "6.4");
    }

    #[test]
    fn rights_are_the_devices_or_the_sysctls() {
        let offer = |device, system_call, full| Offer {
            device,
            system_call,
            full,
            features: Ok(ALL),
            pagemap_scan: true,
            exact_rss: true,
        };
        let not = Err(OpenError::NotPermitted);
        let by_device = |full| present_user(&offer(Ok(()), Err(1), full));
        expect(&by_device(Ok(())), Verdict::Ok, "/dev");
        expect(&by_device(not), Verdict::Cannot, "events of forks");
        expect(&by_device(not), Verdict::Cannot, "allow-users");
        let by_call = present_user(&offer(Err(2), Ok(()), Ok(())));
        expect(&by_call, Verdict::Ok, "call");
        let neither = present_user(&offer(Err(13), Err(1), not));
        expect(&neither, Verdict::Cannot, "allow-users");
        let (open, of_group, closed) = (Some(0o20_666), Some(0o20_660), Some(0o20_600));
        let others = |mode, sysctl, helped| ordinary_user(mode, Some(sysctl), helped);
        expect(&others(open, 0, true), Verdict::Ok, "every user");
        expect(&others(of_group, 0, true), Verdict::Ok, "the group");
        expect(&others(closed, 1, true), Verdict::Ok, "every user");
        expect(&others(None, 1, false), Verdict::Warning, "not installed");
        expect(&others(open, 0, false), Verdict::Warning, "allow-users");
        expect(&others(closed, 0, true), Verdict::Warning, "allow-users");
    }

    #[test]
    fn filters_and_scopes() {
        expect(&seccomp(2, false), Verdict::Warning, "profile");
        expect(&seccomp(2, true), Verdict::Ok, "filter");
        expect(&ptrace(None, false), Verdict::Ok, "Yama");
        expect(&ptrace(Some(1), false), Verdict::Ok, "is 1");
        expect(&ptrace(Some(2), true), Verdict::Ok, "root");
        expect(&ptrace(Some(2), false), Verdict::Warning, "static");
        expect(&ptrace(Some(3), true), Verdict::Warning, "static");
    }
}
