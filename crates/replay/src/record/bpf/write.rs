//! What all programs have in common: they look for the thread's slot, and write records.
//!
//! Registers keep their meaning through a program: `R6` is its context, `R7` the slot of the current thread,
//! `R8` the time, and
//! `R9` the numbers of the process (upper half) and the thread. On the stack lie the record that is being
//! written, a number that is kept over calls, and the number of the CPU.

use super::asm::{Assembler, Helper, If, Instruction, Label, Reg, Size};
use super::shared::{self, Layout, cpu, slot};
use Reg::{Fp, R0, R1, R2, R3, R4, R6, R7, R8, R9};
use Size::{Double, Half, Word};

/// Where the stack's parts start.
const RECORD: i16 = -160;
pub(super) const KEPT: i16 = -16;
const CPU: i16 = -4;

/// The longest record, in words of 8 bytes.
const MOST_WORDS: usize = ((KEPT - RECORD) / 8) as usize;

/// The ring's reader is not woken: it looks often enough.
const NO_WAKEUP: i32 = 1;

/// Descriptors of the maps, and where the parts of the shared one lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    pub(super) shared: i32,
    /// The map of the CPUs' rings.
    pub(super) rings: i32,
    pub(super) layout: Layout,
}

/// A program that is being written.
pub(super) struct Writer {
    pub(super) it: Assembler,
    pub(super) maps: Maps,
    /// The end of the program.
    pub(super) out: Label,
}

impl Writer {
    /// Begins a program; `R6` becomes its context.
    pub(super) fn new(maps: Maps) -> Writer {
        let mut it = Assembler::default();
        let out = it.label();
        it.copy(R6, R1);
        Writer { it, maps, out }
    }

    /// Ends the program.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        self.it.bind(self.out);
        self.it.exit();
        self.it.finish()
    }

    /// `to` = the address of a byte of the shared memory.
    pub(super) fn shared(&mut self, to: Reg, offset: usize) {
        self.it.map_value(to, self.maps.shared, offset);
    }

    /// `entry` = the address of the entry of thread `tid`, which it destroys, or on to `none` if the number
    /// is too large.
    pub(super) fn entry(&mut self, entry: Reg, tid: Reg, none: Label) {
        self.it.jump_if(tid, If::AtLeast, self.maps.layout.most_tids as i32, none);
        self.it.shift_left(tid, 1);
        self.shared(entry, self.maps.layout.tids);
        self.it.add(entry, tid);
    }

    /// `slot` = the address of the slot with number `number`, which it destroys.
    pub(super) fn slot(&mut self, slot: Reg, number: Reg) {
        self.it.and_value(number, shared::MOST_SLOTS as i32 - 1);
        self.it.shift_left(number, shared::SLOT_SHIFT);
        self.shared(slot, self.maps.layout.slots);
        self.it.add(slot, number);
    }

    /// Sets `R7` and `R9`. Ends the program if the current thread is not followed, or nothing is recorded.
    /// Keeps
    /// `R6` and `R8`.
    pub(super) fn follow(&mut self) {
        let out = self.out;
        self.find();
        self.jump_if_off(out);
    }

    /// As [`Writer::follow`], but whether or not anything is recorded.
    pub(super) fn find(&mut self) {
        let out = self.out;
        self.it.call(Helper::PidTgid);
        self.it.copy(R9, R0);
        self.it.copy_32(R1, R0);
        self.entry(R2, R1, out);
        self.it.load(Half, R1, R2, 0);
        self.it.jump_if(R1, If::Equal, 0, out);
        self.slot(R7, R1);
    }

    /// On to the label if nothing is recorded. Destroys `R1`.
    pub(super) fn jump_if_off(&mut self, label: Label) {
        self.shared(R1, shared::ON);
        self.it.load(Word, R1, R1, 0);
        self.it.jump_if(R1, If::Equal, 0, label);
    }

    /// Sets `R8`.
    pub(super) fn now(&mut self) {
        self.it.call(Helper::Now);
        self.it.copy(R8, R0);
    }

    /// Puts a register into a word of the record.
    pub(super) fn put(&mut self, word: usize, from: Reg) {
        assert!(word < MOST_WORDS);
        self.it.store(Double, Fp, RECORD + 8 * word as i16, from);
    }

    /// Puts a field of the slot into a word of the record. Destroys `R1`.
    pub(super) fn put_field(&mut self, word: usize, field: i16) {
        self.it.load(Double, R1, R7, field);
        self.put(word, R1);
    }

    /// Puts a word of the context into a word of the record. Destroys `R1`.
    pub(super) fn put_context(&mut self, word: usize, offset: i16) {
        self.it.load(Double, R1, R6, offset);
        self.put(word, R1);
    }

    /// `to` = the address of a word of the record.
    pub(super) fn word(&mut self, to: Reg, word: usize) {
        self.it.copy(to, Fp);
        self.it.add_value(to, i32::from(RECORD) + 8 * word as i32);
    }

    /// Writes the record's second half of the first word, which says more of its kind.
    pub(super) fn flags(&mut self, flags: i32) {
        self.it.store_value(Word, Fp, RECORD + 4, flags);
    }

    /// Writes the record of so many words into the ring of this CPU. Destroys `R0` to `R5`.
    pub(super) fn write(&mut self, kind: i32, words: usize) {
        assert!(words <= MOST_WORDS);
        let (lost, done) = (self.it.label(), self.it.label());
        self.it.store_value(Word, Fp, RECORD, kind);
        self.put(1, R9);
        self.put(2, R8);
        self.cpu();
        self.it.store(Word, Fp, CPU, R0);
        self.it.map(R1, self.maps.rings);
        self.it.copy(R2, Fp);
        self.it.add_value(R2, CPU.into());
        self.it.call(Helper::MapLookup);
        self.it.jump_if(R0, If::Equal, 0, lost);
        self.it.copy(R1, R0);
        self.word(R2, 0);
        self.it.set(R3, 8 * words as i32);
        self.it.set(R4, NO_WAKEUP);
        self.it.call(Helper::RingOutput);
        self.it.jump_if(R0, If::Equal, 0, done);
        self.it.bind(lost);
        self.it.load(Word, R0, Fp, CPU);
        self.count_lost(done);
        self.it.bind(done);
    }

    /// Counts a record that is lost on the CPU in `R0`, and keeps the time in `R8` if it is the first; then
    /// on to the label, or behind this.
    pub(super) fn count_lost(&mut self, done: Label) {
        self.count(cpu::LOST, done);
        self.it.load(Double, R1, R2, cpu::SINCE);
        self.it.jump_if(R1, If::NotEqual, 0, done);
        self.it.store(Double, R2, cpu::SINCE, R8);
    }

    /// `R0` = the number of this CPU, or 0 for one that came after the recording began.
    pub(super) fn cpu(&mut self) {
        let known = self.it.label();
        self.it.call(Helper::Cpu);
        self.it.copy_32(R0, R0);
        self.it.jump_if(R0, If::AtLeast, self.maps.layout.cpus as i32, known);
        let counted = self.it.label();
        self.it.jump(counted);
        self.it.bind(known);
        self.it.set(R0, 0);
        self.it.bind(counted);
    }

    /// Adds one to a field of the CPU in `R0`, and sets `R2` to what belongs to it; on to `none` if there is
    /// no such CPU.
    pub(super) fn count(&mut self, field: i16, none: Label) {
        self.it.jump_if(R0, If::AtLeast, self.maps.layout.cpus as i32, none);
        self.it.shift_left(R0, shared::CPU_SHIFT);
        self.shared(R2, shared::CPUS);
        self.it.add(R2, R0);
        self.it.set(R1, 1);
        self.it.atomic_add(R2, field, R1);
    }

    /// Writes that the thread's fault was not resolved, if it has one: it did something else.
    pub(super) fn give_up_fault(&mut self) {
        let none = self.it.label();
        self.it.load(Double, R1, R7, slot::FAULT_NS);
        self.it.jump_if(R1, If::Equal, 0, none);
        self.put_fault();
        self.it.set(R1, 0);
        self.put(6, R1);
        self.flags(0);
        self.write(super::decode::FAULT, super::decode::FAULT_WORDS);
        self.it.store_value(Double, R7, slot::FAULT_NS, 0);
        self.it.bind(none);
    }

    /// Puts what the slot has of a fault into the record: words 3 to 5.
    pub(super) fn put_fault(&mut self) {
        self.put_field(3, slot::FAULT_NS);
        self.put_field(4, slot::FAULT_ADDRESS);
        self.put_field(5, slot::FAULT_CODE);
    }

    /// `to` = the 8 bytes at an offset from an address of the kernel in `base`; ends the program if they
    /// cannot be read. Destroys `R0` to `R5`.
    pub(super) fn read_kernel(&mut self, to: Reg, base: Reg, offset: i16) {
        self.it.copy(R3, base);
        self.it.add_value(R3, offset.into());
        self.it.copy(R1, Fp);
        self.it.add_value(R1, KEPT.into());
        self.it.set(R2, 8);
        self.it.call(Helper::ReadKernel);
        let out = self.out;
        self.it.jump_if(R0, If::NotEqual, 0, out);
        self.it.load(Double, to, Fp, KEPT);
    }
}
