//! The programs of a recording, each for one tracepoint or event of the kernel.

use std::ffi::CStr;

use super::asm::{Helper, If, Instruction, Reg, Size};
use super::btf::Btf;
use super::decode;
use super::shared::{self, class, slot};
use super::write::{KEPT, Maps, Writer};
use crate::record::abi;
use crate::record::setup::USER_END;
use Reg::{Fp, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
use Size::{Byte, Double, Half, Word};

/// What a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attached {
    /// A tracepoint; its arguments are plain numbers.
    Tracepoint(&'static CStr),
    /// A tracepoint, of whose arguments the kernel knows the types: the number of the type of its handlers.
    Typed(u32),
    /// Resolved faults: those that waited for a device, or others.
    Resolved { major: bool },
}

impl Attached {
    /// Whether the program tells faults alone.
    pub(super) fn is_at_faults(self) -> bool {
        match self {
            Attached::Tracepoint(name) => [FAULT_USER, FAULT_KERNEL, AROUND].contains(&name),
            Attached::Typed(_) => false,
            Attached::Resolved { .. } => true,
        }
    }
}

const FAULT_USER: &CStr = c"page_fault_user";
const FAULT_KERNEL: &CStr = c"page_fault_kernel";
const AROUND: &CStr = c"mm_filemap_map_pages";

/// A program.
pub(super) struct Program {
    /// For messages, and what the kernel lists.
    pub(super) name: &'static str,
    pub(super) attached: Attached,
    pub(super) code: Vec<Instruction>,
}

/// The members of the kernel's structures that are read: `structure.member`.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    thread_status: i16,
    task_pid: i16,
    task_signal: i16,
    signal_live: i16,
    mapping_host: i16,
    inode_number: i16,
    inode_super: i16,
    super_device: i16,
    folio_mapping: i16,
}

/// The structures that are looked at.
const STRUCTURES: [&str; 7] =
    ["thread_info", "task_struct", "signal_struct", "address_space", "inode", "super_block", "folio"];

const TRACEPOINTS: [&str; 6] = [
    "sys_enter",
    "sys_exit",
    "task_newtask",
    "sched_process_exit",
    "mmap_lock_acquire_returned",
    "mmap_lock_released",
];

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

/// Where the address of an event is in a program's context.
const EVENT_ADDRESS: i16 = 176;

/// Bits of the word that tells a call: its class and its ABI are behind its number.
const CLASS_SHIFT: i32 = 32;
const COMPAT_SHIFT: i32 = 40;

impl Offsets {
    fn of(btf: &Btf) -> Option<Offsets> {
        Some(Offsets {
            thread_status: btf.offset("thread_info", "status")?,
            task_pid: btf.offset("task_struct", "pid")?,
            task_signal: btf.offset("task_struct", "signal")?,
            signal_live: btf.offset("signal_struct", "live")?,
            mapping_host: btf.offset("address_space", "host")?,
            inode_number: btf.offset("inode", "i_ino")?,
            inode_super: btf.offset("inode", "i_sb")?,
            super_device: btf.offset("super_block", "s_dev")?,
            folio_mapping: btf.offset("folio", "mapping")?,
        })
    }
}

/// All programs, or what this kernel lacks. `nameless` is the device of files that no path leads to, as the kernel has it.
pub(super) fn all(maps: Maps, nameless: Option<u32>) -> Result<Vec<Program>, &'static str> {
    let btf =
        Btf::of_kernel(&STRUCTURES, &TRACEPOINTS).ok_or("descriptions of types (CONFIG_DEBUG_INFO_BTF)")?;
    let offsets = Offsets::of(&btf).ok_or("a structure that is read")?;
    let typed = |name| btf.tracepoint(name).map(|(number, _)| Attached::Typed(number));
    let arguments = |name| btf.tracepoint(name).map(|(_, arguments)| arguments);
    let no_tracepoint = "a tracepoint";
    let raw = Attached::Tracepoint;
    let taken = arguments("mmap_lock_acquire_returned").ok_or(no_tracepoint)?;
    let released = arguments("mmap_lock_released").ok_or(no_tracepoint)?;
    let enter = typed("sys_enter").ok_or(no_tracepoint)?;
    let leave = typed("sys_exit").ok_or(no_tracepoint)?;
    let new_task = typed("task_newtask").ok_or(no_tracepoint)?;
    let exit = typed("sched_process_exit").ok_or(no_tracepoint)?;
    let program = |name, attached, code| Program { name, attached, code };
    let mut programs = vec![
        program("quire_fault_u", raw(FAULT_USER), fault(maps, false)),
        program("quire_fault_k", raw(FAULT_KERNEL), fault(maps, true)),
        program("quire_minor", Attached::Resolved { major: false }, resolved(maps, false)),
        program("quire_major", Attached::Resolved { major: true }, resolved(maps, true)),
        program("quire_enter", enter, enter_call(maps, offsets)),
        program("quire_leave", leave, leave_call(maps, offsets)),
        program("quire_taken", raw(c"mmap_lock_acquire_returned"), lock_taken(maps, taken)),
        program("quire_released", raw(c"mmap_lock_released"), lock_released(maps, released)),
        program("quire_newtask", new_task, task_made(maps, offsets)),
        program("quire_exec", raw(c"sched_process_exec"), program_started(maps)),
        program("quire_exit", exit, task_ended(maps, offsets)),
        program("quire_around", raw(AROUND), pages_mapped(maps, offsets)),
    ];
    if let Some(device) = nameless {
        let dropped = raw(c"mm_filemap_delete_from_page_cache");
        programs.push(program("quire_dropped", dropped, page_dropped(maps, offsets, device)));
    }
    Ok(programs)
}

/// The processor takes a fault: (address, registers, error code).
fn fault(maps: Maps, kernel_mode: bool) -> Vec<Instruction> {
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
fn resolved(maps: Maps, major: bool) -> Vec<Instruction> {
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

/// `R8`, a call's number, gets the call's class and ABI; ends the program if it is not recorded. Destroys `R7`.
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

/// On to the label if the call of a word has one of these bits in its class. Destroys `word`.
fn jump_if_class(w: &mut Writer, word: Reg, bits: u8, label: super::asm::Label) {
    w.it.shift_right(word, CLASS_SHIFT);
    w.it.jump_if(word, If::AnyBit, bits.into(), label);
}

/// A call begins: (registers, number).
fn enter_call(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    let has_entry = w.it.label();
    w.it.load(Double, R8, R6, 8);
    classify(&mut w, offsets);
    w.follow();
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
fn leave_call(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
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

/// A lock is taken: (address space, in older kernels a name, for writing, successfully). Only those for reading say anything.
fn lock_taken(maps: Maps, arguments: usize) -> Vec<Instruction> {
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
fn lock_released(maps: Maps, arguments: usize) -> Vec<Instruction> {
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

/// The thread has made another: (task, flags of `clone`). That is followed, too.
fn task_made(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    /// Slots that are tried. They are taken in turn, so that nearly always the first is free.
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
    for _ in 0..TRIES {
        w.shared(R1, shared::NEXT);
        w.it.set(R9, 1);
        w.it.atomic_fetch_add(R1, 0, R9);
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
    w.cpu();
    w.count(shared::cpu::LOST, out);
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

/// A thread has started a program: (task, its number before, …). If that was not the first thread, it has got the first one's
/// number, and with it the slot.
fn program_started(maps: Maps) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    w.follow();
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

/// A thread ends: (task, …). A first thread keeps its slot as long as others live: one of them may start a program, and gets
/// the first one's number then.
fn task_ended(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
    let mut w = Writer::new(maps);
    let out = w.out;
    w.follow();
    w.now();
    w.give_up_fault();
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

/// Pages of a file were mapped around a fault: (mapping, first page, last page).
fn pages_mapped(maps: Maps, offsets: Offsets) -> Vec<Instruction> {
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
fn page_dropped(maps: Maps, offsets: Offsets, device: u32) -> Vec<Instruction> {
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
