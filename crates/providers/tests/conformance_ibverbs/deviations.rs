//! The table of `docs/ibverbs.md`: rules that are not kept on rxe, and how exactly.

const DOCUMENT: &str = include_str!("../../../../docs/ibverbs.md");
const HEADING: &str = "## Rules that rxe breaks";

/// A rule that is broken.
#[derive(Debug)]
pub(crate) struct Deviation {
    pub(crate) rule: String,
    pub(crate) violation: String,
}

impl Deviation {
    pub(crate) fn listed() -> Vec<Self> {
        let (_, section) = DOCUMENT.split_once(HEADING).unwrap();
        let rows = section
            .lines()
            .take_while(|line| !line.starts_with("## "))
            .filter(|line| line.starts_with("| "));
        // The first row names the columns.
        let parsed = rows.skip(1).map(|row| {
            let mut cells = row.trim_matches(['|', ' ']).split(" | ");
            let mut cell = || cells.next().unwrap().to_owned();
            Self {
                rule: cell(),
                violation: cell(),
            }
        });
        parsed.collect()
    }
}

#[test]
fn every_listed_rule_is_a_rule() {
    let listed = Deviation::listed();
    assert!(!listed.is_empty());
    for deviation in listed {
        let rules = legato_verbs::conformance::rules();
        assert!(
            rules.iter().any(|rule| rule.name == deviation.rule),
            "{deviation:?}"
        );
    }
}
