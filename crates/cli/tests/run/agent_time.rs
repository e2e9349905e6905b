//! What an agent costs while its program does not need it.

use crate::harness::{Run, system_program};
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(5);

/// The share of a processor that the agent of a program takes, in thousandths, once the program has said that it is
/// ready. A third of its memory is far.
fn agent_takes(program: &str) -> u128 {
    let script = format!(
        "import time\n\
         far = bytearray(b'x') * (352 << 20)\n\
         local = bytearray(b'y') * (32 << 20)\n\
         {program}"
    );
    let run = Run::far(system_program("python3")).arguments(["-c", &script]);
    let run = run.cache_mib(256).memory_mib(1024).start();
    run.wait_for_output("ready");
    let mut agents = run.processes().into_iter();
    let agent = agents.find(|process| process.leads_a_session());
    let agent = agent.expect("a program on far memory has an agent");
    let (begin, before) = (Instant::now(), agent.ran());
    std::thread::sleep(TIME);
    let taken = (agent.ran() - before).as_nanos() * 1000 / begin.elapsed().as_nanos();
    eprintln!("the agent takes {taken} thousandths of a processor");
    run.finish().expect_code(0).expect_far_pages();
    taken
}

#[test]
fn an_agent_of_an_idle_program_takes_less_than_a_hundredth_of_a_processor() {
    let taken = agent_takes("time.sleep(3); print('ready', flush=True); time.sleep(8)");
    assert!(taken < 10, "{taken}");
}

#[test]
fn an_agent_of_a_program_that_computes_on_local_memory_takes_less_than_a_fiftieth() {
    let taken = agent_takes(
        "begin, said = time.time(), False\n\
         while time.time() < begin + 11:\n\
         \x20   for at in range(0, len(local), 4096): local[at] ^= 1\n\
         \x20   if not said and time.time() > begin + 3:\n\
         \x20       said = True\n\
         \x20       print('ready', flush=True)\n",
    );
    assert!(taken < 20, "{taken}");
}
