//! Prepared statements and portals by name.
//!
//! A name is taken for certain when the server has said so. Until then both what it was and what
//! it may become count: what makes it may fail or be skipped, and the older one stays. The
//! exception is a Parse or Bind in the span that is still open: where that fails, the server skips
//! whatever comes behind it in the span.

use std::collections::{HashMap, VecDeque};

use super::SpanId;

/// Most names of one kind in a session.
pub const NAMES_MAX: usize = 100_000;

/// Names, certain and awaited.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub(super) struct Names<T> {
    certain: Certain<T>,
    /// In the order in which the server will answer: the first goes first, however many there are.
    awaited: VecDeque<Awaited<T>>,
    /// The number of the next one that is awaited.
    next: u64,
    /// What was awaited before this number may be something else.
    unknown_before: u64,
    /// What is not here may exist, and be anything.
    distrusted: bool,
}

/// By name. The empty one is taken again and again, and needs no look-up.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq))]
struct Certain<T> {
    unnamed: Option<T>,
    named: HashMap<Box<[u8]>, T>,
}

impl<T> Certain<T> {
    fn new() -> Certain<T> {
        Certain {
            unnamed: None,
            named: HashMap::new(),
        }
    }

    fn len(&self) -> usize {
        self.named.len() + usize::from(self.unnamed.is_some())
    }

    fn get(&self, name: &[u8]) -> Option<&T> {
        match name.is_empty() {
            true => self.unnamed.as_ref(),
            false => self.named.get(name),
        }
    }

    fn get_mut(&mut self, name: &[u8]) -> Option<&mut T> {
        match name.is_empty() {
            true => self.unnamed.as_mut(),
            false => self.named.get_mut(name),
        }
    }

    fn insert(&mut self, name: Box<[u8]>, value: T) {
        match name.is_empty() {
            true => self.unnamed = Some(value),
            false => {
                self.named.insert(name, value);
            }
        }
    }

    fn remove(&mut self, name: &[u8]) {
        match name.is_empty() {
            true => self.unnamed = None,
            false => {
                self.named.remove(name);
            }
        }
    }

    fn clear(&mut self) {
        self.unnamed = None;
        self.named.clear();
    }
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq))]
struct Awaited<T> {
    name: Box<[u8]>,
    value: T,
    number: u64,
    /// In which span a message of the extended protocol makes it; `None`: SQL does.
    skips: Option<SpanId>,
}

/// What a name may mean.
#[derive(Debug)]
pub(super) struct Candidates<'n, T> {
    /// Each once, the newest first.
    pub(super) known: Vec<&'n T>,
    /// Something else as well.
    pub(super) unknown: bool,
}

impl<T: PartialEq> Names<T> {
    pub(super) fn new() -> Names<T> {
        Names {
            certain: Certain::new(),
            awaited: VecDeque::new(),
            next: 0,
            unknown_before: 0,
            distrusted: false,
        }
    }

    /// Whether one more has a place.
    pub(super) fn has_room(&self) -> bool {
        self.certain.len() + self.awaited.len() < NAMES_MAX
    }

    /// Everything that a name may mean when the server gets to it, in a message that would join the
    /// open span.
    pub(super) fn candidates(&self, name: &[u8], open: Option<SpanId>) -> Candidates<'_, T> {
        let mut found = Candidates {
            known: vec![],
            unknown: false,
        };
        let awaited = self.awaited.iter().rev();
        for it in awaited.filter(|it| *it.name == *name) {
            found.unknown |= it.number < self.unknown_before;
            if !found.known.contains(&&it.value) {
                found.known.push(&it.value);
            }
            if it.skips.is_some() && it.skips == open {
                return found;
            }
        }
        match self.certain.get(name) {
            Some(value) if !found.known.contains(&value) => found.known.push(value),
            Some(_) => {}
            None => found.unknown |= self.distrusted,
        }
        found
    }

    /// What a name means, if that is certain in a message that would join the open span.
    pub(super) fn only(&self, name: &[u8], open: Option<SpanId>) -> Option<&T> {
        let awaited = self.awaited.iter().rev().find(|it| *it.name == *name);
        let Some(it) = awaited else {
            return self.certain.get(name);
        };
        let certain = it.skips.is_some() && it.skips == open && it.number >= self.unknown_before;
        certain.then_some(&it.value)
    }

    /// Whether the newest value of a name is one that a message of the open span makes.
    pub(super) fn is_made_in(&self, name: &[u8], open: Option<SpanId>) -> bool {
        let newest = self.awaited.iter().rev().find(|it| *it.name == *name);
        newest.is_some_and(|it| it.skips.is_some() && it.skips == open)
    }

    /// What the server has made of a name.
    pub(super) fn made(&mut self, name: &[u8]) -> Option<&mut T> {
        self.certain.get_mut(name)
    }

    /// All that the server has made, by a name or without one.
    pub(super) fn all_made(&mut self) -> impl Iterator<Item = &mut T> {
        let named = self.certain.named.values_mut();
        named.chain(&mut self.certain.unnamed)
    }

    /// The server has forgotten these.
    pub(super) fn forget(&mut self, is: impl Fn(&T) -> bool) {
        self.certain.named.retain(|_, value| !is(value));
        self.certain.unnamed.take_if(|value| is(value));
    }

    /// A message of the extended protocol makes it, or SQL does (`skips` is `None`).
    pub(super) fn await_one(&mut self, name: &[u8], value: T, skips: Option<SpanId>) {
        self.awaited.push_back(Awaited {
            name: name.into(),
            value,
            number: self.next,
            skips,
        });
        self.next += 1;
    }

    /// The server made the oldest awaited of this name.
    pub(super) fn confirm(&mut self, name: &[u8]) {
        let at = self.awaited.iter().position(|it| *it.name == *name);
        let Some(it) = at.and_then(|at| self.awaited.remove(at)) else {
            return;
        };
        if it.number < self.unknown_before {
            self.certain.remove(name);
        } else {
            self.certain.insert(it.name, it.value);
        }
    }

    /// The server will not make the oldest awaited of this name.
    pub(super) fn give_up(&mut self, name: &[u8]) {
        if let Some(at) = self.awaited.iter().position(|it| *it.name == *name) {
            self.awaited.remove(at);
        }
    }

    /// Changes whatever a name may mean.
    pub(super) fn change(&mut self, name: &[u8], change: impl Fn(&mut T)) {
        let awaited = self.awaited.iter_mut().filter(|it| *it.name == *name);
        awaited.for_each(|it| change(&mut it.value));
        if let Some(value) = self.certain.get_mut(name) {
            change(value);
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        self.certain.remove(name);
    }

    /// The server has forgotten all of them; `distrusted`: something that is on its way may have
    /// made others.
    pub(super) fn clear(&mut self, distrusted: bool) {
        self.certain.clear();
        self.distrusted &= distrusted;
    }

    /// Any of them may have become something else, those on their way too.
    pub(super) fn distrust(&mut self) {
        self.certain.clear();
        self.unknown_before = self.next;
        self.distrusted = true;
    }
}
