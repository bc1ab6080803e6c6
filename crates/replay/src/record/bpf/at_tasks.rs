//! The programs at begins and ends of threads: they keep which threads are followed.

use super::asm::{Helper, If, Instruction, Reg, Size};
use super::decode;
use super::offsets::Offsets;
use super::shared::{self, slot};
use super::write::{Maps, Writer};
use Reg::{R0, R1, R2, R3, R4, R6, R7, R8, R9};
use Size::{Double, Half, Word};

/// The thread has made another: (task, flags of `clone`). That is followed, too.
pub(super) fn task_made(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    /// Slots that are tried. They are taken in turn, so that nearly always the first is free. Threads that
    /// were made in a row have consecutive slots, so its neighbours tell nothing: the others are drawn.
    const TRIES: usize = 16;
    let mut w = Writer::new(maps);
    let out = w.out;
    w.follow();
    w.now();
    w.put_context(3, 8);
    w.flags(0);
    w.write(decode::NEW_TASK, decode::NEW_TASK_WORDS);
    // `R8` becomes the number of the new thread, `R7` its slot, and `R9` the number of that.
    w.it.load(Double, R1, R6, 0);
    w.it.load(Word, R8, R1, offsets.task_pid);
    let (none, found) = (w.it.label(), w.it.label());
    w.it.jump_if(R8, If::AtLeast, maps.layout.most_tids as i32, none);
    for attempt in 0..TRIES {
        if attempt == 0 {
            w.shared(R1, shared::NEXT);
            w.it.set(R9, 1);
            w.it.atomic_fetch_add(R1, 0, R9);
        } else {
            w.it.call(Helper::Random);
            w.it.copy(R9, R0);
        }
        if attempt == 1 {
            // The next one in turn stays the same, but the recorder looks at all slots from here on.
            w.shared(R1, shared::NEXT);
            w.it.set(R2, shared::MOST_SLOTS as i32);
            w.it.atomic_add(R1, 0, R2);
        }
        w.it.and_value(R9, shared::MOST_SLOTS as i32 - 1);
        w.it.copy(R2, R9);
        w.slot(R7, R2);
        w.it.copy(R4, R8);
        w.it.add_value(R4, 1);
        w.it.set(R0, 0);
        w.it.atomic_exchange_if(R7, slot::OWNER, R4);
        w.it.jump_if(R0, If::Equal, 0, found);
    }
    w.it.bind(none);
    // What the thread does is lost.
    w.now();
    w.cpu();
    w.count_lost(out);
    w.it.jump(out);
    w.it.bind(found);
    for field in (slot::FAULT_NS..slot::END).step_by(8) {
        w.it.store_value(Double, R7, field, 0);
    }
    w.it.copy(R1, R8);
    w.entry(R2, R1, out);
    w.it.store(Half, R2, 0, R9);
    w.finish()
}

/// A thread has started a program: (task, its number before, …). If that was not the first thread, it has
/// got the first one's number, and with it the slot. It does so whether or not anything is recorded: else the
/// slot stays taken.
pub(super) fn program_started(maps: Maps) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    w.find();
    w.it.load(Double, R1, R6, 8);
    w.it.copy_32(R1, R1);
    w.it.copy_32(R2, R9);
    w.it.jump_if_both(R1, If::Equal, R2, out);
    w.entry(R2, R1, out);
    w.it.load(Half, R1, R2, 0);
    w.it.jump_if(R1, If::Equal, 0, out);
    w.it.store_value(Half, R2, 0, 0);
    w.slot(R2, R1);
    w.it.store_value(Double, R2, slot::OWNER, 0);
    w.finish()
}

/// A thread ends: (task, …). A first thread keeps its slot as long as others live: one of them may start a
/// program, and gets the first one's number then. The slot is given back while nothing is recorded, too: no
/// later program would do it, and another thread with this number would be followed.
pub(super) fn task_ended(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    w.find();
    let silent = w.it.label();
    w.jump_if_off(silent);
    w.now();
    w.give_up_fault();
    w.it.bind(silent);
    w.it.store_value(Double, R7, slot::FAULT_NS, 0);
    w.it.store_value(Double, R7, slot::CALL_NS, 0);
    w.it.store_value(Double, R7, slot::CALL, 0);
    w.it.load(Double, R1, R6, 0);
    w.it.load(Double, R1, R1, offsets.task_signal);
    // How many threads live.
    w.it.load(Word, R8, R1, offsets.signal_live);
    let ends = w.it.label();
    w.it.copy_32(R1, R9);
    w.it.copy(R2, R9);
    w.it.shift_right(R2, 32);
    w.it.jump_if_both(R1, If::NotEqual, R2, ends);
    w.it.jump_if(R8, If::NotEqual, 0, out);
    w.it.bind(ends);
    w.entry(R2, R1, out);
    w.it.store_value(Half, R2, 0, 0);
    w.it.store_value(Double, R7, slot::OWNER, 0);
    w.it.jump_if(R8, If::NotEqual, 0, out);
    // The last one: the first may have ended before.
    w.it.copy(R1, R9);
    w.it.shift_right(R1, 32);
    w.it.copy(R0, R1);
    w.it.add_value(R0, 1);
    w.entry(R2, R1, out);
    w.it.load(Half, R1, R2, 0);
    w.it.jump_if(R1, If::Equal, 0, out);
    w.it.store_value(Half, R2, 0, 0);
    w.slot(R3, R1);
    // Two threads that end at once may both be here, and another thread may have the slot by then.
    w.it.set(R1, 0);
    w.it.atomic_exchange_if(R3, slot::OWNER, R1);
    w.finish()
}
