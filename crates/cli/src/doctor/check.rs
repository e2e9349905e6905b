//! What was found, and how it is shown.

use serde_json::{Value, json};
use std::fmt::Write as _;

/// The worst of several is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Ok,
    Warning,
    Cannot,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Cannot => "cannot",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    pub(super) why: String,
    /// What to do, if anything.
    pub(super) advice: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, why: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            why: why.into(),
            advice: None,
        }
    }

    pub(super) fn warning(
        name: &'static str,
        why: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warning,
            advice: Some(advice.into()),
            ..Self::ok(name, why)
        }
    }

    pub(super) fn cannot(
        name: &'static str,
        why: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Cannot,
            ..Self::warning(name, why, advice)
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "verdict": self.verdict.name(),
            "why": self.why,
            "advice": self.advice,
        })
    }
}

/// How long one operation takes here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Speed {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Or why it was not measured.
    pub(super) p50_ns: Result<u64, String>,
}

impl Speed {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "what": self.what,
            "p50_ns": self.p50_ns.as_ref().ok(),
            "missing": self.p50_ns.as_ref().err(),
        })
    }
}

#[derive(Debug)]
pub(super) struct Report {
    pub(super) checks: Vec<Check>,
    pub(super) speeds: Vec<Speed>,
}

impl Report {
    /// Of the machine as a whole.
    pub(super) fn verdict(&self) -> Verdict {
        let verdicts = self.checks.iter().map(|check| check.verdict);
        verdicts.max().unwrap_or(Verdict::Ok)
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        for check in &self.checks {
            let verdict = check.verdict.name();
            let _ = writeln!(text, "{verdict:<8} {:<22} {}", check.name, check.why);
            if let Some(advice) = &check.advice {
                let _ = writeln!(text, "{:<31} -> {advice}", "");
            }
        }
        if !self.speeds.is_empty() {
            let _ = writeln!(text, "\nspeed (p50):");
        }
        for speed in &self.speeds {
            let figure = match &speed.p50_ns {
                Ok(ns) => format!("{:>8.2} us", *ns as f64 / 1e3),
                Err(why) => format!("not measured: {why}"),
            };
            let _ = writeln!(text, "  {:<58} {figure}", speed.what);
        }
        let warnings = self.count(Verdict::Warning);
        let _ = match self.verdict() {
            Verdict::Ok => writeln!(text, "\nThis machine can run programs on far memory."),
            Verdict::Warning => writeln!(
                text,
                "\nThis machine can run programs on far memory, with {warnings} warning{}.",
                if warnings == 1 { "" } else { "s" }
            ),
            Verdict::Cannot => writeln!(text, "\nThis machine cannot run programs on far memory."),
        };
        text
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "verdict": self.verdict().name(),
            "checks": self.checks.iter().map(Check::json).collect::<Value>(),
            "speed": self.speeds.iter().map(Speed::json).collect::<Value>(),
        })
    }

    fn count(&self, verdict: Verdict) -> usize {
        let such = self.checks.iter().filter(|check| check.verdict == verdict);
        such.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checks: Vec<Check>) -> Report {
        let speeds = vec![
            Speed {
                name: "zero-fill",
                what: "a fault",
                p50_ns: Ok(1_500),
            },
            Speed {
                name: "copy",
                what: "a served fault",
                p50_ns: Err("no right".into()),
            },
        ];
        Report { checks, speeds }
    }

    #[test]
    fn the_worst_check_decides() {
        let mut checks = vec![Check::ok("memory", "8 GiB")];
        assert_eq!(report(checks.clone()).verdict(), Verdict::Ok);
        checks.push(Check::warning("processors", "1", "add one"));
        assert_eq!(report(checks.clone()).verdict(), Verdict::Warning);
        checks.push(Check::cannot("userfaultfd", "no right", "be root"));
        checks.push(Check::ok("swap", "none"));
        assert_eq!(report(checks).verdict(), Verdict::Cannot);
    }

    #[test]
    fn every_check_is_a_line_and_advice_another() {
        let checks = vec![
            Check::ok("memory", "8 GiB"),
            Check::warning("processors", "one", "give it two"),
        ];
        let text = report(checks).text();
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "ok       memory                 8 GiB");
        assert_eq!(lines[1], "warning  processors             one");
        assert_eq!(lines[2].trim_start(), "-> give it two");
        assert!(lines[5].ends_with("1.50 us"), "{text}");
        assert!(lines[6].ends_with("not measured: no right"), "{text}");
        assert!(text.ends_with("with 1 warning.\n"), "{text}");
    }

    #[test]
    fn json_has_everything() {
        let json = report(vec![Check::cannot("userfaultfd", "no right", "be root")]).json();
        assert_eq!(json["verdict"], "cannot");
        assert_eq!(json["checks"][0]["name"], "userfaultfd");
        assert_eq!(json["checks"][0]["advice"], "be root");
        assert_eq!(json["speed"][0]["p50_ns"], 1_500);
        assert!(json["speed"][1]["p50_ns"].is_null());
        assert_eq!(json["speed"][1]["missing"], "no right");
    }
}
