//! The `ringfence` binary: arguments, dispatch, exit code.

fn main() {}
