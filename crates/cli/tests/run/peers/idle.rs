//! What a node without work costs.

use super::Client;
use crate::harness::Node;
use legato_base::Duration;

/// Processor time of a process, in clock ticks (proc_pid_stat(5), fields 14 and 15).
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A twelfth of the minute that the promise is about; it does not matter which.
#[test]
fn f_21_an_idle_node_with_a_client_uses_less_than_a_twentieth_of_a_processor() {
    let node = Node::start("64MiB");
    let mut client = Client::new(Duration::from_secs(10));
    let connection = client.connect(&node);
    client.status(connection);
    let pid = node.process().pid;
    let before = ticks(pid);
    client.run_for(Duration::from_secs(5));
    let used = ticks(pid) - before;
    // A tick is 10 ms: USER_HZ is 100 on every architecture that runs this.
    assert!(used * 10 < 5_000 / 20, "{used} ticks in 5 s");
    assert_eq!(client.station.fabric.counters().connections_reset, 0);
}
