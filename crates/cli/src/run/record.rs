//! What a run says of itself to whoever may look at this process: a file in memory, which `legato ps` finds.

use super::nodes::Nodes;
use legato_base::Bytes;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;

/// Its name, as links in `/proc/PID/fd` show it.
pub(crate) const RECORD_NAME: &str = "legato-run";
/// More is no record of a run: a command line is at most 2 MiB where nobody has raised a limit (execve(2)).
pub(crate) const RECORD_MAX: Bytes = Bytes::mib(8);
/// Changes when a field goes away or means something else.
const SCHEMA_VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    schema_version: u32,
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    pub(crate) cache_bytes_limit: u64,
    pub(crate) nodes: Vec<NodeRecord>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) address: String,
    /// Of a node that the run has started itself.
    pub(crate) pid: Option<i32>,
}

impl Record {
    pub(crate) fn new(command: &[OsString], cache: Bytes, nodes: &Nodes) -> Self {
        let command = command.iter().map(|part| part.to_string_lossy());
        let nodes = nodes.list.iter().map(|node| NodeRecord {
            address: node.address.to_string(),
            pid: node
                .process
                .as_ref()
                .map(|process| process.pid().as_raw_pid()),
        });
        Self {
            schema_version: SCHEMA_VERSION,
            command: command.map(String::from).collect(),
            cache_bytes_limit: cache.0,
            nodes: nodes.collect(),
        }
    }

    /// It can be read as long as the file is open.
    pub(crate) fn publish(&self) -> std::io::Result<File> {
        let mut file = File::from(memfd_create(RECORD_NAME, MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file)
    }

    /// None if it is of another version, or none at all.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        (record.schema_version == SCHEMA_VERSION).then_some(record)
    }
}
