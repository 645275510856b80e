//! What must be true of what the backend applied and of what clients were told.

/// The backend's history and the promises to each client.
#[derive(Default)]
pub struct Checker {
    /// Token of each write, in the backend's order of applying.
    applied: Vec<u64>,
    /// Writes that were refused: they must never be applied.
    refused: Vec<u64>,
    /// Identities of applied writes.
    landed: Vec<u64>,
    /// Highest token whose presentation was answered as settled.
    sealed: u64,
    /// Tokens at or below this one were closed and told so.
    closed: u64,
}

impl Checker {
    /// The backend applies a write.
    pub fn apply(&mut self, write: u64, token: u64) -> Result<(), String> {
        if let Some(last) = self.applied.last()
            && *last > token
        {
            return Err(format!("promise 1: applied token {token} after {last}"));
        }
        if token < self.sealed {
            return Err(format!(
                "promise 3: applied token {token} after {} was sealed",
                self.sealed
            ));
        }
        if token <= self.closed {
            return Err(format!(
                "close: applied token {token} after {} was closed",
                self.closed
            ));
        }
        if self.refused.contains(&write) {
            return Err(format!("promise 5: refused write {write} was applied"));
        }
        self.applied.push(token);
        self.landed.push(write);
        Ok(())
    }

    /// A client is told that its write was refused and changed nothing.
    pub fn refuse(&mut self, write: u64) -> Result<(), String> {
        if self.landed.contains(&write) {
            return Err(format!("promise 5: applied write {write} was told refused"));
        }
        self.refused.push(write);
        Ok(())
    }

    /// A client is told that its token is settled.
    pub fn settled(&mut self, token: u64) -> Result<(), String> {
        if token < self.sealed {
            return Err(format!(
                "promise 4: {token} passed after {} was sealed",
                self.sealed
            ));
        }
        if token <= self.closed {
            return Err(format!(
                "close: {token} passed after {} was closed",
                self.closed
            ));
        }
        if let Some(last) = self.applied.last()
            && *last > token
        {
            return Err(format!(
                "promise 4: {token} passed after {last} was applied"
            ));
        }
        self.sealed = token;
        Ok(())
    }

    /// A client is told that its token is stale.
    pub fn stale(&mut self, token: u64, floor: u64) -> Result<(), String> {
        match token < floor {
            true => Ok(()),
            false => Err(format!(
                "promise 4: {token} was told stale at floor {floor}"
            )),
        }
    }

    /// An operator is told that the token and everything below is closed.
    pub fn closed(&mut self, token: u64) {
        self.closed = self.closed.max(token);
    }
}
