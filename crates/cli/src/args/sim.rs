//! Arguments of `legato sim`.

use clap::Args;
use legato_sim::fault::DecisionList;
use legato_sim::provider::Personality;
use legato_sim::scenario::{self, Scenario};

const SIM_AFTER_HELP: &str = "\
Exit status:
  0    every run held;
  1    an invariant was broken: standard output has the shortest history that was found;
  2    an argument is wrong;
  130  interrupted (SIGINT), and every run until then held.

JSON, with --seeds or --scenario: `scenario`, `personality` (null: drawn from each seed), `steps`,
`seeds_asked`, `seeds_run`, `interrupted`, `histories` (the sum of all trace hashes, in hexadecimal: the same
on every machine), `known_to_fail` (null or why), `runs` (of each seed: `seed`, `personality`, `held`,
`trace_hash`, `elapsed_ns`, `counts`, and `faults`: what each rule did), `failures`
(`seed`, `personality`, `invariant`, `detail`, `at_ns`, `step`, `machines`, `replay`, and, where the run was
shrunk, `full` and `shrunk` with `steps`, `decisions` and `lines`, `decisions`, `history`).
With --list: a list of `name`, `what`, `steps`, `personalities`, `known_to_fail`.
Otherwise, for one world of the scenario memory: what it did and every counter of its pager.";

/// Run a simulated scenario, in virtual time: work under faults, with every invariant checked.
///
/// Scenario, seed and number of steps name one history, whose hash is printed. Without --scenario
/// it is a random program on far memory, every page checked.
#[derive(Debug, Args)]
#[command(after_help = SIM_AFTER_HELP)]
pub(crate) struct SimArguments {
    /// Which history; with --seeds the first of them.
    #[arg(long, value_name = "N", required_unless_present = "list")]
    pub(crate) seed: Option<u64>,
    /// How many seeds, one after another.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: u64,
    /// Which scenario [default: memory].
    #[arg(long, value_name = "NAME", value_parser = scenario)]
    pub(crate) scenario: Option<&'static Scenario>,
    /// How the simulated NICs behave: ideal, mlx5, rxe, iwarp, ehca, hostile, clocked or
    /// careless [default: drawn from the seed among those under which the scenario is to hold].
    #[arg(long, value_name = "NAME", value_parser = personality)]
    pub(crate) personality: Option<&'static str>,
    /// Steps of the phase with faults; for memory, operations of the program [default: the
    /// scenario's].
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// Of the faults that the seed draws only these, as the end of a report names them: the shortest
    /// history that fails.
    #[arg(long, value_name = "LIST", conflicts_with = "seeds")]
    pub(crate) only: Option<DecisionList>,
    /// Name all scenarios, and run none.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "scenario", "personality", "steps", "only"])]
    pub(crate) list: bool,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl SimArguments {
    /// What the parser cannot say about one argument alone.
    pub(crate) fn check(&self) -> Result<(), String> {
        // Its worlds draw what goes wrong as they go.
        if self.only.is_some() && self.scenario.is_none_or(|it| it.personalities.is_empty()) {
            let name = self.scenario.map_or("memory", |scenario| scenario.name);
            return Err(format!(
                "the scenario {name} has no list of faults; leave --only out"
            ));
        }
        let (Some(scenario), Some(personality)) = (self.scenario, self.personality) else {
            return match self.personality {
                Some(_) => Err(no_personalities("memory")),
                None => Ok(()),
            };
        };
        if scenario.personalities.contains(&personality) {
            return Ok(());
        }
        Err(match scenario.personalities {
            [] => no_personalities(scenario.name),
            some => format!(
                "the scenario {} has only {}; name one of these",
                scenario.name,
                some.join(", ")
            ),
        })
    }
}

fn no_personalities(scenario: &str) -> String {
    format!("the scenario {scenario} has no personalities; leave --personality out")
}

fn scenario(name: &str) -> Result<&'static Scenario, String> {
    scenario::find(name).ok_or_else(|| {
        let names: Vec<_> = scenario::ALL.iter().map(|scenario| scenario.name).collect();
        format!("there are {}", names.join(", "))
    })
}

fn personality(name: &str) -> Result<&'static str, String> {
    name.parse::<Personality>()
        .map(|personality| personality.name)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use crate::args::{Arguments, Command};
    use clap::Parser as _;

    #[test]
    fn a_scenario_has_a_seed_and_a_personality_of_its_own() {
        let parse = |line: &[&str]| match Arguments::try_parse_from(line).unwrap().command {
            Command::Sim(arguments) => arguments,
            other => panic!("{other:?}"),
        };
        let old = parse(&["legato", "sim", "--seed", "7", "--steps", "100"]);
        assert!(old.scenario.is_none() && old.check().is_ok());
        assert_eq!((old.seed, old.steps, old.seeds), (Some(7), Some(100), 1));
        let line = ["legato", "sim", "--seed", "7", "--scenario"];
        let traffic = parse(&[&line[..], &["traffic", "--personality", "rxe"]].concat());
        assert_eq!(traffic.check(), Ok(()));
        let memory = parse(&[&line[..], &["memory", "--personality", "rxe"]].concat());
        assert!(memory.check().is_err());
        let scribbler = parse(&[&line[..], &["scribbler", "--personality", "rxe"]].concat());
        assert!(scribbler.check().unwrap_err().contains("hostile"));
        assert!(parse(&["legato", "sim", "--list"]).list);
    }

    #[test]
    fn faults_that_are_left_are_a_list() {
        let with = |rest: &[&str]| {
            let line = ["legato", "sim", "--seed", "7"];
            match Arguments::try_parse_from([&line[..], rest].concat()) {
                Ok(parsed) => match parsed.command {
                    Command::Sim(arguments) => arguments.check(),
                    other => panic!("{other:?}"),
                },
                Err(error) => Err(error.to_string()),
            }
        };
        let list = ["--only", "2.l0-1.5+17,act.7"];
        let mixed = ["--scenario", "mixed"];
        assert_eq!(with(&[mixed, list].concat()), Ok(()));
        assert_eq!(with(&[mixed, ["--only", "none"]].concat()), Ok(()));
        let refused = with(&[mixed, ["--only", "act.7,act"]].concat()).unwrap_err();
        assert!(refused.contains("'act' is no decision; "), "{refused}");
        assert!(with(&[mixed, list, ["--seeds", "2"]].concat()).is_err());
        for memory in [&list[..], &[&["--scenario", "memory"][..], &list].concat()] {
            let refused = with(memory).unwrap_err();
            assert!(
                refused.contains("memory has no list of faults"),
                "{refused}"
            );
        }
    }
}
