//! The start-up parameter `options`: command-line switches, split as the server splits them
//! (`pg_split_opts`, `process_postgres_switches`).

use super::is_parameter;

/// Switches that take an argument, of the server's `getopt` string.
const WITH_ARGUMENT: &[u8] = b"BCcDdfhkNprStvW-";

/// What is left of `options`, and the value of `ringfence.token` that counts: the last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Taken {
    /// The value, unescaped.
    pub(super) value: Option<Vec<u8>>,
    /// The other switches as they came; none is left out by mistake.
    pub(super) rest: Vec<u8>,
}

struct Word<'o> {
    /// As it came.
    raw: &'o [u8],
    /// Without escapes.
    text: Vec<u8>,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\x0b' | b'\x0c' | b'\r')
}

fn words(options: &[u8]) -> Vec<Word<'_>> {
    let mut words = vec![];
    let mut at = 0;
    while at < options.len() {
        if is_space(options[at]) {
            at += 1;
            continue;
        }
        let (start, mut text) = (at, vec![]);
        while at < options.len() && !is_space(options[at]) {
            // A backslash takes the next byte as it is; at the end it is nothing.
            if options[at] == b'\\' {
                at += 1;
                if at == options.len() {
                    break;
                }
            }
            text.push(options[at]);
            at += 1;
        }
        words.push(Word {
            raw: &options[start..at],
            text,
        });
    }
    words
}

/// Takes every `-c ringfence.token=...` (also `--ringfence.token=...`) out of `options`.
pub(super) fn take(options: &[u8]) -> Taken {
    let mut taken = Taken::default();
    let words = words(options);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word.text == b"--" {
            // The end of the switches; what follows is refused by the server.
            taken.keep(word.raw);
            words.by_ref().for_each(|word| taken.keep(word.raw));
            break;
        }
        let Some((flags, switch, attached)) = switch_with_argument(&word.text) else {
            taken.keep(word.raw);
            continue;
        };
        let detached = attached.is_empty().then(|| words.next()).flatten();
        let argument = detached.map_or(attached, |word| &word.text);
        match value_of(switch, argument) {
            Some(value) => {
                taken.value = Some(value.to_vec());
                if !flags.is_empty() {
                    let flags = [b"-", flags].concat();
                    taken.keep(&flags);
                }
            }
            None => {
                taken.keep(word.raw);
                if let Some(word) = detached {
                    taken.keep(word.raw);
                }
            }
        }
    }
    taken
}

/// The first switch of a word that takes an argument: the flags before it, its letter, and what is
/// attached to it.
fn switch_with_argument(word: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let letters = word.strip_prefix(b"-").filter(|rest| !rest.is_empty())?;
    let at = letters
        .iter()
        .position(|letter| WITH_ARGUMENT.contains(letter))?;
    Some((&letters[..at], letters[at], &letters[at + 1..]))
}

fn value_of(switch: u8, argument: &[u8]) -> Option<&[u8]> {
    if !matches!(switch, b'c' | b'-') {
        return None;
    }
    let equals = argument.iter().position(|byte| *byte == b'=')?;
    let name = std::str::from_utf8(&argument[..equals]).ok()?;
    is_parameter(name).then(|| &argument[equals + 1..])
}

impl Taken {
    fn keep(&mut self, raw: &[u8]) {
        if !self.rest.is_empty() {
            self.rest.push(b' ');
        }
        self.rest.extend_from_slice(raw);
    }
}
