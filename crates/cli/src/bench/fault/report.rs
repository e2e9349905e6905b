//! What was measured, as a table and as JSON.

use crate::args::{BenchFaultArguments, TouchAccess, TouchOrder};
use legato_base::Bytes;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Who serves the memory, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Legato,
    /// Another version of it.
    Other,
    Zram,
    File,
    Plain,
}

impl Contender {
    pub(super) const ALL: [Self; 5] = [
        Self::Legato,
        Self::Other,
        Self::Zram,
        Self::File,
        Self::Plain,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Legato => "legato",
            Self::Other => "other",
            Self::Zram => "zram",
            Self::File => "file",
            Self::Plain => "plain",
        }
    }

    /// What Legato is set against.
    const fn is_baseline(self) -> bool {
        matches!(self, Self::Other | Self::Zram | Self::File)
    }
}

/// What is touched, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) order: TouchOrder,
    /// The memory, in caches.
    pub(super) times: u64,
    pub(super) access: TouchAccess,
    pub(super) threads: u32,
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

    pub(super) fn name(self) -> String {
        let (order, times, access) = (self.order.name(), self.times, self.access.name());
        match self.threads {
            1 => format!("{order} {times}x {access}"),
            threads => format!("{order} {times}x {access}, {threads} threads"),
        }
    }
}

/// Microseconds per touch, of every round.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) workload: Workload,
    rounds: [Vec<f64>; Contender::ALL.len()],
}

impl Row {
    pub(super) fn new(workload: Workload) -> Self {
        Self {
            workload,
            rounds: Default::default(),
        }
    }

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

    fn json(&self, contenders: &[Contender]) -> Value {
        let workload = self.workload;
        let mut value = json!({
            "order": workload.order.name(),
            "memory_over_cache": workload.times,
            "access": workload.access.name(),
            "threads": workload.threads,
        });
        for &contender in contenders {
            let name = contender.name();
            value[format!("{name}_us")] = json!({
                "median": self.median(contender),
                "rounds": self.rounds[contender as usize],
            });
            if contender.is_baseline() {
                value[format!("legato_over_{name}")] = json!(self.ratio(contender));
            }
        }
        value
    }
}

/// A run of the comparison.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) cache: Bytes,
    pub(super) rounds: u32,
    pub(super) passes: u32,
    pub(super) page_cluster: u32,
    /// What the swap areas were.
    pub(super) areas: Vec<String>,
    /// Who takes part.
    pub(super) contenders: Vec<Contender>,
    pub(super) rows: Vec<Row>,
    /// Why there are no figures of someone, or none after some round.
    pub(super) missing: Vec<(Contender, String)>,
}

impl Report {
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "us per touch of a page, medians of {} interleaved rounds of {} passes; cache and limit {}, \
             page-cluster {}",
            self.rounds, self.passes, self.cache, self.page_cluster,
        );
        for area in &self.areas {
            text += ", ";
            text += area;
        }
        let of = |row: &Row| row.workload.name();
        let width = self.rows.iter().map(|row| of(row).len()).max().unwrap_or(0);
        let heading = self.cells(
            |contender| contender.name().into(),
            |baseline| format!("legato/{}", baseline.name()),
        );
        // Writing to a String does not fail.
        let _ = writeln!(text, "\n{:<width$}{heading}", "workload");
        for row in &self.rows {
            let cells = self.cells(
                |contender| {
                    let digits = if contender == Contender::Plain { 3 } else { 2 };
                    number(row.median(contender), digits)
                },
                |baseline| number(row.ratio(baseline), 2),
            );
            let _ = writeln!(text, "{:<width$}{cells}", of(row));
        }
        for (contender, reason) in &self.missing {
            let _ = writeln!(text, "{} is missing: {reason}", contender.name());
        }
        text
    }

    /// What is said of each who takes part, and then of each that Legato is set against.
    fn cells(
        &self,
        of_contender: impl Fn(Contender) -> String,
        of_baseline: impl Fn(Contender) -> String,
    ) -> String {
        let times = self.contenders.iter().map(|&one| of_contender(one));
        let times = times.map(|cell| format!(" | {cell:>8}"));
        let baselines = self.contenders.iter().filter(|one| one.is_baseline());
        let ratios = baselines.map(|&one| format!(" | {:>12}", of_baseline(one)));
        times.chain(ratios).collect()
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| row.json(&self.contenders));
        json!({
            "cache_bytes": self.cache.0,
            "rounds": self.rounds,
            "passes": self.passes,
            "page_cluster": self.page_cluster,
            "swap_areas": self.areas,
            "workloads": rows.collect::<Value>(),
            "missing": self.missing.iter()
                .map(|(contender, reason)| json!({"name": contender.name(), "reason": reason}))
                .collect::<Value>(),
        })
    }
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

    fn report(contenders: &[Contender]) -> Report {
        let mut row = Row::new(Workload {
            order: TouchOrder::Random,
            times: 2,
            access: TouchAccess::Write,
            threads: 2,
        });
        for (legato, zram) in [
            (10_000.0, 20_000.0),
            (30_000.0, 40_000.0),
            (9_000.0, 90_000.0),
        ] {
            row.push(Contender::Legato, legato);
            row.push(Contender::Zram, zram);
        }
        Report {
            cache: Bytes::mib(64),
            rounds: 3,
            passes: 1,
            page_cluster: 0,
            areas: vec!["zram lz4".into()],
            contenders: contenders.into(),
            rows: vec![row],
            missing: vec![(Contender::File, "no disk".into())],
        }
    }

    #[test]
    fn ratios_are_medians_of_rounds_and_gaps_say_why() {
        use Contender::{File, Legato, Plain, Zram};
        let report = report(&[Legato, Zram, File, Plain]);
        let text = report.text();
        let table: Vec<Vec<_>> = text
            .lines()
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        assert_eq!(
            table[1..3],
            [
                [
                    "workload",
                    "legato",
                    "zram",
                    "file",
                    "plain",
                    "legato/zram",
                    "legato/file"
                ],
                [
                    "random 2x write, 2 threads",
                    "10.00",
                    "40.00",
                    "-",
                    "-",
                    "0.50",
                    "-"
                ],
            ]
        );
        assert!(text.ends_with("file is missing: no disk\n"), "{text}");
        let json = report.json();
        assert_eq!(json["workloads"][0]["legato_over_zram"], 0.5);
        assert_eq!(json["workloads"][0]["legato_us"]["median"], 10.0);
        assert!(json["workloads"][0]["legato_over_file"].is_null());
        assert_eq!(json["missing"][0]["name"], "file");
    }

    #[test]
    fn who_takes_no_part_is_not_in_the_table() {
        let report = report(&[Contender::Legato, Contender::Other]);
        let text = report.text();
        assert!(
            text.contains("legato/other") && !text.contains("zram |"),
            "{text}"
        );
        assert!(report.json()["workloads"][0].get("zram_us").is_none());
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
