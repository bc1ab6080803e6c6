//! The programs of a recording, each for one tracepoint or event of the kernel.

use std::ffi::CStr;

use super::asm::Instruction;
use super::at_calls::{enter_call, leave_call, lock_released, lock_taken};
use super::at_faults::{fault, page_dropped, pages_mapped, resolved};
use super::at_tasks::{program_started, task_ended, task_made};
use super::btf::Btf;
use super::offsets::{Offsets, STRUCTURES};
use super::write::Maps;

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
    /// Whether the kernel runs the program inside of faults.
    pub(super) fn is_at_faults(self) -> bool {
        match self {
            // A fault may take the lock of the address space.
            Attached::Tracepoint(name) => {
                [FAULT_USER, FAULT_KERNEL, AROUND, LOCK_TAKEN, LOCK_RELEASED].contains(&name)
            }
            Attached::Typed(_) => false,
            Attached::Resolved { .. } => true,
        }
    }
}

const FAULT_USER: &CStr = c"page_fault_user";
const FAULT_KERNEL: &CStr = c"page_fault_kernel";
const AROUND: &CStr = c"mm_filemap_map_pages";
const LOCK_TAKEN: &CStr = c"mmap_lock_acquire_returned";
const LOCK_RELEASED: &CStr = c"mmap_lock_released";

/// A program.
pub(super) struct Program {
    /// For messages, and what the kernel lists.
    pub(super) name: &'static str,
    pub(super) attached: Attached,
    pub(super) code: Vec<Instruction>,
}

const TRACEPOINTS: [&str; 6] = [
    "sys_enter",
    "sys_exit",
    "task_newtask",
    "sched_process_exit",
    "mmap_lock_acquire_returned",
    "mmap_lock_released",
];

/// All programs, or what this kernel lacks. `nameless` is the device of files that no path leads to, as the
/// kernel has it.
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
        program("quire_taken", raw(LOCK_TAKEN), lock_taken(maps, taken)),
        program("quire_released", raw(LOCK_RELEASED), lock_released(maps, released)),
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
