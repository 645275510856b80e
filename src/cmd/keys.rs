//! `ringfence keys`: the keys that sign tickets.
pub async fn run(_: crate::cli::KeysCommand) -> Result<u8, super::exit::Failure> {
    todo!()
}
