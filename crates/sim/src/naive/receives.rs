//! Receives: what comes in them, and how they are posted again.

use super::header::MESSAGE;
use super::stack::{NaiveStack, Work};
use legato_verbs::{Provider, ReceiveRequest};

impl NaiveStack {
    pub(super) fn complete_receive(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
        buffer: u32,
        failed: bool,
    ) {
        if let Some(Some(it)) = self.connections.get_mut(connection) {
            it.receives_posted = it.receives_posted.saturating_sub(1);
        }
        if failed && !self.habits.reads_failed_completions {
            self.receive_flushed(provider, connection);
            return;
        }
        let mut bytes = vec![0; MESSAGE as usize];
        let offset = self.receive_offset(connection, buffer);
        if provider
            .read_region(&self.region, offset, &mut bytes)
            .is_ok()
        {
            self.handle_message(connection, &bytes);
        }
        self.post_receive(provider, connection, buffer);
        if self.habits.posts_receives_twice {
            self.post_receive(provider, connection, buffer);
        }
    }

    pub(super) fn post_receive(
        &mut self,
        provider: &mut dyn Provider,
        connection: usize,
        buffer: u32,
    ) {
        let offset = self.receive_offset(connection, buffer);
        let request = ReceiveRequest {
            wr_id: Work::Receive { connection, buffer }.id(),
            entries: vec![self.region.entry(offset, MESSAGE)],
        };
        let queue_pair = match self.connections.get(connection) {
            Some(Some(it)) => Some(it.queue_pair),
            _ => None,
        };
        let posted = match (self.shared, queue_pair) {
            (Some(shared), _) => provider.post_shared_receive(shared, &request),
            (None, Some(queue_pair)) => provider.post_receive(queue_pair, &request),
            (None, None) => return,
        };
        self.counters.receives_refused += u64::from(posted.is_err());
        if posted.is_ok() || self.habits.posts_unchecked {
            if let Some(Some(it)) = self.connections.get_mut(connection) {
                it.receives_posted += 1;
            }
        } else {
            self.take_down(provider, connection);
        }
    }

    fn receive_offset(&self, connection: usize, buffer: u32) -> u64 {
        let before = match self.shared {
            Some(_) => 0,
            None => connection as u64 * u64::from(self.config.receives),
        };
        (before + u64::from(buffer)) * u64::from(MESSAGE)
    }

    /// Receives that the stack believes to be posted on a connection.
    pub fn receives_posted(&self, connection: usize) -> u32 {
        let it = self.connections.get(connection).and_then(Option::as_ref);
        it.map_or(0, |it| it.receives_posted)
    }
}
