//! `CLIENT REPLY`: which replies the client does not want, in the order in which commands run.

use super::plan::Effect;

/// `CLIENT REPLY`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReplyMode {
    On,
    Off,
    Skip,
}

/// What is withheld at a point in the order of replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Withheld {
    off: bool,
    /// The command at hand is skipped.
    skip: bool,
}

impl Withheld {
    /// Whether the client does not get the answer to a command.
    pub(super) fn takes(self, effect: Effect, error: bool) -> bool {
        match (effect, error) {
            // They turn replies on before they answer; one that is skipped stays so by `RESET`.
            (Effect::ReplyMode(ReplyMode::On), false) => false,
            (Effect::Reset, false) => self.skip,
            (Effect::ReplyMode(_), false) => true,
            _ => self.off || self.skip,
        }
    }

    /// A command has been answered.
    pub(super) fn pass(&mut self, effect: Effect, error: bool) {
        self.skip = false;
        match (effect, error) {
            (Effect::ReplyMode(ReplyMode::On) | Effect::Reset, false) => self.off = false,
            (Effect::ReplyMode(ReplyMode::Off), false) => self.off = true,
            // Without effect while replies are off.
            (Effect::ReplyMode(ReplyMode::Skip), false) => self.skip = !self.off,
            _ => {}
        }
    }
}
