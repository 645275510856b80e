//! The `ringfence` binary: see [`ringfence::cmd`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfence::cmd::run()
}
