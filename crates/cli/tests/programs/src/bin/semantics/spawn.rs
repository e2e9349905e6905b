//! vfork, posix_spawn and exec, whose arguments are far.

use crate::forked::{fork, reap};
use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, check, ensure, outcome};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("vfork-shares-memory", vfork_shares_memory),
    ("posix-spawn", posix_spawn),
    ("exec-with-far-arguments", exec_with_far_arguments),
    ("exec-again", exec_again),
    ("exec-that-fails", exec_that_fails),
    ("part-exec-target", exec_target),
];

/// A variable that the new image has to find.
const FRUIT: &str = "FAR_FRUIT";

/// Long, so that the kernel copies it out of several far pages.
fn fruit() -> String {
    "pear and apple, ".repeat(2000)
}

/// Path, argument and environment lists whose strings, and the lists themselves, lie in a region.
struct FarArguments {
    region: Arena,
}

impl FarArguments {
    /// Of this program with one case, run alone.
    fn new(case: &str, ground: &Ground) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let path = CString::new(program.as_os_str().as_bytes()).map_err(|_| bad())?;
        let mut arguments = vec![path.to_string_lossy().into_owned()];
        let options = ["--case", case, "--alone", "--bytes", "64MiB"];
        arguments.extend(options.map(str::to_owned));
        arguments.extend(ground.expect_evicted.then(|| "--expect-evicted".to_owned()));
        let mut environment: Vec<String> = std::env::vars()
            .filter(|(name, _)| name != FRUIT)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        environment.push(format!("{FRUIT}={}", fruit()));
        let region = ground.far_region(64)?;
        let mut end = 8 * PAGE_SIZE;
        let mut put = |text: &str| {
            let address = region
                .address(0)
                .wrapping_byte_add(end)
                .cast::<libc::c_char>();
            // SAFETY: the region has room for all of them; the count is checked below.
            unsafe {
                core::ptr::copy_nonoverlapping(text.as_ptr(), address.cast(), text.len());
                address.add(text.len()).write(0);
            }
            end += text.len() + 1;
            address
        };
        let lists = [(1, arguments), (2, environment)];
        for (page, texts) in lists {
            ensure!(texts.len() < PAGE_SIZE / 8, "{} strings", texts.len());
            let list = region.address(page).cast::<*mut libc::c_char>();
            for (index, text) in texts.iter().enumerate() {
                // SAFETY: the list's page has room, by the check above.
                unsafe { list.add(index).write(put(text)) };
            }
            // SAFETY: as above.
            unsafe { list.add(texts.len()).write(core::ptr::null_mut()) };
        }
        ensure!(end < 64 * PAGE_SIZE, "the strings take {end} bytes");
        ground.evict(&region)?;
        Ok(Self { region })
    }

    fn list(&self, page: u64) -> *const *mut libc::c_char {
        self.region.address(page).cast()
    }

    fn path(&self) -> *const libc::c_char {
        self.region.address(8).cast()
    }

    /// Only returns if there was no exec.
    fn exec(&self) -> i32 {
        let (path, arguments, environment) = (self.path(), self.list(1), self.list(2));
        outcome!(execve(path, arguments.cast(), environment.cast()))
            .err()
            .unwrap_or(0)
    }
}

fn bad() -> Failure {
    Failure("a path with a zero byte".to_owned())
}

/// What the new image checks.
fn exec_target(ground: &Ground) -> Result<Outcome, Failure> {
    let found = std::env::var(FRUIT).unwrap_or_default();
    ensure!(
        found == fruit(),
        "the environment is other: {} bytes",
        found.len()
    );
    // The new image has far pages of its own.
    let region = ground.far_region(64)?;
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

extern "C" fn in_shared_memory(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the caller waits in vfork with these on its stack.
    let (region, arguments) = unsafe { &*argument.cast::<(&Arena, &FarArguments)>() };
    for page in 0..region.pages() {
        if region.check(page, 1).is_err() {
            return 9;
        }
        region.fill(page, 2);
    }
    arguments.exec();
    10
}

/// A child that shares the memory until it runs another program: what it writes is the parent's,
/// and what is far comes to it too. (vfork returns twice; clone with its flags does not.)
fn vfork_shares_memory(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(512)?;
    let arguments = FarArguments::new("part-exec-target", ground)?;
    let stack = Arena::new(64)?;
    let top = stack.address(63).wrapping_byte_add(PAGE_SIZE);
    let both = (&region, &arguments);
    ground.evict(&region)?;
    ground.evict(&arguments.region)?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let child = call!(clone(
        in_shared_memory,
        top,
        flags,
        (&raw const both).cast_mut().cast()
    ))?;
    check(&region, 2)?;
    ground.evict(&region)?;
    check(&region, 2)?;
    reap(child as libc::pid_t)?;
    ground.evict(&region)?;
    check(&region, 2)?;
    Ok(Outcome::Passed)
}

fn posix_spawn(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(512)?;
    let arguments = FarArguments::new("part-exec-target", ground)?;
    for _ in 0..3 {
        ground.evict(&arguments.region)?;
        let mut pid = 0;
        let none = core::ptr::null();
        let (path, list) = (arguments.path(), arguments.list(1));
        let result = outcome!(posix_spawn(
            &raw mut pid,
            path,
            none,
            core::ptr::null(),
            list,
            arguments.list(2)
        ));
        ensure!(result == Ok(0), "posix_spawn gives {result:?}");
        ground.press_all();
        reap(pid)?;
    }
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

fn exec_with_far_arguments(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(512)?;
    let arguments = FarArguments::new("part-exec-target", ground)?;
    let child = fork("exec", || {
        check(&region, 1)?;
        let errno = arguments.exec();
        Err(Failure(format!("execve: errno {errno}")))
    })?;
    reap(child)?;
    check(&region, 1)?;
    Ok(Outcome::Passed)
}

const LEFT: &str = "SEMANTICS_EXECS_LEFT";
/// Images that follow the first.
const IMAGES: u32 = 3;

/// The same process runs a new image of this program, several times, each with as many far pages.
fn exec_again(ground: &Ground) -> Result<Outcome, Failure> {
    let left = std::env::var(LEFT).map_or(IMAGES, |text| text.parse().unwrap_or(0));
    let region = ground.far_region(6 << 10)?;
    if left == 0 {
        check(&region, 1)?;
        return Ok(Outcome::Passed);
    }
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var(LEFT, (left - 1).to_string()) };
    let errno = FarArguments::new("exec-again", ground)?.exec();
    Err(Failure(format!("execve: errno {errno}")))
}

fn expect_errno(path: &CStr, arguments: &FarArguments, errno: i32) -> Checked {
    let found = outcome!(execve(
        path.as_ptr(),
        arguments.list(1).cast(),
        arguments.list(2).cast()
    ));
    ensure!(found == Err(errno), "execve of {path:?} gives {found:?}");
    Ok(())
}

/// An exec that fails leaves everything as it was.
fn exec_that_fails(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(512)?;
    let arguments = FarArguments::new("part-exec-target", ground)?;
    expect_errno(c"/no such program", &arguments, libc::ENOENT)?;
    expect_errno(c"/proc/self/status", &arguments, libc::EACCES)?;
    check(&region, 1)?;
    ground.evict(&region)?;
    check(&region, 1)?;
    Ok(Outcome::Passed)
}
