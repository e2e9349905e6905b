//! What was measured, as a table and as JSON.

use legato_base::Bytes;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Who serves the memory, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Legato,
    /// Another version of it.
    Other,
    Zram,
    File,
    Plain,
}

impl Contender {
    pub(crate) const ALL: [Self; 5] = [
        Self::Legato,
        Self::Other,
        Self::Zram,
        Self::File,
        Self::Plain,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Legato => "legato",
            Self::Other => "other",
            Self::Zram => "zram",
            Self::File => "file",
            Self::Plain => "plain",
        }
    }
}

/// Of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Microseconds,
    Seconds,
}

impl Unit {
    pub(crate) const fn symbol(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Seconds => "s",
        }
    }
}

/// A workload and its figures of every round.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// What it is, as members of a JSON object.
    description: Value,
    /// None where a run gave no figure.
    rounds: [Vec<Option<f64>>; Contender::ALL.len()],
}

impl Row {
    pub(crate) fn new(name: String, description: Value) -> Self {
        Self {
            name,
            description,
            rounds: Default::default(),
        }
    }

    pub(crate) fn push(&mut self, contender: Contender, figure: Option<f64>) {
        self.rounds[contender as usize].push(figure);
    }

    fn median(&self, contender: Contender) -> Option<f64> {
        median(self.rounds[contender as usize].iter().flatten().copied())
    }

    /// Of the ratios within a round, whose runs the machine's other work met alike.
    fn ratio(&self, baseline: Contender) -> Option<f64> {
        let legato = &self.rounds[Contender::Legato as usize];
        let pairs = legato.iter().zip(&self.rounds[baseline as usize]);
        median(pairs.filter_map(|(legato, baseline)| Some((*legato)? / (*baseline)?)))
    }

    fn json(&self, report: &Report) -> Value {
        let mut value = self.description.clone();
        for &contender in &report.conditions.contenders {
            let name = contender.name();
            value[format!("{name}_{}", report.unit.symbol())] = json!({
                "median": self.median(contender),
                "rounds": self.rounds[contender as usize],
            });
        }
        for baseline in report.baselines() {
            value[format!("legato_over_{}", baseline.name())] = json!(self.ratio(baseline));
        }
        value
    }
}

/// Why a figure of someone is not there.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) contender: Contender,
    /// Which figure, or from which on.
    pub(crate) what: String,
    pub(crate) reason: String,
}

/// Under which the contenders meet.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub(crate) rounds: u32,
    pub(crate) cache: Bytes,
    pub(crate) page_cluster: u32,
    /// What the swap areas are.
    pub(crate) areas: Vec<String>,
    /// Who takes part, in the order of a round.
    pub(crate) contenders: Vec<Contender>,
}

/// A run of the comparison.
#[derive(Debug)]
pub(crate) struct Report {
    /// What a figure is.
    pub(crate) title: String,
    pub(crate) unit: Unit,
    /// What was the same in all runs, as members of a JSON object.
    pub(crate) settings: Value,
    pub(crate) conditions: Conditions,
    /// Is local memory something to be set against too?
    pub(crate) plain_is_baseline: bool,
    pub(crate) rows: Vec<Row>,
    pub(crate) missing: Vec<Missing>,
}

impl Report {
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}; cache and limit {}, page-cluster {}",
            self.title, self.conditions.cache, self.conditions.page_cluster,
        );
        for area in &self.conditions.areas {
            text += ", ";
            text += area;
        }
        let names = self.rows.iter().map(|row| row.name.len());
        let width = names.max().unwrap_or(0).max("workload".len());
        let heading = self.cells(
            |contender| contender.name().into(),
            |baseline| format!("legato/{}", baseline.name()),
        );
        // Writing to a String does not fail.
        let _ = writeln!(text, "\n{:<width$}{heading}", "workload");
        for row in &self.rows {
            let cells = self.cells(
                |contender| {
                    let nothing_waits = contender == Contender::Plain && !self.plain_is_baseline;
                    number(row.median(contender), if nothing_waits { 3 } else { 2 })
                },
                |baseline| number(row.ratio(baseline), 2),
            );
            let _ = writeln!(text, "{:<width$}{cells}", row.name);
        }
        for missing in &self.missing {
            let (name, what) = (missing.contender.name(), &missing.what);
            let _ = writeln!(text, "{name} is missing {what}: {}", missing.reason);
        }
        text
    }

    /// Those of the contenders that Legato is set against.
    fn baselines(&self) -> impl Iterator<Item = Contender> {
        let contenders = self.conditions.contenders.iter().copied();
        contenders.filter(|one| match one {
            Contender::Legato => false,
            Contender::Plain => self.plain_is_baseline,
            Contender::Other | Contender::Zram | Contender::File => true,
        })
    }

    /// What is said of each who takes part, and then of each that Legato is set against.
    fn cells(
        &self,
        of_contender: impl Fn(Contender) -> String,
        of_baseline: impl Fn(Contender) -> String,
    ) -> String {
        let times = self
            .conditions
            .contenders
            .iter()
            .map(|&one| of_contender(one));
        let times = times.map(|cell| format!(" | {cell:>8}"));
        let ratios = self
            .baselines()
            .map(|one| format!(" | {:>12}", of_baseline(one)));
        times.chain(ratios).collect()
    }

    pub(crate) fn json(&self) -> Value {
        let mut value = self.settings.clone();
        value["cache_bytes"] = self.conditions.cache.0.into();
        value["rounds"] = self.conditions.rounds.into();
        value["page_cluster"] = self.conditions.page_cluster.into();
        value["swap_areas"] = self.conditions.areas.clone().into();
        value["workloads"] = self.rows.iter().map(|row| row.json(self)).collect();
        let missing = self.missing.iter().map(|missing| {
            json!({
                "name": missing.contender.name(),
                "what": missing.what,
                "reason": missing.reason,
            })
        });
        value["missing"] = missing.collect();
        value
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
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
        let mut row = Row::new("random".into(), json!({"order": "random"}));
        for (legato, zram) in [(10.0, 20.0), (30.0, 40.0), (9.0, 90.0)] {
            row.push(Contender::Legato, Some(legato));
            row.push(Contender::Zram, Some(zram));
            row.push(Contender::Plain, Some(legato / 2.0));
        }
        Report {
            title: "us per touch".into(),
            unit: Unit::Microseconds,
            settings: json!({"passes": 1}),
            conditions: Conditions {
                rounds: 3,
                cache: Bytes::mib(64),
                page_cluster: 0,
                areas: vec!["zram lz4".into()],
                contenders: contenders.into(),
            },
            plain_is_baseline: false,
            rows: vec![row],
            missing: vec![Missing {
                contender: Contender::File,
                what: "from round 1 on".into(),
                reason: "no disk".into(),
            }],
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
                ["random", "10.00", "40.00", "-", "5.000", "0.50", "-"],
            ]
        );
        assert!(
            text.ends_with("file is missing from round 1 on: no disk\n"),
            "{text}"
        );
        let json = report.json();
        assert_eq!(json["workloads"][0]["legato_over_zram"], 0.5);
        assert_eq!(json["workloads"][0]["legato_us"]["median"], 10.0);
        assert!(json["workloads"][0]["legato_over_file"].is_null());
        assert_eq!(json["workloads"][0]["order"], "random");
        assert_eq!(json["passes"], 1);
        assert_eq!(json["missing"][0]["name"], "file");
    }

    #[test]
    fn a_round_without_a_figure_takes_its_counterpart_along() {
        let mut report = report(&[Contender::Legato, Contender::Zram]);
        let row = &mut report.rows[0];
        for (legato, zram) in [
            (None, Some(1.0)),
            (Some(1.0), None),
            (Some(8.0), Some(40.0)),
        ] {
            row.push(Contender::Legato, legato);
            row.push(Contender::Zram, zram);
        }
        // Of 0.5, 0.75, 0.1 and 0.2.
        assert_eq!(row.ratio(Contender::Zram), Some(0.35));
        let json = report.json();
        assert_eq!(json["workloads"][0]["zram_us"]["median"], 40.0);
        assert!(json["workloads"][0]["legato_us"]["rounds"][3].is_null());
    }

    #[test]
    fn local_memory_is_a_baseline_where_it_means_something() {
        let mut report = report(&[Contender::Legato, Contender::Plain]);
        assert!(!report.text().contains("legato/plain"));
        report.plain_is_baseline = true;
        report.unit = Unit::Seconds;
        assert!(report.text().contains("legato/plain"));
        let json = report.json();
        assert_eq!(json["workloads"][0]["legato_over_plain"], 2.0);
        assert_eq!(json["workloads"][0]["plain_s"]["median"], 5.0);
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
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }
}
