//! The link of a migration: a model whose clock counts nanoseconds since the migration began.
//!
//! One wire with a rate and a latency. The source sends requested pieces first, in the order in which
//! requests reach it, else the next piece of its stream. It sends each piece to its end. The caller has the
//! clock: each call brings the model up to that time, with the decisions that the source would have made. So
//! the number of calls changes nothing, except that a piece is handed out no sooner than the call after its
//! arrival.

use std::collections::VecDeque;

/// How fast the wire is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Bits that it carries in a second.
    pub bits_per_second: u64,
    /// Nanoseconds from a request to the first bit of the piece, if the wire is free.
    pub round_trip: u64,
}

impl Wire {
    /// Nanoseconds for which a piece occupies the wire.
    pub const fn busy(self, bytes: u64) -> u64 {
        (bytes as u128 * 8 * 1_000_000_000 / self.bits_per_second as u128) as u64
    }

    /// Nanoseconds from a request to the last bit of its piece, if the wire is free: the lower bound for any
    /// software.
    pub const fn latency(self, bytes: u64) -> u64 {
        self.round_trip + self.busy(bytes)
    }
}

/// The wire and its source.
pub struct Link {
    wire: Wire,
    piece: u64,
    /// The time at which the wire becomes free.
    free_at: u64,
    busy: u64,
    /// The time at which a request reaches the source, and its piece.
    asked: VecDeque<(u64, usize)>,
    /// Which pieces were sent.
    sent: Vec<bool>,
    /// The next piece of the stream.
    next: usize,
    /// The arrival times of pieces, in order.
    arrivals: VecDeque<(u64, usize)>,
}

impl Link {
    /// A source with `pieces` pieces of `piece` bytes, none of them sent.
    pub fn new(wire: Wire, piece: u64, pieces: usize) -> Self {
        let (asked, arrivals) = (VecDeque::new(), VecDeque::new());
        Self { wire, piece, free_at: 0, busy: 0, asked, sent: vec![false; pieces], next: 0, arrivals }
    }

    /// Requests a piece. False if it was on its way already.
    pub fn ask(&mut self, now: u64, piece: usize, sending: &mut impl FnMut(usize)) -> bool {
        self.advance(now, sending);
        if self.sent[piece] {
            return false;
        }
        self.asked.push_back((now + self.wire.round_trip / 2, piece));
        true
    }

    /// The next piece that has arrived. Calls `sending` for each piece that the source begins to send.
    pub fn arrived(&mut self, now: u64, sending: &mut impl FnMut(usize)) -> Option<usize> {
        self.advance(now, sending);
        due(&mut self.arrivals, now)
    }

    /// Nanoseconds for which the wire was busy so far.
    pub const fn busy(&self) -> u64 {
        self.busy
    }

    /// Brings the source's decisions up to `now`.
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

/// Removes the first piece of the queue if its time has come.
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
