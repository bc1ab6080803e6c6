//! The link of a migration: a model with a clock, in nanoseconds since the migration began.
//!
//! One wire with a rate and a latency. The source sends one piece after the other: what was asked for first, in the order in which
//! requests came to it, and when nothing was, the next piece of its stream. A piece that is being sent is sent to its end. The
//! clock is the caller's: whenever it is asked, the link makes up for what the source has done since, as it would have decided
//! then. So it does not matter how often it is asked, save that a piece is handed out no sooner than that.

use std::collections::VecDeque;

/// How fast the wire is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Bits that it carries in a second.
    pub bits_per_second: u64,
    /// Nanoseconds from a request to the first bit of what was asked for, if the wire is free.
    pub round_trip: u64,
}

impl Wire {
    /// Nanoseconds for which a piece keeps the wire busy.
    pub const fn busy(self, bytes: u64) -> u64 {
        (bytes as u128 * 8 * 1_000_000_000 / self.bits_per_second as u128) as u64
    }

    /// Nanoseconds from a request for a piece to its last bit, if the wire is free: what no software can beat.
    pub const fn latency(self, bytes: u64) -> u64 {
        self.round_trip + self.busy(bytes)
    }
}

/// The wire and its source.
pub struct Link {
    wire: Wire,
    piece: u64,
    /// Until when the wire is busy.
    free_at: u64,
    busy: u64,
    /// When a request comes to the source, and for which piece.
    asked: VecDeque<(u64, usize)>,
    /// Pieces that were sent.
    sent: Vec<bool>,
    /// Where the stream goes on.
    next: usize,
    /// When a piece is here, in order.
    arrivals: VecDeque<(u64, usize)>,
}

impl Link {
    /// A source of so many pieces of so many bytes, none of which was sent.
    pub fn new(wire: Wire, piece: u64, pieces: usize) -> Self {
        let (asked, arrivals) = (VecDeque::new(), VecDeque::new());
        Self { wire, piece, free_at: 0, busy: 0, asked, sent: vec![false; pieces], next: 0, arrivals }
    }

    /// Asks for a piece; whether it was not on its way already.
    pub fn ask(&mut self, now: u64, piece: usize, sending: &mut impl FnMut(usize)) -> bool {
        self.advance(now, sending);
        if self.sent[piece] {
            return false;
        }
        self.asked.push_back((now + self.wire.round_trip / 2, piece));
        true
    }

    /// The next piece that is here by now. `sending` is shown each piece when the source begins with it.
    pub fn arrived(&mut self, now: u64, sending: &mut impl FnMut(usize)) -> Option<usize> {
        self.advance(now, sending);
        due(&mut self.arrivals, now)
    }

    /// Nanoseconds for which the wire was busy.
    pub const fn busy(&self) -> u64 {
        self.busy
    }

    /// What the source has done up to now.
    fn advance(&mut self, now: u64, sending: &mut impl FnMut(usize)) {
        while self.free_at <= now {
            let piece = match due(&mut self.asked, self.free_at) {
                Some(piece) => piece,
                None => {
                    self.next += self.sent[self.next..].iter().take_while(|&&sent| sent).count();
                    if self.next == self.sent.len() {
                        return;
                    }
                    self.next
                }
            };
            if std::mem::replace(&mut self.sent[piece], true) {
                continue;
            }
            sending(piece);
            let busy = self.wire.busy(self.piece);
            (self.free_at, self.busy) = (self.free_at + busy, self.busy + busy);
            self.arrivals.push_back((self.free_at + self.wire.round_trip / 2, piece));
        }
    }
}

/// Takes the first piece of the queue if its time has come.
fn due(queue: &mut VecDeque<(u64, usize)>, now: u64) -> Option<usize> {
    let &(at, piece) = queue.front()?;
    if at > now {
        return None;
    }
    queue.pop_front();
    Some(piece)
}

#[cfg(test)]
mod tests;
