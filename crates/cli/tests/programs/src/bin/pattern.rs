use std::process::ExitCode;

fn main() -> ExitCode {
    legato_test_programs::pattern::main()
}
