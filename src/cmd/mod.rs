//! Composition roots: each command builds the parts that it needs and runs them.
//!
//! Left to others: what the command line looks like ([`crate::cli`]), and everything that the parts
//! do.

mod admin_port;
mod audit;
mod demo;
mod dev;
mod exit;
mod keys;
mod lock;
mod lockd;
mod locks;
mod proxies;
mod proxy;
mod proxy_client;
mod registry_client;
mod seal;
mod signals;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use crate::cli::{AuditCommand, Cli, Command};
use crate::telemetry;

use exit::Failure;

/// Parses the arguments of the process and runs the command.
pub fn run() -> ExitCode {
    let cli = match parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => {
            // Printing to a closed pipe is nobody's failure.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                exit::USAGE
            } else {
                exit::OK
            });
        }
    };
    telemetry::log_to_stderr();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return end(Err(Failure::because("cannot start", error))),
    };
    let ended = runtime.block_on(dispatch(cli.command));
    // A blocking read or a task that waits for a peer must not keep the process.
    runtime.shutdown_background();
    end(ended)
}

fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let ends_options = args.last().is_some_and(|last| last == "--");
    let cli = Cli::try_parse_from(args)?;
    match &cli.command {
        // `ringfence lock NAME -- $CMD` where CMD is empty: without it the lock would be held for
        // ever.
        Command::Lock(lock) if lock.command.is_empty() && ends_options => {
            let message = "no command follows `--`";
            Err(Cli::command().error(ErrorKind::MissingRequiredArgument, message))
        }
        _ => Ok(cli),
    }
}

async fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Lock(args) => lock::run(args).await,
        Command::Locks(args) => locks::list(args).await,
        Command::Show(args) => locks::show(args).await,
        Command::Watch(args) => locks::watch(args).await,
        Command::Seal(args) => seal::run(args).await,
        Command::Proxies(command) => proxies::run(command).await,
        Command::Audit(AuditCommand::Tail(args)) => audit::tail(args).await,
        Command::Keys(command) => keys::run(command).await,
        Command::Lockd(args) => lockd::run(args).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Dev(args) => dev::run(*args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::DemoWriter(args) => demo::run_writer(args).await,
    }
}

fn end(ended: Result<u8, Failure>) -> ExitCode {
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// A message on stderr. That nobody reads it is no reason to panic, as `eprintln` would: what is
/// told of may still have to be done.
fn complain(message: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "ringfence: {message}");
}

/// One line on stdout, at once.
fn print_line(line: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::because("cannot write to stdout", error))
}

/// One JSON value on a line of its own on stdout.
fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&value.to_string())
}
