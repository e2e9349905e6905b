//! Whether a process reaches a memory node by itself, as `legato run` does.

use legato_verbs::Address;
use rustix::process::Pid;
use std::fs::{Metadata, metadata};
use std::os::unix::fs::MetadataExt as _;

/// False for a process from where the node has no such address, or another one has it.
pub(crate) fn reaches(process: Pid, node: &Address) -> bool {
    match node {
        Address::Shm(path) if !path.starts_with('@') => {
            let there = metadata(format!("/proc/{process}/root/{path}")).ok();
            is_same(there, metadata(path).ok())
        }
        _ => {
            let there = metadata(format!("/proc/{process}/ns/net")).ok();
            is_same(there, metadata("/proc/self/ns/net").ok())
        }
    }
}

fn is_same(one: Option<Metadata>, other: Option<Metadata>) -> bool {
    let file = |metadata: Metadata| (metadata.dev(), metadata.ino());
    one.map(file) == other.map(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sees_the_same_files_and_networks_reaches_the_same_nodes() {
        let own = rustix::process::getpid();
        let path = std::env::temp_dir().join(format!("legato-{}-reach", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let name = path.to_str().unwrap();
        let nodes = [name, "@name"].map(|name| Address::Shm(name.to_owned()));
        assert!(nodes.iter().all(|node| reaches(own, node)));
        std::fs::remove_file(&path).unwrap();
    }
}
