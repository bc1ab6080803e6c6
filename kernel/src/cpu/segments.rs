//! Segments and the task state of a CPU: which stack the processor takes when it enters the kernel.

use x86_64::PrivilegeLevel;
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::model_specific::Star;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;

use super::area;
use super::stubs::{USER_CODE, USER_DATA};

/// The slot of the interrupt stack table for traps that must not trust the current stack.
pub const FATAL_STACK: u16 = 0;
/// The slot for interrupts that cannot be masked: one may come while a trap is handled on the other stack.
pub const NMI_STACK: u16 = 1;
const FATAL_STACK_BYTES: usize = 16 << 10;

#[repr(align(16))]
struct FatalStack(#[expect(dead_code, reason = "the processor uses it")] [u8; FATAL_STACK_BYTES]);

/// What one CPU loads.
pub struct Segments {
    gdt: GlobalDescriptorTable,
    tss: TaskStateSegment,
    fatal: FatalStack,
    nmi: FatalStack,
}

impl Segments {
    /// The state before [`load`].
    pub const fn new() -> Self {
        Self {
            gdt: GlobalDescriptorTable::new(),
            tss: TaskStateSegment::new(),
            fatal: FatalStack([0; FATAL_STACK_BYTES]),
            nmi: FatalStack([0; FATAL_STACK_BYTES]),
        }
    }

    /// Sets where traps from a program push what they interrupt.
    pub fn set_trap_stack(&mut self, end: u64) {
        self.tss.privilege_stack_table[0] = VirtAddr::new(end);
    }
}

/// Loads the running CPU's segments and task state. Called once on each CPU, after `area::install`.
pub fn load() {
    // SAFETY: X2: this CPU alone uses its segments, once, and the area is a static.
    let segments: &'static mut Segments = unsafe { &mut *area::this().segments.get() };
    for (slot, stack) in [(FATAL_STACK, &raw const segments.fatal), (NMI_STACK, &raw const segments.nmi)] {
        let top = stack.addr() + FATAL_STACK_BYTES;
        segments.tss.interrupt_stack_table[usize::from(slot)] = VirtAddr::new(top as u64);
    }
    let tss = &raw const segments.tss;
    let gdt = &mut segments.gdt;
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    // SYSRET wants a program's data right before its code.
    let user_data = gdt.append(Descriptor::user_data_segment());
    let user_code = gdt.append(Descriptor::user_code_segment());
    assert_eq!((user_code.0, user_data.0), (USER_CODE, USER_DATA));
    // SAFETY: X7: the task state is a part of a static.
    let tss = gdt.append(unsafe { Descriptor::tss_segment_unchecked(tss) });
    // SAFETY: X7: the table is a part of a static, and does not change any more.
    unsafe { gdt.load_unsafe() };
    // SAFETY: X7: the selectors are of the table that was just loaded.
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
