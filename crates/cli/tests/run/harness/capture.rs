//! What a program writes, while it writes it.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default)]
pub(crate) struct Capture {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    ended: bool,
}

impl Capture {
    pub(crate) fn of(mut source: impl Read + Send + 'static) -> Self {
        let capture = Self::default();
        let shared = Arc::clone(&capture.shared);
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            loop {
                let count = source.read(&mut buffer).unwrap_or(0);
                let mut state = shared.0.lock().unwrap();
                state.bytes.extend_from_slice(&buffer[..count]);
                state.ended = count == 0;
                shared.1.notify_all();
                if state.ended {
                    return;
                }
            }
        });
        capture
    }

    /// True once `text` was written, false if the stream ended or the time ran out before.
    pub(crate) fn wait_for(&self, text: &str, limit: Duration) -> bool {
        let seen = |state: &State| {
            state
                .bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        self.wait(limit, |state| seen(state) || state.ended);
        seen(&self.shared.0.lock().unwrap())
    }

    /// True once every process that held the stream has closed it.
    pub(crate) fn wait_for_end(&self, limit: Duration) -> bool {
        self.wait(limit, |state| state.ended)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.shared.0.lock().unwrap().bytes.clone()
    }

    fn wait(&self, limit: Duration, done: impl Fn(&State) -> bool) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.shared.0.lock().unwrap();
        while !done(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.1.wait_timeout(state, left).unwrap().0;
        }
        true
    }
}
