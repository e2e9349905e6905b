//! A link, and what flows get of it.

use super::flows::{Meter, Seen, Verb, roce, tcp};
use crate::netns::{Link, leave, tool};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The link of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) mtu: u32,
    /// Megabits per second, and bytes that wait for them (tc-tbf(8)).
    pub(crate) shaped: Option<(u32, u32)>,
    /// Frames lost of 1000, in each direction.
    pub(crate) lost_per_mille: u32,
    pub(crate) verb: Verb,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
}

/// Megabits per second of each flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) roce: f64,
    pub(crate) tcp: f64,
    pub(crate) seen: Option<Seen>,
}

impl Plan {
    fn link(self) -> Link {
        leave();
        let link = Link::new(self.mtu);
        if let Some((rate, limit)) = self.shaped {
            let shape = |name| {
                let qdisc = format!("qdisc add dev {name} root tbf");
                tool(
                    "tc",
                    &format!("{qdisc} rate {rate}mbit burst 16kb limit {limit}"),
                );
            };
            shape("va");
            link.far(|| shape("vb"));
        }
        if self.lost_per_mille > 0 {
            link.lose(self.lost_per_mille);
        }
        link
    }

    /// Runs a RoCE flow, a TCP flow, or both at the same time.
    pub(crate) fn run(self, with_roce: bool, algorithm: Option<&str>) -> Rates {
        let link = &self.link();
        let (roce_meter, tcp_meter) = (&Meter::default(), &Meter::default());
        std::thread::scope(|scope| {
            let stream = algorithm
                .map(|algorithm| scope.spawn(move || tcp(link, self.verb, algorithm, tcp_meter)));
            let nic = with_roce.then(|| scope.spawn(move || roce(link, self.verb, roce_meter)));
            let read = || [roce_meter, tcp_meter].map(|it| it.bytes.load(Ordering::Relaxed));
            std::thread::sleep(self.warm_up);
            let (before, begun) = (read(), Instant::now());
            std::thread::sleep(self.time);
            let (after, seconds) = (read(), begun.elapsed().as_secs_f64());
            for meter in [roce_meter, tcp_meter] {
                meter.over.store(true, Ordering::Relaxed);
            }
            let rate = |index: usize| (after[index] - before[index]) as f64 * 8e-6 / seconds;
            if let Some(stream) = stream {
                stream.join().unwrap();
            }
            Rates {
                roce: rate(0),
                tcp: rate(1),
                seen: nic.map(|nic| nic.join().unwrap()),
            }
        })
    }
}
