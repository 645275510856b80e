//! Reads one TOML table key by key, keeps every error with its line, and knows which keys were
//! asked for: what is left over is unknown.

use std::net::SocketAddr;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::values::check_listen;
use super::{ConfigError, ConfigErrors};
use crate::clock;

/// The errors of one file, and what turns offsets into lines.
pub(super) struct Report<'t> {
    text: &'t str,
    errors: Vec<(usize, String)>,
}

/// Parses the text and reads it; all errors together, in the order of their places.
pub(super) fn parse<T>(
    text: &str,
    read: impl FnOnce(&mut Report<'_>, &mut Table<'_, '_>) -> Option<T>,
) -> Result<T, ConfigErrors> {
    let mut report = Report {
        text,
        errors: vec![],
    };
    let (root, syntax) = DeTable::parse_recoverable(text);
    for error in &syntax {
        let at = error.span().map_or(0, |span| span.start);
        report.error(at, format!("not TOML: {}", error.message()));
    }
    // A file that is not TOML is not read further: what the parser guessed would only confuse.
    let read = if syntax.is_empty() {
        let mut table = Table::new("", 0, root.get_ref());
        let read = read(&mut report, &mut table);
        table.finish(&mut report);
        read
    } else {
        None
    };
    report.finish(read)
}

impl Report<'_> {
    /// Adds an error at this offset.
    pub(super) fn error(&mut self, at: usize, message: impl Into<String>) {
        self.errors.push((at, message.into()));
    }

    /// The line of an offset, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        1 + self
            .text
            .bytes()
            .take(at)
            .filter(|&byte| byte == b'\n')
            .count()
    }

    fn finish<T>(mut self, read: Option<T>) -> Result<T, ConfigErrors> {
        match read {
            Some(read) if self.errors.is_empty() => Ok(read),
            _ => {
                self.errors.sort_by_key(|(at, _)| *at);
                let told = self.errors.iter().map(|(at, message)| ConfigError {
                    line: Some(self.line(*at)),
                    message: message.clone(),
                });
                Err(ConfigErrors {
                    file: None,
                    errors: told.collect(),
                })
            }
        }
    }
}

/// A table while it is read. `'s` is the text, `'t` the parsed tree.
pub(super) struct Table<'t, 's> {
    name: String,
    at: usize,
    table: &'t DeTable<'s>,
    asked: Vec<&'static str>,
}

/// A value with its place.
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) at: usize,
}

impl<'t, 's> Table<'t, 's> {
    fn new(name: &str, at: usize, table: &'t DeTable<'s>) -> Table<'t, 's> {
        Table {
            name: name.to_owned(),
            at,
            table,
            asked: vec![],
        }
    }

    /// Where the table begins.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The key with its table, as errors name it.
    pub(super) fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// The value of a key, of any type.
    fn get(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'s>>> {
        self.asked.push(key);
        self.table.get(key)
    }

    /// A look at a text, before it is read.
    pub(super) fn word(&self, key: &str) -> Option<&'t str> {
        self.table.get(key)?.get_ref().as_str()
    }

    /// A value that must be there.
    pub(super) fn require<T>(
        &self,
        report: &mut Report<'_>,
        key: &str,
        found: Option<T>,
    ) -> Option<T> {
        // One that is there and wrong has its error already.
        if found.is_none() && !self.has(key) {
            report.error(self.at, format!("`{}` is missing", self.path(key)));
        }
        found
    }

    /// A value that this closure takes.
    pub(super) fn read<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        expected: &str,
        take: impl FnOnce(&DeValue<'s>) -> Option<T>,
    ) -> Option<Found<T>> {
        let spanned = self.get(key)?;
        let at = spanned.span().start;
        match take(spanned.get_ref()) {
            Some(value) => Some(Found { value, at }),
            None => {
                let given = show(spanned.get_ref());
                report.error(
                    at,
                    format!("`{}` is {given}: expected {expected}", self.path(key)),
                );
                None
            }
        }
    }

    /// A text.
    pub(super) fn text(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        expected: &str,
    ) -> Option<Found<String>> {
        self.read(report, key, expected, |value| {
            value.as_str().map(str::to_owned)
        })
    }

    /// Whether the key is there, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// An address to listen on.
    pub(super) fn address(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
    ) -> Option<Found<SocketAddr>> {
        self.parsed(
            report,
            key,
            "an address such as \"127.0.0.1:7431\"",
            check_listen,
        )
    }

    /// A text that parses to `T`; the error's own words say why it does not.
    pub(super) fn parsed<T, E: std::fmt::Display>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<Found<T>> {
        let text = self.text(report, key, expected)?;
        match parse(&text.value) {
            Ok(value) => Some(Found { value, at: text.at }),
            Err(error) => {
                let path = self.path(key);
                report.error(text.at, format!("`{path}` is {:?}: {error}", text.value));
                None
            }
        }
    }

    /// One of these words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<Found<T>> {
        let words = choices
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect::<Vec<_>>();
        let expected = format!("one of {}", words.join(", "));
        self.read(report, key, &expected, |value| {
            let word = value.as_str()?;
            choices
                .iter()
                .find(|(known, _)| *known == word)
                .map(|(_, choice)| *choice)
        })
    }

    /// A whole number in this range.
    pub(super) fn integer(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Option<Found<u64>> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(report, key, &expected, |value| {
            let integer = value.as_integer()?;
            let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
            range.contains(&number).then_some(number)
        })
    }

    /// A duration: `"500ms"`, `"30s"`, `"5m"`, `"1h"`.
    pub(super) fn duration(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        range: std::ops::RangeInclusive<Duration>,
    ) -> Option<Found<Duration>> {
        let expected = format!(
            "a duration such as \"500ms\", \"30s\" or \"5m\", from {:?} to {:?}",
            range.start(),
            range.end()
        );
        self.read(report, key, &expected, |value| {
            value
                .as_str()
                .and_then(clock::parse_duration)
                .filter(|duration| range.contains(duration))
        })
    }

    /// A list of texts, each with its place.
    pub(super) fn texts(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
    ) -> Option<Vec<Found<String>>> {
        let found = self.read(report, key, "a list of texts", |value| {
            let text = |item: &Spanned<DeValue<'_>>| {
                let value = item.get_ref().as_str()?.to_owned();
                Some(Found {
                    value,
                    at: item.span().start,
                })
            };
            value
                .as_array()?
                .iter()
                .map(text)
                .collect::<Option<Vec<_>>>()
        });
        found.map(|found| found.value)
    }

    /// A table within this one.
    pub(super) fn table(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
    ) -> Option<Table<'t, 's>> {
        let spanned = self.get(key)?;
        let path = self.path(key);
        match spanned.get_ref() {
            DeValue::Table(table) => Some(Table::new(&path, spanned.span().start, table)),
            other => {
                let given = show(other);
                report.error(
                    spanned.span().start,
                    format!("`{path}` is {given}: expected [{path}]"),
                );
                None
            }
        }
    }

    /// The tables of `[[key]]`.
    pub(super) fn tables(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
    ) -> Vec<Table<'t, 's>> {
        let Some(spanned) = self.get(key) else {
            return vec![];
        };
        let path = self.path(key);
        let items = match spanned.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![spanned],
        };
        let mut tables = vec![];
        let in_array = matches!(spanned.get_ref(), DeValue::Array(_));
        for item in items {
            match item.get_ref() {
                DeValue::Table(table) if in_array => {
                    tables.push(Table::new(&path, item.span().start, table));
                }
                other => {
                    let given = show(other);
                    report.error(
                        item.span().start,
                        format!("`{path}` is {given}: expected [[{path}]]"),
                    );
                }
            }
        }
        tables
    }

    /// Reports the keys that nothing asked for.
    pub(super) fn finish(self, report: &mut Report<'_>) {
        for (key, _) in self.table.iter() {
            let word: &str = key.get_ref().as_ref();
            if self.asked.contains(&word) {
                continue;
            }
            let path = self.path(word);
            let elsewhere = RULE_KEYS.iter().find(|(known, _)| *known == path);
            let hint = match (elsewhere, nearest(word, &self.asked)) {
                (Some((_, there)), _) => format!(": only rules of {there} listeners have it"),
                (None, Some(known)) => format!(": did you mean `{known}`?"),
                (None, None) => String::new(),
            };
            report.error(key.span().start, format!("unknown key `{path}`{hint}"));
        }
    }
}

/// Keys of rules that some protocols have, and which.
const RULE_KEYS: [(&str, &str); 8] = [
    ("listener.rule.path", "http"),
    ("listener.rule.write_methods", "http"),
    ("listener.rule.read_methods", "http"),
    ("listener.rule.bucket", "s3"),
    ("listener.rule.key", "s3, redis and etcd"),
    ("listener.rule.schema", "postgres"),
    ("listener.rule.table", "postgres"),
    ("listener.rule.database", "postgres and redis"),
];

/// The known key that is most like this one, always one: the file's author sees what there is.
fn nearest(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let like = |known: &&&'static str| {
        // Ties and all: in thousandths, since floats have no order.
        (strsim::jaro_winkler(word, known) * 1000.0) as u32
    };
    known.iter().max_by_key(like).copied()
}

/// A value as errors show it, cut to 64 characters.
fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", text.chars().take(64).collect::<String>()),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
