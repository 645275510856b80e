use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};

use super::{Cli, Command, parse_duration, parse_ttl};

#[test]
fn the_types_describe_a_valid_command_line() {
    Cli::command().debug_assert();
}

#[test]
fn times_have_units() {
    assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
    assert_eq!(parse_duration("15s"), Ok(Duration::from_secs(15)));
    assert_eq!(parse_duration("2d"), Ok(Duration::from_secs(172_800)));
    assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
    for bad in [
        "",
        "15",
        "s",
        "1.5s",
        "-1s",
        "1 s",
        "99999999999999999999s",
        "1w",
        "ü",
    ] {
        assert!(parse_duration(bad).is_err(), "{bad:?} was taken");
    }
    assert!(parse_ttl("499ms").is_err());
    assert!(parse_ttl("25h").is_err());
    assert!(parse_ttl("500ms").is_ok());
}

#[test]
fn a_command_begins_after_two_dashes_and_keeps_its_own_flags() {
    let cli = Cli::try_parse_from(["ringfence", "lock", "a/b", "--", "ls", "--wait", "-l"]);
    let Ok(Cli {
        command: Command::Lock(args),
    }) = cli
    else {
        panic!("{cli:?}")
    };
    assert_eq!(args.command, ["ls", "--wait", "-l"]);
    assert!(Cli::try_parse_from(["ringfence", "lock", "a//b"]).is_err());
    assert!(Cli::try_parse_from(["ringfence", "lock", "a", "ls"]).is_err());
}
