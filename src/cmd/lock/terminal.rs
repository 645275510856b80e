//! The terminal's foreground: CMD has a group of its own, so it must be given the terminal to be
//! able to read from it and to get its Ctrl-C, and the terminal must be taken back afterwards.
//! Without a terminal on stdin, or from the background, there is nothing to do.

use std::io::{self, IsTerminal as _};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Whether this process had the terminal when CMD was started.
#[derive(Debug)]
pub struct Terminal {
    ours: bool,
}

impl Terminal {
    /// Looks at stdin.
    pub fn of_stdin() -> Terminal {
        let stdin = io::stdin();
        let ours = stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| group == getpgrp());
        Terminal { ours }
    }

    /// Whether there is a terminal to hand over.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Gives the terminal to the group. The caller lets the group go on then: a process of it that
    /// read too early was stopped by SIGTTIN.
    pub fn give_to(&self, group: Pid) {
        self.set_foreground(group);
    }

    /// Takes the terminal back.
    pub fn take_back(&self) {
        self.set_foreground(getpgrp());
    }

    /// Stops this process as Ctrl-Z would have, had CMD been in its group; returns when the shell
    /// lets it go on.
    pub fn stop_self(&self) {
        self.take_back();
        let _ = kill_current_process_group(Signal::TSTP);
    }

    fn set_foreground(&self, group: Pid) {
        if !self.ours {
            return;
        }
        // From the background, tcsetpgrp(3) stops the caller by SIGTTOU unless that is blocked.
        // The mask is the thread's own: nothing is awaited in between.
        let mut background = SigSet::empty();
        background.add(NixSignal::SIGTTOU);
        if background.thread_block().is_err() {
            return;
        }
        // Fails when the terminal has gone away: then there is nothing to hand over.
        let _ = tcsetpgrp(io::stdin(), group);
        let _ = background.thread_unblock();
    }
}
