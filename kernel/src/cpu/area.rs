//! What each CPU has of its own. The kernel finds it through GS, which the entry stubs set by SWAPGS.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use quire::cpu::CpuId;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{GsBase, KernelGsBase};

use super::fpu::FpuState;
use super::segments::Segments;
use super::{apic, topology};

/// The most CPUs that the kernel starts.
pub const MAX_CPUS: usize = 8;

/// What each CPU has of its own, in bytes.
pub const BYTES: usize = size_of::<CpuArea>();

/// One CPU's own data. The stubs and the functions below know the offsets of the first fields.
///
/// Fields in cells are read and written by their own CPU alone: by tasks with interrupts off, or where no handler
/// uses the field.
#[repr(C, align(64))]
pub struct CpuArea {
    /// The kernel's stack pointer while a program runs. At 0.
    kernel_stack: Cell<u64>,
    /// The end of the running task's user registers. At 8.
    registers_end: Cell<u64>,
    /// Where SYSCALL leaves the program's stack pointer until it is pushed. At 16.
    scratch: Cell<u64>,
    /// This structure's address. At 24.
    this: Cell<*const CpuArea>,
    /// At 32.
    id: Cell<u32>,
    /// How many interrupt handlers run on top of each other. At 36.
    interrupt_depth: Cell<u32>,
    /// The running task (`crate::task`). At 40.
    current: Cell<*const ()>,
    /// Spin locks of Quire that the running code holds or waits for.
    spin_locks: Cell<u32>,
    /// Spin locks that handlers take too, and that the running code holds or waits for; builds with checks
    /// count them.
    irq_locks: Cell<u32>,
    /// Turns of loops that wait for other tasks.
    turns: Cell<u32>,
    /// The running task should let others run, when it can.
    need_resched: AtomicBool,
    /// The CPU runs its idle task.
    idle: AtomicBool,
    /// What `crate::task` keeps from one side of a stack switch to the other.
    pub handover: Cell<Handover>,
    /// The vector registers of a program while the kernel uses them.
    pub vectors: UnsafeCell<FpuState>,
    /// The CPU's descriptor table and task state.
    pub segments: UnsafeCell<Segments>,
}

/// The task that a CPU has just switched away from, and what becomes of it.
#[derive(Clone, Copy)]
pub struct Handover {
    /// A strong reference to the task, or null.
    pub previous: *const (),
    pub leaves: Leaves,
}

/// How a task leaves its CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// It sleeps, or has ended.
    Asleep,
    /// It could run on, and does so on an idle CPU if there is one.
    Preempted,
    /// Its program may not run here any more: it goes to another CPU, even if no other task wants this one.
    Moved,
    /// It waits for a lock, and stays here: on another CPU it would only wait beside the lock's holder.
    Spinning,
}

// SAFETY: X2: the cells are used by their own CPU alone; the rest is atomic.
unsafe impl Sync for CpuArea {}

impl CpuArea {
    const fn new() -> Self {
        Self {
            kernel_stack: Cell::new(0),
            registers_end: Cell::new(0),
            scratch: Cell::new(0),
            this: Cell::new(core::ptr::null()),
            id: Cell::new(0),
            interrupt_depth: Cell::new(0),
            current: Cell::new(core::ptr::null()),
            spin_locks: Cell::new(0),
            irq_locks: Cell::new(0),
            turns: Cell::new(0),
            need_resched: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            handover: Cell::new(Handover { previous: core::ptr::null(), leaves: Leaves::Asleep }),
            vectors: UnsafeCell::new(FpuState::new()),
            segments: UnsafeCell::new(Segments::new()),
        }
    }

    /// Where traps and system calls of the running task store its registers: below this address.
    ///
    /// # Safety
    /// The running code is this CPU, with interrupts off, and `end` is the end of a task's registers.
    pub unsafe fn set_registers_end(&self, end: u64) {
        self.registers_end.set(end);
        // SAFETY: X2: the processor reads the task state only when it leaves a program, and this CPU runs the
        // kernel.
        unsafe { (*self.segments.get()).set_trap_stack(end) };
    }

    /// Stores the running task.
    pub fn set_current(&self, task: *const ()) {
        self.current.set(task);
    }

    /// Asks the running task to let others run. Any CPU may ask.
    pub fn set_need_resched(&self, wanted: bool) {
        self.need_resched.store(wanted, Ordering::Relaxed);
    }

    /// Whether the running task should let others run.
    pub fn need_resched(&self) -> bool {
        self.need_resched.load(Ordering::Relaxed)
    }

    /// Says that the CPU has nothing to run, or has.
    pub fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
    }

    /// Whether the CPU has nothing to run.
    pub fn is_idle(&self) -> bool {
        self.idle.load(Ordering::SeqCst)
    }

    /// Counts a handler in. The matching call is [`Self::leave_interrupt`].
    pub fn enter_interrupt(&self) {
        self.interrupt_depth.set(self.interrupt_depth.get() + 1);
    }

    /// Counts a handler out.
    pub fn leave_interrupt(&self) {
        self.interrupt_depth.set(self.interrupt_depth.get() - 1);
    }

    /// Whether the running code may let another task run: no handler runs, and no spin lock is held.
    pub fn may_switch(&self) -> bool {
        self.spin_locks.get() == 0 && !self.in_interrupt()
    }

    /// Counts a lock in that handlers take too, with interrupts off. The matching call is
    /// [`Self::remove_irq_lock`].
    #[inline]
    pub fn add_irq_lock(&self) {
        if cfg!(debug_assertions) {
            self.irq_locks.set(self.irq_locks.get() + 1);
        }
    }

    /// Counts such a lock out.
    #[inline]
    pub fn remove_irq_lock(&self) {
        if cfg!(debug_assertions) {
            self.irq_locks.set(self.irq_locks.get() - 1);
        }
    }

    /// Whether a task holds or waits for such a lock, as far as the build counts them.
    pub fn has_irq_locks(&self) -> bool {
        self.irq_locks.get() > 0 && !self.in_interrupt()
    }

    /// Counts a turn of a loop that waits, and returns the number.
    pub fn next_turn(&self) -> u32 {
        let turn = self.turns.get().wrapping_add(1);
        self.turns.set(turn);
        turn
    }

    /// Whether a handler runs.
    pub fn in_interrupt(&self) -> bool {
        self.interrupt_depth.get() > 0
    }
}

static AREAS: [CpuArea; MAX_CPUS] = [const { CpuArea::new() }; MAX_CPUS];
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// Makes the running CPU one with this number: `GS` leads to its area from here on.
pub fn install(id: CpuId) {
    let area = &AREAS[id.index()];
    area.this.set(area);
    area.id.set(id.index() as u32);
    GsBase::write(VirtAddr::from_ptr(area));
    KernelGsBase::write(VirtAddr::zero());
}

/// Whether [`install`] has run on some CPU.
pub fn is_installed() -> bool {
    !AREAS[0].this.get().is_null()
}

/// Finds the running CPU's area again where GS may be a program's.
pub fn recover() {
    let cpu = if apic::is_mapped() { topology::cpu_of_apic(apic::id()) } else { CpuId(0) };
    GsBase::write(VirtAddr::from_ptr(&AREAS[cpu.index()]));
}

/// The running CPU's area. A task may go on on another CPU after it has slept or yielded.
#[inline]
pub fn this() -> &'static CpuArea {
    let area: *const CpuArea;
    // SAFETY: X2: GS leads to an area while the kernel runs, and the area's address never changes.
    unsafe {
        asm!("mov {}, gs:[24]", out(reg) area, options(nostack, preserves_flags, readonly));
        &*area
    }
}

/// Counts a spin lock of Quire in, which the running code holds or waits for.
#[inline]
pub fn add_spin_lock() {
    // SAFETY: X2: the field is of the running CPU's area; a handler leaves it as it found it.
    unsafe { asm!("inc dword ptr gs:[{}]", const offset_of!(CpuArea, spin_locks), options(nostack)) };
}

/// Counts a spin lock of Quire out.
#[inline]
pub fn remove_spin_lock() {
    // SAFETY: X2: the field is of the running CPU's area; a handler leaves it as it found it.
    unsafe { asm!("dec dword ptr gs:[{}]", const offset_of!(CpuArea, spin_locks), options(nostack)) };
}

/// Whether the running code is a handler.
#[inline]
pub fn in_interrupt() -> bool {
    let depth: u32;
    // SAFETY: X2: the field is of the running CPU's area, which GS leads to.
    unsafe {
        asm!(
            "mov {:e}, gs:[{}]",
            out(reg) depth,
            const offset_of!(CpuArea, interrupt_depth),
            options(nostack, preserves_flags, readonly)
        );
    }
    depth > 0
}

/// The running task, or null while the kernel starts.
#[inline]
pub fn current() -> *const () {
    let current: *const ();
    // SAFETY: X2: the field is of the running CPU's area, which GS leads to.
    unsafe {
        asm!(
            "mov {}, gs:[{}]",
            out(reg) current,
            const offset_of!(CpuArea, current),
            options(nostack, preserves_flags, readonly)
        );
    }
    current
}

/// The memory of the areas that have no CPU. Nothing reaches them any more.
pub fn unused() -> Range<u64> {
    let Range { start, end } = AREAS.as_ptr_range();
    start.wrapping_add(count()).addr() as u64..end.addr() as u64
}

/// The area of a CPU, of which there are [`count`].
pub fn of(cpu: CpuId) -> &'static CpuArea {
    debug_assert!(cpu.index() < count(), "a CPU of this machine");
    &AREAS[cpu.index()]
}

/// The running CPU.
#[inline]
pub fn cpu_id() -> CpuId {
    let id: u32;
    // SAFETY: X2: the field is of the running CPU's area, which GS leads to.
    unsafe { asm!("mov {:e}, gs:[32]", out(reg) id, options(nostack, preserves_flags, readonly)) };
    CpuId(id as _)
}

/// How many CPUs the machine has, as far as the kernel uses them.
#[inline]
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Sets the number of CPUs, before the manager starts.
pub fn set_count(count: usize) {
    COUNT.store(count.clamp(1, MAX_CPUS), Ordering::Relaxed);
}
