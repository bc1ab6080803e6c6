//! The programs at the entry and the return of calls, and at the lock of an address space that calls take.

use nix::libc;

use super::asm::{Helper, If, Instruction, Label, Reg, Size};
use super::decode;
use super::offsets::Offsets;
use super::shared::{self, class, slot};
use super::write::{KEPT, Maps, Writer};
use crate::record::abi;
use Reg::{Fp, R0, R1, R2, R3, R5, R6, R7, R8};
use Size::{Byte, Double, Word};

/// Offsets of the program's registers in the kernel's `struct pt_regs`, which are those of `ptrace(2)`.
mod registers {
    pub(super) const NATIVE: [i16; 6] = [DI, SI, DX, R10, R8, R9];
    pub(super) const I386: [i16; 6] = [BX, CX, DX, SI, DI, BP];
    pub(super) const NUMBER: i16 = 120;
    const BP: i16 = 32;
    const BX: i16 = 40;
    const R10: i16 = 56;
    const R9: i16 = 64;
    const R8: i16 = 72;
    const CX: i16 = 88;
    const DX: i16 = 96;
    const SI: i16 = 104;
    const DI: i16 = 112;
}

/// The bit of `thread_info.status` that says that the thread is inside an i386 call.
const COMPAT: i32 = 2;

/// Bits of the word that tells a call: its class and its ABI are behind its number.
const CLASS_SHIFT: i32 = 32;
const COMPAT_SHIFT: i32 = 40;

/// `R8`, a call's number, gets the call's class and ABI; ends the program if it is not recorded. Destroys
/// `R7`.
fn classify(w: &mut Writer, offsets: Offsets) {
    let out = w.out;
    w.it.copy_32(R8, R8);
    w.it.copy(R7, R8);
    w.it.and_value(R7, !(abi::X32 as i32));
    w.it.jump_if(R7, If::AtLeast, shared::MOST_NUMBERS as i32, out);
    w.it.call(Helper::CurrentTask);
    w.it.load(Word, R2, R0, offsets.thread_status);
    w.it.and_value(R2, COMPAT);
    // Those of i386 are behind the others.
    w.it.shift_left(R2, shared::MOST_NUMBERS.ilog2() as i32 - COMPAT.ilog2() as i32);
    w.it.add(R7, R2);
    w.shared(R1, shared::NUMBERS);
    w.it.add(R1, R7);
    w.it.load(Byte, R1, R1, 0);
    w.it.jump_if(R1, If::Equal, 0, out);
    w.it.shift_left(R1, CLASS_SHIFT);
    w.it.or(R8, R1);
    w.it.shift_left(R2, COMPAT_SHIFT - shared::MOST_NUMBERS.ilog2() as i32);
    w.it.or(R8, R2);
}

/// Puts the arguments of the call of the slot into six words of the record. Destroys `R1` and `R5`.
fn put_arguments(w: &mut Writer, first: usize) {
    let (i386, done) = (w.it.label(), w.it.label());
    w.it.load(Double, R5, R6, 0);
    w.it.load(Double, R1, R7, slot::CALL);
    w.it.shift_right(R1, COMPAT_SHIFT);
    w.it.jump_if(R1, If::NotEqual, 0, i386);
    for (end, registers) in [(Some(i386), registers::NATIVE), (None, registers::I386)] {
        for (word, register) in (first..).zip(registers) {
            w.it.load(Double, R1, R5, register);
            w.put(word, R1);
        }
        if let Some(next) = end {
            w.it.jump(done);
            w.it.bind(next);
        }
    }
    w.it.bind(done);
}

/// If the call in `R8` asks for pages by its flags, it has a record of its entry. It may fill GiB after perf
/// has told its mapping, and the recorder waits for a call without a record only until too many others wait.
/// Destroys `R1` to `R3`.
fn needs_entry(w: &mut Writer) {
    const FLAGS: usize = 3;
    let (i386, known, done) = (w.it.label(), w.it.label(), w.it.label());
    w.it.copy(R1, R8);
    jump_unless_class(w, R1, class::POPULATES, done);
    w.it.load(Double, R3, R6, 0);
    w.it.copy(R1, R8);
    w.it.shift_right(R1, COMPAT_SHIFT);
    w.it.jump_if(R1, If::NotEqual, 0, i386);
    w.it.load(Double, R2, R3, registers::NATIVE[FLAGS]);
    w.it.jump(known);
    w.it.bind(i386);
    w.it.load(Double, R2, R3, registers::I386[FLAGS]);
    w.it.bind(known);
    w.it.and_value(R2, libc::MAP_POPULATE | libc::MAP_LOCKED);
    w.it.jump_if(R2, If::Equal, 0, done);
    w.it.set_64(R2, u64::from(class::ENTRY) << CLASS_SHIFT);
    w.it.or(R8, R2);
    w.it.bind(done);
}

/// On to the label if the call of a word has none of these bits in its class. Destroys `word`.
fn jump_unless_class(w: &mut Writer, word: Reg, bits: u8, label: Label) {
    let has = w.it.label();
    jump_if_class(w, word, bits, has);
    w.it.jump(label);
    w.it.bind(has);
}

/// On to the label if the call of a word has one of these bits in its class. Destroys `word`.
pub(super) fn jump_if_class(w: &mut Writer, word: Reg, bits: u8, label: Label) {
    w.it.shift_right(word, CLASS_SHIFT);
    w.it.jump_if(word, If::AnyBit, bits.into(), label);
}

/// A call begins: (registers, number).
pub(super) fn enter_call(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    let has_entry = w.it.label();
    w.it.load(Double, R8, R6, 8);
    classify(&mut w, offsets);
    w.follow();
    needs_entry(&mut w);
    w.it.store(Double, R7, slot::CALL, R8);
    w.it.store_value(Double, R7, slot::CALL_NS, 0);
    w.now();
    w.give_up_fault();
    w.it.store_value(Double, R7, slot::SECTION_MM, 0);
    w.it.store_value(Double, R7, slot::SHOWN_NS, 0);
    w.it.store_value(Double, R7, slot::CUT, 0);
    w.it.load(Double, R1, R7, slot::CALL);
    jump_if_class(&mut w, R1, class::ENTRY, has_entry);
    w.it.store(Double, R7, slot::CALL_NS, R8);
    w.it.jump(out);
    w.it.bind(has_entry);
    w.put_field(3, slot::CALL);
    put_arguments(&mut w, 4);
    let (no_block, read) = (w.it.label(), w.it.label());
    w.it.set(R1, 0);
    (10..13).for_each(|word| w.put(word, R1));
    w.flags(0);
    w.it.load(Double, R1, R7, slot::CALL);
    w.it.shift_right(R1, CLASS_SHIFT);
    w.it.jump_if(R1, If::AnyBit, class::BLOCK.into(), read);
    w.it.jump(no_block);
    w.it.bind(read);
    w.it.load(Double, R3, R6, 0);
    w.it.load(Double, R3, R3, registers::I386[0]);
    w.it.copy_32(R3, R3);
    w.word(R1, 10);
    w.it.set(R2, 24);
    w.it.call(Helper::ReadUser);
    w.it.jump_if(R0, If::NotEqual, 0, no_block);
    w.flags(decode::HAS_BLOCK);
    w.it.bind(no_block);
    w.write(decode::ENTER, decode::ENTER_WORDS);
    w.finish()
}

/// A call returns: (registers, result).
pub(super) fn leave_call(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let (had_entry, done) = (w.it.label(), w.it.label());
    w.it.load(Double, R1, R6, 0);
    w.it.load(Double, R8, R1, registers::NUMBER);
    classify(&mut w, offsets);
    w.follow();
    w.it.store(Double, Fp, KEPT, R8);
    w.now();
    w.give_up_fault();
    w.it.load(Double, R1, Fp, KEPT);
    // What the entry found in its flags is in the slot alone.
    w.it.load(Double, R2, R7, slot::CALL);
    w.it.or(R1, R2);
    jump_if_class(&mut w, R1, class::ENTRY, had_entry);
    // It may have begun before the recording.
    w.it.load(Double, R1, R7, slot::CALL_NS);
    w.it.jump_if(R1, If::Equal, 0, done);
    w.put(3, R1);
    w.put_field(4, slot::CALL);
    w.put_context(5, 8);
    w.it.load(Double, R1, Fp, KEPT);
    w.it.copy_32(R1, R1);
    w.put(6, R1);
    put_arguments(&mut w, 7);
    w.put_field(13, slot::SECTION_MM);
    w.put_field(14, slot::SECTION_NS);
    w.put_field(15, slot::SECTION_SHARES);
    w.put_field(16, slot::SHOWN_NS);
    w.put_field(17, slot::SHOWN_MM);
    w.flags(0);
    w.write(decode::CALL, decode::CALL_WORDS);
    w.it.jump(done);
    w.it.bind(had_entry);
    w.put_context(3, 8);
    w.it.load(Double, R1, Fp, KEPT);
    w.it.copy_32(R1, R1);
    w.put(4, R1);
    w.flags(0);
    w.write(decode::LEAVE, decode::LEAVE_WORDS);
    w.it.bind(done);
    w.it.store_value(Double, R7, slot::CALL_NS, 0);
    w.it.store_value(Double, R7, slot::CALL, 0);
    w.finish()
}

/// A lock is taken: (address space, in older kernels a name, for writing, successfully). Only those for
/// reading say anything.
pub(super) fn lock_taken(maps: Maps, arguments: usize) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    let discards = w.it.label();
    w.it.load(Double, R1, R6, 8 * (arguments as i16 - 2));
    w.it.jump_if(R1, If::NotEqual, 0, out);
    w.it.load(Double, R1, R6, 8 * (arguments as i16 - 1));
    w.it.jump_if(R1, If::Equal, 0, out);
    w.follow();
    w.it.load(Double, R1, R7, slot::CALL_NS);
    w.it.jump_if(R1, If::Equal, 0, out);
    w.it.load(Double, R1, R7, slot::CALL);
    jump_if_class(&mut w, R1, class::DISCARDS, discards);
    let downgrades = w.it.label();
    w.it.jump_if(R1, If::AnyBit, class::DOWNGRADES.into(), downgrades);
    w.it.jump(out);
    w.it.bind(downgrades);
    w.it.load(Double, R1, R7, slot::SECTION_MM);
    w.it.jump_if(R1, If::NotEqual, 0, out);
    w.now();
    w.it.load(Double, R1, R6, 0);
    w.it.store(Double, R7, slot::SECTION_MM, R1);
    w.it.store(Double, R7, slot::SECTION_NS, R8);
    w.it.store_value(Double, R7, slot::SECTION_SHARES, 1);
    w.it.jump(out);
    w.it.bind(discards);
    w.now();
    w.it.load(Double, R1, R6, 0);
    w.it.store(Double, R7, slot::SHOWN_MM, R1);
    w.it.store(Double, R7, slot::SHOWN_NS, R8);
    w.finish()
}

/// A lock is about to be released: (address space, in older kernels a name, for writing).
pub(super) fn lock_released(maps: Maps, arguments: usize) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    let (has_entry, first, same) = (w.it.label(), w.it.label(), w.it.label());
    w.it.load(Double, R1, R6, 8 * (arguments as i16 - 1));
    w.it.jump_if(R1, If::Equal, 0, out);
    w.follow();
    w.it.load(Double, R1, R7, slot::CALL);
    w.it.jump_if(R1, If::Equal, 0, out);
    jump_if_class(&mut w, R1, class::EXEC, out);
    w.it.jump_if(R1, If::AnyBit, class::ENTRY.into(), has_entry);
    w.it.load(Double, R1, R6, 0);
    w.it.load(Double, R2, R7, slot::SECTION_MM);
    w.it.jump_if(R2, If::Equal, 0, first);
    w.it.jump_if_both(R1, If::Equal, R2, same);
    w.it.jump(out);
    w.it.bind(first);
    w.it.store(Double, R7, slot::SECTION_MM, R1);
    w.it.bind(same);
    w.now();
    w.it.store(Double, R7, slot::SECTION_NS, R8);
    w.it.store_value(Double, R7, slot::SECTION_SHARES, 0);
    w.it.jump(out);
    w.it.bind(has_entry);
    w.now();
    w.put_context(3, 0);
    w.flags(0);
    w.write(decode::UNLOCKED, decode::UNLOCKED_WORDS);
    w.finish()
}
