//! What is promised about memory, on real processes.

use crate::harness::{MIB, Node, PATIENCE, Process, Run, Running, poll_until, sized, test_program};
use crate::killed::agent_of;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Sixteen times the cache, every byte compared, each page once in a shuffled order.
#[test]
fn m02_every_byte_comes_back_in_random_order() {
    let cache = sized(64, 16);
    let all = 16 * cache;
    let run = Run::far(test_program("scan"))
        .arguments(["--bytes", &format!("{all}MiB"), "--order", "random"])
        .arguments(["--no-final"])
        .cache_mib(cache)
        .memory_mib(2 * all)
        .finish()
        .expect_code(0)
        .expect_far_pages();
    let pages = |mebibytes| mebibytes * MIB / 4096;
    let touches = format!("scan: {} touches", pages(all));
    assert!(run.output().contains(&touches), "{}", run.output());
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    // No more than the cache can have been local when the reading began.
    let far = pages(all - cache);
    assert!(run.stat("pages_fetched") >= far, "{:?}", run.stats);
}

/// All but what does not depend on how much memory there was.
#[test]
fn what_an_agent_took_for_memory_that_is_gone_comes_back() {
    let mut run = Run::far(test_program("hold"))
        .arguments(["--bytes", sized("2GiB", "384MiB"), "--release"])
        .cache_mib(16)
        .memory_mib(sized(3072, 512))
        .start();
    run.wait_for_output("ready");
    let agent = agent_of(&run);
    let taken = || {
        agent
            .counters()
            .map_or(0, |counters| counters.agent_bytes_current)
    };
    poll_until("much is far", PATIENCE, || taken() > 3 * MIB);
    run.write(b"go\n");
    run.wait_for_output("released");
    poll_until("it has come back", PATIENCE, || taken() < 2 * MIB);
    run.write(b"go\n");
    let run = run.finish().expect_code(0).expect_far_pages();
    assert!(
        run.output().contains(" 0 lost, 0 wrong"),
        "{}",
        run.output()
    );
}

/// However full its cache is. (While a program runs its agent looks at its memory up to 2,500 times a
/// second.)
#[test]
fn the_agent_of_a_program_that_waits_sleeps() {
    let mut run = Run::far(test_program("hold"))
        .arguments(["--bytes", "32MiB"])
        .cache_mib(16)
        .memory_mib(64)
        .start();
    run.wait_for_output("ready");
    let agents: Vec<Process> = run
        .processes()
        .into_iter()
        .filter(Process::leads_a_session)
        .collect();
    let [agent] = agents[..] else {
        panic!("{agents:?}")
    };
    let mut last = (Instant::now(), agent.sleeps().unwrap());
    poll_until("a second with 100 looks at the most", PATIENCE, || {
        let time = last.0.elapsed();
        if time < Duration::from_secs(1) {
            return false;
        }
        let sleeps = agent.sleeps().unwrap();
        let looks = (sleeps - last.1) as f64 / time.as_secs_f64();
        last = (Instant::now(), sleeps);
        looks <= 100.0
    });
    run.write(b"go on\n");
    let run = run.finish().expect_code(0).expect_far_pages();
    let right = "hold: 8192 right, 0 lost, 0 wrong\n";
    assert!(run.output().ends_with(right), "{}", run.output());
}

#[test]
fn m03_fresh_memory_is_zeros_and_asks_no_node() {
    let run = Run::far(test_program("fill"))
        .arguments(["--bytes", "48MiB", "--check-zero"])
        .cache_mib(128)
        .memory_mib(256)
        .finish()
        .expect_code(0);
    assert_eq!(run.output(), "fill: 12288 pages, 0 wrong\n");
    assert_eq!(run.stat("pages_fetched"), 0);
    assert_eq!(run.stat("pages_written"), 0);
}

/// The same beyond the limit: what was never touched is never fetched, however much was evicted.
#[test]
fn m03_fresh_memory_is_zeros_beyond_the_limit() {
    let run = Run::far(test_program("fill"))
        .arguments(["--bytes", "256MiB", "--check-zero"])
        .cache_mib(64)
        .memory_mib(512)
        .finish()
        .expect_code(0);
    assert_eq!(run.output(), "fill: 65536 pages, 0 wrong\n");
}

/// Pages are written all the time and touched again soon, while the node stands still every now
/// and then, so that many are touched while their write-back is under way.
#[test]
fn m06_a_page_under_write_back_has_its_newest_content() {
    let node = Node::start("512MiB");
    let mut run = Run::far(test_program("scan"))
        .arguments(["--bytes", sized("80MiB", "20MiB"), "--order", "random"])
        .arguments(["--rounds", "10", "--write", "100"])
        .at(&[&node])
        .cache_mib(sized(64, 16))
        .start();
    stutter(&node, &mut run, Duration::from_millis(20));
    let run = run.finish().expect_code(0).expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
}

#[test]
fn m08_a_slow_node_slows_the_program_and_never_lets_it_past_the_limit() {
    let node = Node::start("1GiB");
    crate::limit::expect_within(64 * MIB, || {
        let mut run = Run::far(test_program("fill"))
            .arguments(["--bytes", "512MiB", "--threads", "2", "--rounds", "2"])
            .at(&[&node])
            .cache_mib(64)
            .watched_closely()
            .start();
        stutter(&node, &mut run, Duration::from_millis(100));
        let run = run.finish().expect_code(0).expect_far_pages();
        assert_eq!(run.output(), "fill: 131072 pages, 0 wrong\n");
        run
    });
}

/// Stops the node for `pause`, again and again, until the program ends.
fn stutter(node: &Node, run: &mut Running, pause: Duration) {
    while run.is_running() {
        node.signal(Signal::STOP);
        std::thread::sleep(pause);
        node.signal(Signal::CONT);
        std::thread::sleep(pause);
    }
}

#[test]
fn m10_sequential_access_is_prefetched_and_random_access_is_not() {
    let scan = |order: &str| {
        Run::far(test_program("scan"))
            .arguments([
                "--bytes",
                "256MiB",
                "--order",
                order,
                "--rounds",
                "3",
                "--no-final",
            ])
            .cache_mib(64)
            .memory_mib(512)
            .finish()
            .expect_code(0)
            .expect_far_pages()
    };
    let (sequential, random) = (scan("seq"), scan("random"));
    let (few, many) = (sequential.stat("faults"), random.stat("faults"));
    assert!(few * 2 < many, "{few} faults in sequence, {many} at random");
    assert!(
        sequential.stat("pages_prefetched") * 2 > sequential.stat("pages_fetched"),
        "{:?}",
        sequential.stats
    );
    let (prefetched, fetched) = (
        random.stat("pages_prefetched"),
        random.stat("pages_fetched"),
    );
    assert!(
        prefetched * 5 < fetched,
        "{prefetched} of {fetched} pages were fetched for nothing"
    );
}
