//! `--name VALUE` and `--flag`, in any order.

use legato_base::Bytes;
use std::collections::BTreeMap;

/// The options that a program was started with.
#[derive(Debug)]
pub struct Options {
    values: BTreeMap<String, String>,
    flags: Vec<String>,
}

impl Options {
    /// Ends the program with status 2 if an argument is in neither list.
    pub fn parse(value_names: &[&str], flag_names: &[&str]) -> Self {
        let mut options = Self {
            values: BTreeMap::new(),
            flags: Vec::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            if flag_names.contains(&argument.as_str()) {
                options.flags.push(argument);
            } else if value_names.contains(&argument.as_str()) {
                let Some(value) = arguments.next() else {
                    fail(&format!("{argument} needs a value"))
                };
                options.values.insert(argument, value);
            } else {
                fail(&format!("unknown argument {argument}"));
            }
        }
        options
    }

    pub fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub fn number(&self, name: &str, default: u64) -> u64 {
        self.text(name).map_or(default, |text| match text.parse() {
            Ok(number) => number,
            Err(_) => fail(&format!("{name}: '{text}' is not a number")),
        })
    }

    /// Whole pages in the size given with `name`.
    pub fn pages(&self, name: &str, default: Bytes) -> u64 {
        let size = self.text(name).map_or(default, |text| match text.parse() {
            Ok(size) => size,
            Err(error) => fail(&format!("{name}: {error}")),
        });
        size.whole_pages()
    }
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(2)
}
