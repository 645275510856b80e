//! Which database a connection may be in.

/// Possibilities that are told apart; more are all of them.
const TOLD_APART_MAX: usize = 4;

/// The databases that a command may meet: one, as long as the outcome of every `SELECT` is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Databases {
    indexes: [u32; TOLD_APART_MAX],
    /// None: any.
    len: Option<usize>,
}

impl Databases {
    /// Any database.
    pub const ANY: Databases = Databases {
        indexes: [0; TOLD_APART_MAX],
        len: None,
    };

    /// This one.
    pub const fn only(index: u32) -> Databases {
        let mut indexes = [0; TOLD_APART_MAX];
        indexes[0] = index;
        Databases {
            indexes,
            len: Some(1),
        }
    }

    /// The only one that it may be, if it is known.
    pub fn single(&self) -> Option<u32> {
        (self.len == Some(1)).then_some(self.indexes[0])
    }

    /// One of these, or this one.
    pub fn or(self, index: u32) -> Databases {
        let Some(len) = self.len else {
            return Databases::ANY;
        };
        if self.indexes[..len].contains(&index) {
            return self;
        }
        let mut indexes = self.indexes;
        match indexes.get_mut(len) {
            None => Databases::ANY,
            Some(slot) => {
                *slot = index;
                Databases {
                    indexes,
                    len: Some(len + 1),
                }
            }
        }
    }

    /// One of these, or one of those.
    pub fn or_any_of(self, others: Databases) -> Databases {
        match others.len {
            None => Databases::ANY,
            Some(len) => others.indexes[..len]
                .iter()
                .fold(self, |all, index| all.or(*index)),
        }
    }

    /// Whether it may be this one.
    pub fn may_be(&self, index: u32) -> bool {
        self.len
            .is_none_or(|len| self.indexes[..len].contains(&index))
    }

    /// The one, where there is no other possibility.
    pub fn certain(&self) -> Option<u32> {
        (self.len == Some(1)).then_some(self.indexes[0])
    }
}

#[cfg(test)]
mod tests {
    use super::Databases;

    #[test]
    fn possibilities_add_up_to_any() {
        let mut databases = Databases::only(3);
        assert_eq!(databases.certain(), Some(3));
        assert!(!databases.may_be(0));
        databases = databases.or(0).or(3);
        assert_eq!(databases.certain(), None);
        assert!(databases.may_be(0) && databases.may_be(3) && !databases.may_be(1));
        databases = databases.or(1).or(2);
        assert!(!databases.may_be(4));
        assert_eq!(databases.or(4), Databases::ANY);
        assert!(Databases::ANY.or(1).may_be(9));
    }
}
