//! What was measured, as a table and as JSON.

use crate::args::TouchOrder;
use legato_base::Bytes;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Who serves the memory, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Legato,
    Zram,
    File,
    Plain,
}

impl Contender {
    pub(super) const ALL: [Self; 4] = [Self::Legato, Self::Zram, Self::File, Self::Plain];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Legato => "legato",
            Self::Zram => "zram",
            Self::File => "file",
            Self::Plain => "plain",
        }
    }
}

/// What is touched, and in which order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) order: TouchOrder,
    /// The memory, in caches.
    pub(super) times: u64,
}

impl Workload {
    pub(super) const ALL: [Self; 4] = [
        Self::new(TouchOrder::Random, 2),
        Self::new(TouchOrder::Random, 4),
        Self::new(TouchOrder::Seq, 2),
        Self::new(TouchOrder::Seq, 4),
    ];

    const fn new(order: TouchOrder, times: u64) -> Self {
        Self { order, times }
    }

    pub(super) fn name(self) -> String {
        format!("{} {}x", self.order.name(), self.times)
    }
}

/// Microseconds per touch, of every round.
#[derive(Debug, Default)]
pub(super) struct Row {
    rounds: [Vec<f64>; Contender::ALL.len()],
}

impl Row {
    pub(super) fn push(&mut self, contender: Contender, touch_ns: f64) {
        self.rounds[contender as usize].push(touch_ns / 1_000.0);
    }

    fn median(&self, contender: Contender) -> Option<f64> {
        median(self.rounds[contender as usize].clone())
    }

    /// Of the ratios within a round, whose runs the machine's other work met alike.
    fn ratio(&self, baseline: Contender) -> Option<f64> {
        let legato = &self.rounds[Contender::Legato as usize];
        let pairs = legato.iter().zip(&self.rounds[baseline as usize]);
        median(pairs.map(|(legato, baseline)| legato / baseline).collect())
    }
}

/// A run of the comparison.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) cache: Bytes,
    pub(super) rounds: u32,
    pub(super) page_cluster: u32,
    /// What the swap areas were.
    pub(super) areas: Vec<String>,
    pub(super) rows: [Row; Workload::ALL.len()],
    /// Why there are no figures of someone, or none after some round.
    pub(super) missing: Vec<(Contender, String)>,
}

impl Report {
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "us per touch of a page (read and compared), medians of {} interleaved rounds; cache \
             and limit {}, page-cluster {}{}\n",
            self.rounds,
            self.cache,
            self.page_cluster,
            self.areas
                .iter()
                .fold(String::new(), |text, area| text + ", " + area),
        );
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:<10} | {:>8} | {:>8} | {:>8} | {:>8} | {:>11} | {:>11}",
            "workload", "plain", "legato", "zram", "file", "legato/zram", "legato/file"
        );
        for (workload, row) in Workload::ALL.iter().zip(&self.rows) {
            let _ = writeln!(
                text,
                "{:<10} | {:>8} | {:>8} | {:>8} | {:>8} | {:>11} | {:>11}",
                workload.name(),
                number(row.median(Contender::Plain), 3),
                number(row.median(Contender::Legato), 2),
                number(row.median(Contender::Zram), 2),
                number(row.median(Contender::File), 2),
                number(row.ratio(Contender::Zram), 2),
                number(row.ratio(Contender::File), 2),
            );
        }
        for (contender, reason) in &self.missing {
            let _ = writeln!(text, "{} is missing: {reason}", contender.name());
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let rows = Workload::ALL.iter().zip(&self.rows);
        json!({
            "cache_bytes": self.cache.0,
            "rounds": self.rounds,
            "page_cluster": self.page_cluster,
            "swap_areas": self.areas,
            "workloads": rows.map(|(&workload, row)| row_json(workload, row)).collect::<Value>(),
            "missing": self.missing.iter()
                .map(|(contender, reason)| json!({"name": contender.name(), "reason": reason}))
                .collect::<Value>(),
        })
    }
}

fn row_json(workload: Workload, row: &Row) -> Value {
    let mut value = json!({
        "order": workload.order.name(),
        "memory_over_cache": workload.times,
        "legato_over_zram": row.ratio(Contender::Zram),
        "legato_over_file": row.ratio(Contender::File),
    });
    for contender in Contender::ALL {
        value[format!("{}_us", contender.name())] = json!({
            "median": row.median(contender),
            "rounds": row.rounds[contender as usize],
        });
    }
    value
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut rows: [Row; 4] = Default::default();
        for (legato, zram) in [
            (10_000.0, 20_000.0),
            (30_000.0, 40_000.0),
            (9_000.0, 90_000.0),
        ] {
            rows[0].push(Contender::Legato, legato);
            rows[0].push(Contender::Zram, zram);
        }
        Report {
            cache: Bytes::mib(64),
            rounds: 3,
            page_cluster: 0,
            areas: vec!["zram lz4".into()],
            rows,
            missing: vec![(Contender::File, "no disk".into())],
        }
    }

    #[test]
    fn ratios_are_medians_of_rounds_and_gaps_say_why() {
        let text = report().text();
        let row = text
            .lines()
            .find(|line| line.starts_with("random 2x"))
            .unwrap();
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert_eq!(
            cells,
            ["random 2x", "-", "10.00", "40.00", "-", "0.50", "-"]
        );
        assert!(text.ends_with("file is missing: no disk\n"), "{text}");
        let json = report().json();
        assert_eq!(json["workloads"][0]["legato_over_zram"], 0.5);
        assert_eq!(json["workloads"][0]["legato_us"]["median"], 10.0);
        assert!(json["workloads"][0]["legato_over_file"].is_null());
        assert_eq!(json["missing"][0]["name"], "file");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
