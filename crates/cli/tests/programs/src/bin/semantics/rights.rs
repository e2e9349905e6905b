//! Programs that give up rights after they have started.

use crate::ground::{Case, Failure, Ground, Outcome, call, ensure, outcome};
use crate::process::use_memory;
use legato_test_programs::{decide, filter_system_calls};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("system-call-filter", system_call_filter),
    ("limits", limits),
    ("not-dumpable", not_dumpable),
    ("another-user", another_user),
    ("another-root-directory", another_root_directory),
    ("no-proc", no_proc),
];

const PAGES: u64 = 512;

// include/uapi/linux/bpf_common.h
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;

/// Only what the case itself needs is allowed from here on: no userfaultfd, clone, open or ioctl.
fn system_call_filter(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let allowed = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_mprotect,
        libc::SYS_mincore,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigreturn,
        libc::SYS_exit_group,
    ];
    // struct seccomp_data begins with the number of the call.
    let mut filter = vec![libc::sock_filter {
        code: LOAD_WORD,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    for call in allowed {
        filter.push(libc::sock_filter {
            code: JUMP_IF_EQUAL,
            jt: 0,
            jf: 1,
            k: call as u32,
        });
        filter.push(decide(libc::SECCOMP_RET_ALLOW));
    }
    filter.push(decide(libc::SECCOMP_RET_KILL_PROCESS));
    filter_system_calls(&mut filter)?;
    use_memory(ground, &region)?;
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

fn limits(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    let limit = |value| libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    let (none, little) = (limit(0), limit(16 << 20));
    call!(setrlimit(libc::RLIMIT_NOFILE, &raw const none))?;
    call!(setrlimit(libc::RLIMIT_MEMLOCK, &raw const none))?;
    call!(setrlimit(libc::RLIMIT_NPROC, &raw const none))?;
    call!(setrlimit(libc::RLIMIT_FSIZE, &raw const none))?;
    call!(setrlimit(libc::RLIMIT_SIGPENDING, &raw const none))?;
    use_memory(ground, &region)?;
    // Below what is there already: the program can map no more, and what it has goes on.
    call!(setrlimit(libc::RLIMIT_AS, &raw const little))?;
    call!(setrlimit(libc::RLIMIT_DATA, &raw const little))?;
    let refused = outcome!(mmap(
        core::ptr::null_mut(),
        32 << 20,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0
    ));
    ensure!(
        refused == Err(libc::ENOMEM),
        "a mapping beyond the limit gives {refused:?}"
    );
    crate::ground::check(&region, 1)?;
    crate::ground::fill(&region, 2);
    ground.evict(&region)?;
    crate::ground::check(&region, 2)?;
    Ok(Outcome::Passed)
}

fn not_dumpable(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    call!(prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
    use_memory(ground, &region)?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

/// As servers do that start as root.
fn another_user(ground: &Ground) -> Result<Outcome, Failure> {
    if call!(geteuid())? != 0 {
        return Ok(Outcome::Skipped("only root can become another user"));
    }
    let region = ground.far_region(PAGES)?;
    call!(setgroups(0, core::ptr::null()))?;
    call!(setresgid(65534, 65534, 65534))?;
    call!(setresuid(65534, 65534, 65534))?;
    use_memory(ground, &region)?;
    // Longer than anybody who looks at processes now and then does not look.
    std::thread::sleep(std::time::Duration::from_millis(300));
    use_memory(ground, &region)?;
    crate::forked::reap(crate::forked::fork("child", || {
        use_memory_of_child(ground, &region)
    })?)?;
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

fn use_memory_of_child(
    ground: &Ground,
    region: &legato_test_programs::Arena,
) -> crate::ground::Checked {
    crate::ground::check(region, 1)?;
    crate::ground::fill(region, 3);
    ground.press_all();
    crate::ground::check(region, 3)
}

fn another_root_directory(ground: &Ground) -> Result<Outcome, Failure> {
    if call!(geteuid())? != 0 {
        return Ok(Outcome::Skipped("only root can change its root directory"));
    }
    let region = ground.far_region(PAGES)?;
    let directory = std::env::temp_dir().join(format!("semantics-root-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    std::env::set_current_dir(&directory)?;
    // Whoever is in a directory keeps it when its name is gone.
    std::fs::remove_dir(&directory)?;
    std::os::unix::fs::chroot(".")?;
    ensure!(
        !std::path::Path::new("/proc/self").exists(),
        "there is a /proc"
    );
    use_memory(ground, &region)?;
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}

/// In a mount namespace of its own, without /proc.
fn no_proc(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(PAGES)?;
    if let Err(errno) = outcome!(unshare(libc::CLONE_NEWNS)) {
        ensure!(errno == libc::EPERM, "unshare: errno {errno}");
        return Ok(Outcome::Skipped("no right to a mount namespace"));
    }
    let none = core::ptr::null();
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    call!(mount(none, c"/".as_ptr(), none, flags, core::ptr::null()))?;
    call!(umount2(c"/proc".as_ptr(), libc::MNT_DETACH))?;
    ensure!(
        !std::path::Path::new("/proc/self").exists(),
        "there is a /proc"
    );
    use_memory(ground, &region)?;
    use_memory(ground, &region)?;
    Ok(Outcome::Passed)
}
