//! What is touched, and how.

use crate::args::{BenchFaultArguments, TouchAccess, TouchOrder};
use crate::bench::comparison::Row;
use legato_base::Bytes;
use serde_json::json;
use std::ffi::OsString;

#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    order: TouchOrder,
    /// The memory, in caches.
    times: u64,
    access: TouchAccess,
    threads: u32,
}

impl Workload {
    /// All that the arguments combine to.
    pub(super) fn all(arguments: &BenchFaultArguments) -> Vec<Self> {
        let mut all = Vec::new();
        for &access in &arguments.access {
            for &threads in &arguments.threads {
                for &order in &arguments.order {
                    all.extend(arguments.times.iter().map(|&times| Self {
                        order,
                        times,
                        access,
                        threads,
                    }));
                }
            }
        }
        all
    }

    pub(super) fn memory(self, cache: Bytes) -> Bytes {
        Bytes(cache.0 * self.times)
    }

    /// Of `legato bench touch`.
    pub(super) fn arguments(self, cache: Bytes, passes: u32) -> Vec<OsString> {
        let words = [
            "bench".into(),
            "touch".into(),
            format!("--bytes={}", self.memory(cache).0),
            format!("--order={}", self.order.name()),
            format!("--access={}", self.access.name()),
            format!("--threads={}", self.threads),
            format!("--passes={passes}"),
        ];
        words.map(OsString::from).into()
    }

    pub(super) fn row(self) -> Row {
        let description = json!({
            "order": self.order.name(),
            "memory_over_cache": self.times,
            "access": self.access.name(),
            "threads": self.threads,
        });
        Row::new(self.name(), description)
    }

    fn name(self) -> String {
        let (order, times, access) = (self.order.name(), self.times, self.access.name());
        match self.threads {
            1 => format!("{order} {times}x {access}"),
            threads => format!("{order} {times}x {access}, {threads} threads"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_says_what_it_does() {
        let workload = Workload {
            order: TouchOrder::Random,
            times: 2,
            access: TouchAccess::Write,
            threads: 2,
        };
        assert_eq!(workload.name(), "random 2x write, 2 threads");
        let words = workload.arguments(Bytes::mib(8), 3);
        assert!(words.contains(&"--bytes=16777216".into()), "{words:?}");
        assert!(words.contains(&"--passes=3".into()), "{words:?}");
    }
}
