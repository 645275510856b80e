//! The world around one gate, with virtual time and one source of chance.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ringfence::gate::{Closing, Gate, Permit, Presentation, Presented, Record, Recovered};
use ringfence::lock_name::LockName;
use ringfence::token::Token;

use super::checker::Checker;

/// A known way to break the protocol, put in to see it caught.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The shell sends what a revoked permit may not send.
    IgnoreRevocation,
    /// A write whose connection was lost is called finished.
    FinishLost,
    /// A record is called durable while it is not.
    LieAboutDisk,
    /// After a crash nothing is in doubt.
    ForgetOrphans,
    /// After a crash an undrained record is read as a drained one.
    TakeUndrainedForDrained,
    /// The clean mark is written while writes are in flight.
    MarkCleanEarly,
}

/// What the store has on disk.
#[derive(Clone, Copy)]
struct OnDisk {
    record: Record,
    dirty: bool,
}

enum Stage {
    Presenting(Presentation),
    Admitted(Permit),
    Forwarded(Permit),
    /// Sent; the backend has not answered.
    Sent(Permit),
}

struct Writer {
    write: u64,
    token: u64,
    deadline: u64,
    stage: Stage,
    woken: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A write that has reached the backend's socket; applied, or dropped, when chance has it.
struct InSocket {
    write: u64,
    token: u64,
}

/// The longest that the backend keeps a write: after it, a write is applied or gone.
const HOLD: u64 = 40;

pub struct World {
    chance: u64,
    fault: Option<Fault>,
    now: u64,
    gate: Arc<Gate>,
    disk: Option<OnDisk>,
    disk_broken: bool,
    persisting: Option<Record>,
    writers: Vec<Writer>,
    closing: Option<(u64, Closing, Arc<Flag>)>,
    socket: VecDeque<(u64, InSocket)>,
    /// Doubts of this run: when they end, and at which token.
    doubts: Vec<(u64, u64)>,
    next_write: u64,
    highest: u64,
    checker: Checker,
}

type Outcome = Result<(), String>;

impl World {
    pub fn new(seed: u64, fault: Option<Fault>) -> World {
        World {
            chance: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            fault,
            now: 0,
            gate: Gate::new(LockName::new("sim").unwrap(), &Recovered::default()),
            disk: None,
            disk_broken: false,
            persisting: None,
            writers: Vec::new(),
            closing: None,
            socket: VecDeque::new(),
            doubts: Vec::new(),
            next_write: 0,
            highest: 1,
            checker: Checker::default(),
        }
    }

    /// xorshift64*: enough chance for schedules, and the same on every machine.
    fn below(&mut self, bound: u64) -> u64 {
        self.chance ^= self.chance >> 12;
        self.chance ^= self.chance << 25;
        self.chance ^= self.chance >> 27;
        (self.chance.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    pub fn step(&mut self) -> Outcome {
        self.now += self.below(4);
        match self.below(100) {
            0..=17 => self.arrive()?,
            18..=54 => self.advance_one()?,
            55..=69 => self.backend()?,
            70..=80 => self.finish_persist(),
            81..=83 => self.disk_broken = !self.disk_broken,
            84..=87 => self.lose_one(),
            88..=89 => self.close_one(),
            90..=93 => self.retire(),
            94..=95 => self.crash(),
            _ => {}
        }
        self.expire()?;
        self.settle_woken()?;
        self.take_persist();
        Ok(())
    }

    /// Faults stop; in the end the newest holder must get its write through.
    pub fn heal(&mut self) -> Outcome {
        self.disk_broken = false;
        self.highest += 1;
        let token = self.highest;
        for _ in 0..40 {
            if self.writers.is_empty() {
                break;
            }
            self.drain_everything()?;
        }
        self.present(token);
        for _ in 0..400 {
            self.drain_everything()?;
            if self.gate.permit(Token::new(token).unwrap()).is_ok() {
                return Ok(());
            }
            if self.writers.is_empty() {
                self.present(token);
            }
        }
        Err(format!(
            "after healing, token {token} was never admitted: {:?}",
            self.gate.status()
        ))
    }

    fn drain_everything(&mut self) -> Outcome {
        self.now += 2;
        self.finish_persist();
        for _ in 0..self.writers.len() {
            self.advance_one()?;
        }
        self.backend()?;
        self.expire()?;
        self.settle_woken()?;
        self.take_persist();
        Ok(())
    }

    fn arrive(&mut self) -> Outcome {
        let token = match self.below(4) {
            0 => {
                self.highest += 1 + self.below(2);
                self.highest
            }
            1 => self.highest.saturating_sub(self.below(4)).max(1),
            _ => self.highest,
        };
        // The hot path first, as the shell does.
        match self.gate.permit(Token::new(token).unwrap()) {
            Ok(permit) => {
                self.checker.settled(token)?;
                self.push(token, Stage::Admitted(permit));
            }
            Err(_) => self.present(token),
        }
        Ok(())
    }

    fn present(&mut self, token: u64) {
        let presentation = self.gate.present(Token::new(token).unwrap());
        self.push(token, Stage::Presenting(presentation));
    }

    fn push(&mut self, token: u64, stage: Stage) {
        self.next_write += 1;
        self.writers.push(Writer {
            write: self.next_write,
            token,
            deadline: self.now + 60 + self.next_write % 60,
            stage,
            woken: Arc::new(Flag(AtomicBool::new(true))),
        });
    }

    /// Polls only those that were woken: a lost wake-up shows as a writer that never goes on.
    fn settle_woken(&mut self) -> Outcome {
        for at in (0..self.writers.len()).rev() {
            if !self.writers[at].woken.0.swap(false, Ordering::SeqCst) {
                continue;
            }
            let writer = &mut self.writers[at];
            let Stage::Presenting(presentation) = &mut writer.stage else {
                continue;
            };
            let waker = Waker::from(Arc::clone(&writer.woken));
            let polled = Pin::new(presentation).poll(&mut Context::from_waker(&waker));
            self.take_persist();
            if let Poll::Ready(outcome) = polled {
                self.presented(at, outcome)?;
            }
        }
        self.poll_closing();
        Ok(())
    }

    fn presented(&mut self, at: usize, outcome: Presented) -> Outcome {
        let (write, token) = (self.writers[at].write, self.writers[at].token);
        match outcome {
            Presented::Settled => {
                self.checker.settled(token)?;
                match self.gate.permit(Token::new(token).unwrap()) {
                    Ok(permit) => self.writers[at].stage = Stage::Admitted(permit),
                    // A raise came in between: look again.
                    Err(_) => self.present_again(at),
                }
            }
            Presented::Retired => self.present_again(at),
            Presented::Stale { floor, .. } => {
                self.checker.stale(token, floor)?;
                self.checker.refuse(write)?;
                self.writers.swap_remove(at);
            }
            // No gate is ended here; who meets one is refused all the same.
            Presented::NotDurable | Presented::Ended => {
                self.checker.refuse(write)?;
                self.writers.swap_remove(at);
            }
        }
        Ok(())
    }

    fn present_again(&mut self, at: usize) {
        let token = Token::new(self.writers[at].token).unwrap();
        self.writers[at].stage = Stage::Presenting(self.gate.present(token));
        self.writers[at].woken.0.store(true, Ordering::SeqCst);
    }

    fn advance_one(&mut self) -> Outcome {
        if self.writers.is_empty() {
            return Ok(());
        }
        let at = self.below(self.writers.len() as u64) as usize;
        let ignore = self.fault == Some(Fault::IgnoreRevocation);
        let two_steps = self.below(2) == 0;
        let writer = self.writers.swap_remove(at);
        let (write, token) = (writer.write, writer.token);
        let stage = match writer.stage {
            Stage::Admitted(mut permit) if two_steps => match permit.forward() {
                Ok(()) => Stage::Forwarded(permit),
                Err(_) => return self.checker.refuse(write),
            },
            Stage::Admitted(mut permit) => match permit.release() {
                Err(_) if !ignore => return self.checker.refuse(write),
                _ => self.send(write, token, permit),
            },
            Stage::Forwarded(mut permit) => match permit.release() {
                Err(_) if !ignore => {
                    // The truncated body is known to be discarded: the write is dead.
                    permit.finish();
                    return self.checker.refuse(write);
                }
                _ => self.send(write, token, permit),
            },
            stage => stage,
        };
        self.writers.push(Writer { stage, ..writer });
        Ok(())
    }

    fn send(&mut self, write: u64, token: u64, permit: Permit) -> Stage {
        self.socket
            .push_back((self.now + HOLD, InSocket { write, token }));
        Stage::Sent(permit)
    }

    /// The backend takes any write from its sockets: not in the order of sending.
    fn backend(&mut self) -> Outcome {
        if self.socket.is_empty() {
            return Ok(());
        }
        let at = self.below(self.socket.len() as u64) as usize;
        let (_, write) = self.socket.remove(at).unwrap();
        self.checker.apply(write.write, write.token)?;
        if let Some(at) = self.writers.iter().position(|it| it.write == write.write) {
            let writer = self.writers.swap_remove(at);
            if let Stage::Sent(permit) = writer.stage {
                permit.finish();
            }
        }
        Ok(())
    }

    /// A session panics, is cancelled, or loses its backend connection.
    fn lose_one(&mut self) {
        if self.writers.is_empty() {
            return;
        }
        let at = self.below(self.writers.len() as u64) as usize;
        let writer = self.writers.swap_remove(at);
        match writer.stage {
            Stage::Forwarded(permit) | Stage::Sent(permit) => {
                if self.fault == Some(Fault::FinishLost) {
                    permit.finish();
                } else {
                    // A permit that was sent although it was revoked still says `Admitted`.
                    let in_doubt = permit.stage() != ringfence::gate::Stage::Admitted;
                    drop(permit);
                    if in_doubt {
                        self.doubts.push((self.now + HOLD + 1, writer.token));
                    }
                }
            }
            Stage::Presenting(_) | Stage::Admitted(_) => {}
        }
    }

    /// Writes leave the backend's sockets after HOLD at the latest; doubts end after that.
    fn expire(&mut self) -> Outcome {
        while self.socket.iter().any(|(until, _)| *until < self.now) {
            let at = self
                .socket
                .iter()
                .position(|(until, _)| *until < self.now)
                .unwrap();
            let (_, write) = self.socket.remove(at).unwrap();
            if self.below(2) == 0 {
                self.checker.apply(write.write, write.token)?;
            }
            if let Some(at) = self.writers.iter().position(|it| it.write == write.write)
                && let Stage::Sent(permit) = self.writers.swap_remove(at).stage
            {
                permit.finish();
            }
        }
        let (over, left) = self.doubts.iter().partition(|(until, _)| *until < self.now);
        self.doubts = left;
        let over: Vec<(u64, u64)> = over;
        over.into_iter()
            .for_each(|(_, token)| self.gate.resolve_doubt(token));
        for at in (0..self.writers.len()).rev() {
            let writer = &self.writers[at];
            let presenting = matches!(writer.stage, Stage::Presenting(_));
            if presenting && writer.deadline < self.now {
                self.checker.refuse(writer.write)?;
                self.writers.swap_remove(at);
            }
        }
        Ok(())
    }

    fn take_persist(&mut self) {
        if self.persisting.is_none() {
            self.persisting = self.gate.take_persist();
        }
    }

    fn finish_persist(&mut self) {
        let Some(record) = self.persisting.take() else {
            return;
        };
        let durable = !self.disk_broken;
        if durable {
            self.disk = Some(OnDisk {
                record,
                dirty: true,
            });
        }
        let told = durable || self.fault == Some(Fault::LieAboutDisk);
        self.gate.persisted(record, told);
        self.take_persist();
    }

    fn close_one(&mut self) {
        let token = self.highest.saturating_sub(self.below(2)).max(1);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let closing = self.gate.close(Token::new(token).unwrap());
        self.closing = Some((token, closing, flag));
    }

    fn poll_closing(&mut self) {
        let Some((token, closing, flag)) = &mut self.closing else {
            return;
        };
        if !flag.0.swap(false, Ordering::SeqCst) {
            return;
        }
        let waker = Waker::from(Arc::clone(flag));
        let Poll::Ready(outcome) = Pin::new(closing).poll(&mut Context::from_waker(&waker)) else {
            return;
        };
        if outcome == Presented::Settled {
            self.checker.closed(*token);
            self.highest = self.highest.max(*token + 1);
        }
        self.closing = None;
    }

    fn retire(&mut self) {
        let early = self.fault == Some(Fault::MarkCleanEarly);
        let retired = self.gate.try_retire();
        if (retired || early)
            && let Some(on_disk) = &mut self.disk
        {
            on_disk.dirty = false;
        }
        if retired {
            self.load(Vec::new());
        }
    }

    /// The proxy is killed and starts again on what is on disk.
    fn crash(&mut self) {
        self.writers.clear();
        self.closing = None;
        self.persisting = None;
        self.doubts.clear();
        let in_doubt = match self.disk {
            _ if self.fault == Some(Fault::ForgetOrphans) => Vec::new(),
            Some(OnDisk {
                record,
                dirty: true,
            }) => {
                let drained = record.drained || self.fault == Some(Fault::TakeUndrainedForDrained);
                vec![if drained {
                    record.watermark
                } else {
                    record.floor.saturating_sub(1)
                }]
            }
            _ => Vec::new(),
        };
        self.doubts
            .extend(in_doubt.iter().map(|token| (self.now + HOLD + 1, *token)));
        self.load(in_doubt);
    }

    fn load(&mut self, in_doubt: Vec<u64>) {
        let (floor, watermark) = self
            .disk
            .map_or((0, 0), |it| (it.record.floor, it.record.watermark));
        let recovered = Recovered {
            floor,
            watermark,
            in_doubt,
        };
        self.gate = Gate::new(LockName::new("sim").unwrap(), &recovered);
        self.persisting = None;
    }
}
