//! Reads and writes of the peer's memory.

use super::stack::{NaiveEvent, NaiveStack, Work};
use legato_base::Time;
use legato_verbs::{Provider, ScatterGatherEntry, SendFlags, SendOperation, SendRequest};

#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) connection: usize,
    deadline: Time,
    /// The caller has been told how it ended.
    over: bool,
    /// The caller has its buffer.
    returned: bool,
}

impl NaiveStack {
    /// Starts a read or write with the caller's buffer. None if it was not posted.
    pub fn start(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
        operation: SendOperation,
        buffer: ScatterGatherEntry,
        deadline: Time,
    ) -> Option<u64> {
        if self.is_stuck() {
            return None;
        }
        let number = self.next_number();
        let work = Work::OneSided { connection, number };
        let request = SendRequest {
            wr_id: work.id(),
            operation,
            entries: vec![buffer],
            flags: SendFlags::SIGNALED,
        };
        let queue_pair = self.connections.get(connection)?.as_ref()?.queue_pair;
        provider.post_send(queue_pair, &request).ok()?;
        let started = Operation {
            connection,
            deadline,
            over: false,
            returned: false,
        };
        self.operations.insert(number, started);
        Some(number)
    }

    /// Its completion has come, or its queue pair is no more.
    pub(super) fn end_operation(&mut self, number: u64, succeeded: bool) {
        let Some(operation) = self.operations.remove(&number) else {
            return;
        };
        if !operation.over {
            self.events.push_back(NaiveEvent::Over {
                operation: number,
                succeeded,
            });
        }
        if !operation.returned {
            let operation = number;
            self.events.push_back(NaiveEvent::Returned { operation });
        }
    }

    pub(super) fn expire_operations(&mut self, now: Time) {
        let at_once = self.habits.returns_buffer_at_timeout;
        for (&number, operation) in &mut self.operations {
            if operation.over || operation.deadline > now {
                continue;
            }
            operation.over = true;
            self.events.push_back(NaiveEvent::Over {
                operation: number,
                succeeded: false,
            });
            if at_once {
                operation.returned = true;
                let operation = number;
                self.events.push_back(NaiveEvent::Returned { operation });
            }
        }
    }

    /// Gives back what the NIC still has, and leaves it to the completions to do so again.
    pub(super) fn pull_back(&mut self, connection: usize) {
        for (&operation, pulled) in &self.operations {
            if pulled.connection == connection {
                self.events.push_back(NaiveEvent::Over {
                    operation,
                    succeeded: false,
                });
                self.events.push_back(NaiveEvent::Returned { operation });
            }
        }
    }

    /// Of calls and operations that wait.
    pub(super) fn earliest_operation(&self) -> Option<Time> {
        let waiting = self.operations.values().filter(|operation| !operation.over);
        waiting.map(|operation| operation.deadline).min()
    }
}
