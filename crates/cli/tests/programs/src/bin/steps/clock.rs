//! The clock of a process that is single-stepped goes as if it were not: a thousand times slower than
//! ours. Otherwise all that it does now and then would be done after every few instructions.

use crate::tracee::{Call, Tracee};
use elf::ElfBytes;
use elf::endian::LittleEndian;
use std::io;
use std::time::Duration;

/// `mov eax, SYS_clock_gettime; syscall; ret`: in place of the function that reads the clock without a
/// system call, so that what it reads can be changed.
const ASK_THE_KERNEL: [u8; 8] = [0xB8, 0xE4, 0, 0, 0, 0x0F, 0x05, 0xC3];

/// It begins so much ahead, as after a standstill: what holds only for a while after a start is over then.
const AHEAD: Duration = Duration::from_secs(2);

/// What an instruction takes on a machine of today, roughly, in picoseconds.
const INSTRUCTION_PS: u64 = 300;
/// And a system call, with what the program does meanwhile if it is waited for, in picoseconds.
const CALL_PS: u64 = 700_000;

/// The monotonic clock of a tracee.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Where its function is, and what that began with.
    function: u64,
    before: [u8; 8],
    began: Duration,
    passed_ps: u64,
}

impl Clock {
    /// Stands still from here on, but for what `tick` adds.
    pub(crate) fn take_over(tracee: &Tracee) -> io::Result<Self> {
        let function = function(tracee)?;
        let mut before = [0; 8];
        tracee.read(function, &mut before)?;
        tracee.write(function, &ASK_THE_KERNEL)?;
        Ok(Self {
            function,
            before,
            began: now() + AHEAD,
            passed_ps: 0,
        })
    }

    /// After an instruction, or after a system call with all instructions before it.
    pub(crate) fn tick(&mut self, tracee: &Tracee, call: Option<&Call>) -> io::Result<()> {
        const MONOTONIC: u64 = libc::CLOCK_MONOTONIC.unsigned_abs() as u64;
        self.passed_ps += INSTRUCTION_PS;
        let Some(call) = call else { return Ok(()) };
        if call.number != libc::SYS_clock_gettime {
            self.passed_ps += CALL_PS;
        } else if let [MONOTONIC, place] = call.arguments {
            let time = self.began + Duration::from_nanos(self.passed_ps / 1_000);
            let words = [time.as_secs(), u64::from(time.subsec_nanos())];
            tracee.write(place, words.map(u64::to_le_bytes).as_flattened())?;
        }
        Ok(())
    }

    /// As before; what has been missed passes at once.
    pub(crate) fn give_back(self, tracee: &Tracee) -> io::Result<()> {
        tracee.write(self.function, &self.before)
    }
}

fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is written to the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Where `clock_gettime` of vdso(7) is.
fn function(tracee: &Tracee) -> io::Result<u64> {
    let maps = tracee.maps()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let range = line.and_then(|line| line.split(' ').next()?.split_once('-'));
    let (begin, end) = range.ok_or_else(|| io::Error::other("it has no vdso"))?;
    let [begin, end] = [begin, end].map(|text| u64::from_str_radix(text, 16));
    let (begin, end) = (
        begin.map_err(io::Error::other)?,
        end.map_err(io::Error::other)?,
    );
    let mut image = vec![0; (end - begin) as usize];
    tracee.read(begin, &mut image)?;
    let offset = offset(&image).ok_or_else(|| io::Error::other("no clock in its vdso"))?;
    Ok(begin + offset)
}

fn offset(image: &[u8]) -> Option<u64> {
    let image = ElfBytes::<LittleEndian>::minimal_parse(image).ok()?;
    let (symbols, names) = image.dynamic_symbol_table().ok()??;
    let is_it = |name| {
        names
            .get(name)
            .is_ok_and(|name| name == "__vdso_clock_gettime")
    };
    let symbol = symbols
        .iter()
        .find(|symbol| is_it(symbol.st_name as usize))?;
    Some(symbol.st_value)
}
