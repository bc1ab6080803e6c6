//! The programs at faults, and at what happens to files meanwhile.

use super::asm::{If, Instruction, Reg, Size};
use super::at_calls::jump_if_class;
use super::decode;
use super::offsets::Offsets;
use super::shared::{self, class, slot};
use super::write::{Maps, Writer};
use crate::record::tracepoints::USER_END;
use Reg::{R1, R2, R6, R7, R8};
use Size::{Double, Word};

/// Where the address of an event is in a program's context.
const EVENT_ADDRESS: i16 = 176;

/// The processor takes a fault: (address, registers, error code).
pub(super) fn fault(maps: Maps, kernel_mode: bool) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    w.it.load(Double, R1, R6, 0);
    w.it.set_64(R2, USER_END);
    w.it.jump_if_both(R1, If::AtLeast, R2, out);
    w.follow();
    let recorded = w.it.label();
    w.shared(R1, shared::FAULTS);
    w.it.load(Word, R1, R1, 0);
    w.it.jump_if(R1, If::NotEqual, 0, recorded);
    w.cpu();
    w.count(shared::cpu::MISSED, out);
    w.it.jump(out);
    w.it.bind(recorded);
    w.now();
    w.give_up_fault();
    w.it.load(Double, R1, R6, 0);
    w.it.store(Double, R7, slot::FAULT_ADDRESS, R1);
    w.it.load(Double, R1, R6, 16);
    w.it.copy_32(R1, R1);
    if kernel_mode {
        w.it.set_64(R2, decode::KERNEL_MODE);
        w.it.or(R1, R2);
    }
    w.it.store(Double, R7, slot::FAULT_CODE, R1);
    w.it.store(Double, R7, slot::FAULT_NS, R8);
    w.finish()
}

/// A fault is resolved. One without a begin is written only while faults are recorded.
pub(super) fn resolved(maps: Maps, major: bool) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    w.follow();
    let begun = w.it.label();
    w.it.load(Double, R1, R7, slot::FAULT_NS);
    w.it.jump_if(R1, If::NotEqual, 0, begun);
    w.shared(R1, shared::FAULTS);
    w.it.load(Word, R1, R1, 0);
    w.it.jump_if(R1, If::Equal, 0, out);
    w.it.bind(begun);
    w.now();
    w.put_fault();
    w.put_context(6, EVENT_ADDRESS);
    w.flags(decode::RESOLVED | if major { decode::MAJOR } else { 0 });
    w.write(decode::FAULT, decode::FAULT_WORDS);
    w.it.store_value(Double, R7, slot::FAULT_NS, 0);
    w.finish()
}

/// Pages of a file were mapped around a fault: (mapping, first page, last page).
pub(super) fn pages_mapped(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    w.follow();
    w.it.load(Double, R1, R7, slot::FAULT_NS);
    w.it.jump_if(R1, If::Equal, 0, out);
    w.now();
    w.it.load(Double, R2, R6, 0);
    put_file(&mut w, offsets);
    w.put_context(5, 8);
    w.put_context(6, 16);
    w.flags(0);
    w.write(decode::MAP_PAGES, decode::MAP_PAGES_WORDS);
    w.finish()
}

/// A page leaves a file: (folio). The first of a call is told, of a file that no path leads to.
pub(super) fn page_dropped(maps: Maps, offsets: Offsets, device: u32) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    let cuts = w.it.label();
    w.follow();
    w.it.load(Double, R1, R7, slot::CUT);
    w.it.jump_if(R1, If::NotEqual, 0, out);
    w.it.load(Double, R1, R7, slot::CALL);
    jump_if_class(&mut w, R1, class::CUTS, cuts);
    w.it.jump(out);
    w.it.bind(cuts);
    w.now();
    w.it.load(Double, R1, R6, 0);
    w.read_kernel(R2, R1, offsets.folio_mapping);
    put_file(&mut w, offsets);
    w.it.jump_if_32(R2, If::NotEqual, device as i32, out);
    w.flags(0);
    w.write(decode::DROPPED, decode::DROPPED_WORDS);
    w.it.store_value(Double, R7, slot::CUT, 1);
    w.finish()
}

/// Puts device and inode of the file whose mapping is in `R2` into words 3 and 4. `R2` is the device then.
fn put_file(w: &mut Writer, offsets: Offsets) {
    w.read_kernel(R1, R2, offsets.mapping_host);
    // Kept where no function writes: the word is put once more below.
    w.put(3, R1);
    w.read_kernel(R2, R1, offsets.inode_number);
    w.put(4, R2);
    w.word(R1, 3);
    w.it.load(Double, R1, R1, 0);
    w.read_kernel(R2, R1, offsets.inode_super);
    w.read_kernel(R2, R2, offsets.super_device);
    w.it.copy_32(R2, R2);
    w.put(3, R2);
}
