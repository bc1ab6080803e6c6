//! Segments and the task state: which stack the processor takes when it enters the kernel.

use spin::Once;
use x86_64::PrivilegeLevel;
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::model_specific::Star;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;

/// The slot of the interrupt stack table for traps that must not trust the current stack.
pub const FATAL_STACK: u16 = 0;
const FATAL_STACK_BYTES: usize = 16 << 10;

#[repr(align(16))]
struct FatalStack(#[expect(dead_code, reason = "the processor uses it")] [u8; FATAL_STACK_BYTES]);

static mut FATAL: FatalStack = FatalStack([0; FATAL_STACK_BYTES]);
static mut TSS: TaskStateSegment = TaskStateSegment::new();
static GDT: Once<(GlobalDescriptorTable, Selectors)> = Once::new();

/// The selectors that code outside needs.
#[derive(Clone, Copy)]
pub struct Selectors {
    /// A program's code.
    pub user_code: SegmentSelector,
    /// A program's data and stack.
    pub user_data: SegmentSelector,
}

/// Loads the segments and the task state.
pub fn load() {
    // SAFETY: the processor writes here only through this address, and no reference is made.
    unsafe {
        let top = (&raw const FATAL).addr() + FATAL_STACK_BYTES;
        TSS.interrupt_stack_table[usize::from(FATAL_STACK)] = VirtAddr::new(top as u64);
    }
    let mut gdt = GlobalDescriptorTable::new();
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    // SYSRET wants a program's data right before its code.
    let user_data = gdt.append(Descriptor::user_data_segment());
    let user_code = gdt.append(Descriptor::user_code_segment());
    // SAFETY: the task state is a static.
    let tss = gdt.append(unsafe { Descriptor::tss_segment_unchecked(&raw const TSS) });
    let (gdt, _) = GDT.call_once(|| (gdt, Selectors { user_code, user_data }));
    gdt.load();
    // SAFETY: the selectors are of the table that was just loaded.
    unsafe {
        CS::set_reg(code);
        SS::set_reg(data);
        DS::set_reg(SegmentSelector::new(0, PrivilegeLevel::Ring0));
        ES::set_reg(SegmentSelector::new(0, PrivilegeLevel::Ring0));
        load_tss(tss);
    }
    Star::write(user_code, user_data, code, data)
        .expect("the segments stand in the order that SYSCALL wants");
}

/// A program's segments, after [`load`].
pub fn selectors() -> Selectors {
    GDT.get().expect("loaded at start-up").1
}

/// Sets where traps from a program push what they interrupt.
pub fn set_trap_stack(end: u64) {
    // SAFETY: the processor reads this only when it leaves a program, and this CPU runs the kernel.
    unsafe { TSS.privilege_stack_table[0] = VirtAddr::new(end) };
}
