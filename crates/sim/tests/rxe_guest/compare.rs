//! Compares two lists of lines, key by key: equal, or a difference that is written down.
//!
//! A line is `KEY: VALUE`. Two tables say where another value is right, and both must stay true:
//! an entry that no longer differs, or that is about no line, is a failure as well.

use std::collections::BTreeMap;

/// The lines of one run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// What follows `kernel` in the first line of a run of the guest.
    pub(crate) kernel: Option<String>,
    lines: BTreeMap<String, String>,
}

impl Trace {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut kernel = None;
        let mut lines = BTreeMap::new();
        for line in content(text) {
            if let Some(version) = line.strip_prefix("kernel ") {
                kernel = Some(version.to_owned());
                continue;
            }
            let (key, value) = line
                .split_once(": ")
                .ok_or_else(|| format!("not a line of a probe: {line}"))?;
            if lines.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(format!("{key}: twice"));
            }
        }
        Ok(Self { kernel, lines })
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }
}

/// Lines whose value the device leaves open, and every value that it may have.
#[derive(Debug)]
pub(crate) struct Races(BTreeMap<String, Vec<String>>);

impl Races {
    /// `KEY | VALUE`, a line for each value.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut races = BTreeMap::<String, Vec<String>>::new();
        for line in content(text) {
            let [key, value] = fields(line)?;
            races.entry(key).or_default().push(value);
        }
        if let Some((key, _)) = races.iter().find(|(_, values)| values.len() < 2) {
            return Err(format!("{key}: one value is no race"));
        }
        Ok(Self(races))
    }

    fn allow(&self, key: &str, expected: &str, found: &str) -> bool {
        match self.0.get(key) {
            Some(values) => values.iter().any(|value| value == found),
            None => expected == found,
        }
    }
}

/// Where the other side is known to differ from the reference, and why.
#[derive(Debug)]
pub(crate) struct Deviations(Vec<Deviation>);

#[derive(Debug)]
struct Deviation {
    key: String,
    value: Expected,
}

#[derive(Debug)]
enum Expected {
    /// `-`: the other side has no such line.
    Missing,
    /// `-` for a key that ends in `*`: it has none of the lines that begin so.
    AllMissing,
    Value(String),
}

impl Deviations {
    /// `KEY | VALUE | REASON`, with `-` for a missing line; `BEGINNING* | - | REASON` for many.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut deviations: Vec<Deviation> = Vec::new();
        for line in content(text) {
            let [key, value, reason] = fields(line)?;
            if reason.is_empty() {
                return Err(format!("{key}: a deviation without a reason"));
            }
            if deviations.iter().any(|other| other.key == key) {
                return Err(format!("{key}: two deviations"));
            }
            let (key, value) = match (key.strip_suffix('*'), value.as_str()) {
                (Some(beginning), "-") => (beginning.to_owned(), Expected::AllMissing),
                (Some(_), _) => return Err(format!("{key}: only missing lines can be many")),
                (None, "-") => (key, Expected::Missing),
                (None, _) => (key, Expected::Value(value)),
            };
            deviations.push(Deviation { key, value });
        }
        Ok(Self(deviations))
    }

    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }

    fn covers_missing(&self, key: &str) -> bool {
        self.0.iter().any(|deviation| match deviation.value {
            Expected::Missing => deviation.key == key,
            Expected::AllMissing => key.starts_with(&deviation.key),
            Expected::Value(_) => false,
        })
    }

    fn value_of(&self, key: &str) -> Option<&str> {
        self.0.iter().find_map(|deviation| match &deviation.value {
            Expected::Value(value) if deviation.key == key => Some(value.as_str()),
            _ => None,
        })
    }
}

/// Every disagreement, as a line for people; none means that `other` is what it should be.
pub(crate) fn compare(
    reference: &Trace,
    other: &Trace,
    races: &Races,
    deviations: &Deviations,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, expected) in &reference.lines {
        match (other.lines.get(key), deviations.value_of(key)) {
            (None, _) if !deviations.covers_missing(key) => wrong.push(format!("{key}: missing")),
            (Some(found), None) if !races.allow(key, expected, found) => {
                wrong.push(format!(
                    "{key}:\n  reference {expected}\n  found     {found}"
                ));
            }
            // Equal to the reference is found below, as a stale entry.
            (Some(found), Some(known)) if found != known && !races.allow(key, expected, found) => {
                wrong.push(format!(
                    "{key}:\n  reference {expected}\n  deviation {known}\n  found     {found}"
                ));
            }
            _ => {}
        }
    }
    for (key, found) in &other.lines {
        if !reference.lines.contains_key(key) && deviations.value_of(key) != Some(found) {
            wrong.push(format!("{key}: not in the reference: {found}"));
        }
    }
    wrong.extend(stale_races(reference, races));
    wrong.extend(stale_deviations(reference, other, races, deviations));
    wrong
}

fn stale_races<'a>(
    reference: &'a Trace,
    races: &'a Races,
) -> impl Iterator<Item = String> + use<'a> {
    races.0.iter().filter_map(|(key, values)| {
        let Some(expected) = reference.lines.get(key) else {
            return Some(format!("{key}: a race, but not in the reference"));
        };
        (!values.contains(expected))
            .then(|| format!("{key}: the race does not allow the reference's {expected}"))
    })
}

fn stale_deviations(
    reference: &Trace,
    other: &Trace,
    races: &Races,
    deviations: &Deviations,
) -> Vec<String> {
    let mut stale = Vec::new();
    for Deviation { key, value } in &deviations.0 {
        let expected = reference.lines.get(key);
        let found = other.lines.get(key);
        let problem = match (value, expected, found) {
            (Expected::AllMissing, ..) => {
                let mut lines = reference.lines.keys().filter(|line| line.starts_with(key));
                match lines.clone().next() {
                    None => Some("no line of the reference begins so".to_owned()),
                    Some(_) => lines
                        .find(|line| other.lines.contains_key(*line))
                        .map(|line| format!("{line} is there")),
                }
            }
            (_, None, None) => Some("neither side has such a line".to_owned()),
            (Expected::Missing, None, _) => Some("not in the reference".to_owned()),
            (Expected::Missing, _, Some(_)) => Some("it is there".to_owned()),
            (Expected::Value(_), _, None) => Some("the line is missing".to_owned()),
            (Expected::Value(known), Some(expected), Some(found)) => {
                if races.allow(key, expected, known) {
                    Some("it says what the reference allows".to_owned())
                } else if races.allow(key, expected, found) {
                    Some("it no longer differs".to_owned())
                } else {
                    None
                }
            }
            (Expected::Missing, Some(_), None) | (Expected::Value(_), None, Some(_)) => None,
        };
        stale.extend(problem.map(|problem| format!("deviation of {key}: {problem}")));
    }
    stale
}

/// Lines that say something: not empty, not a remark.
fn content(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim_end);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn fields<const N: usize>(line: &str) -> Result<[String; N], String> {
    let fields: Vec<_> = line
        .splitn(N, '|')
        .map(|field| field.trim().to_owned())
        .collect();
    fields
        .try_into()
        .map_err(|_| format!("{N} fields between | expected: {line}"))
}

#[cfg(test)]
mod tests;
