//! Watches each instruction of a piece of work before it executes.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence};

use iced_x86::{DecoderError, Register};

use super::instruction::{Access, LONGEST, Reader};

/// The result of work that ran one instruction at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steps<R> {
    /// The result of the work.
    pub result: R,
    /// Instructions; each turn of a repeated one counts. Some ten belong to the start and the end.
    pub instructions: u64,
    /// Locked ones among them: atomic read-modify-writes.
    pub locked: u64,
    /// The limit was reached, and later instructions were not watched.
    pub cut: bool,
}

thread_local! {
    /// The watch of this thread; it lives until it removes itself. Without a destructor, since a signal's
    /// handler reads it.
    static WATCH: AtomicPtr<Watch> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// A watch, on the stack of the thread that it watches.
pub(super) struct Watch {
    outer: *mut Self,
    reader: UnsafeCell<Reader>,
    /// The callback for accesses, and a function that calls it with its own type.
    sink: *mut (),
    call: unsafe fn(*mut (), Access),
    limit: u64,
    pub(super) instructions: AtomicU64,
    pub(super) locked: AtomicU64,
    pub(super) cut: AtomicBool,
    /// An instruction could not be decoded.
    pub(super) unreadable: AtomicBool,
}

impl Watch {
    pub(super) fn new<S: FnMut(Access)>(limit: u64, sink: &mut S) -> Self {
        /// # Safety
        /// `sink` is an `S` that no other code uses meanwhile.
        unsafe fn call<S: FnMut(Access)>(sink: *mut (), access: Access) {
            // SAFETY: H6: the caller passes the `S` that the watch was made with, on the thread's list meanwhile.
            unsafe { (*sink.cast::<S>())(access) }
        }
        Self {
            outer: WATCH.with(|watch| watch.load(Ordering::Relaxed)),
            reader: UnsafeCell::new(Reader::new()),
            sink: ptr::from_mut(sink).cast(),
            call: call::<S>,
            limit,
            instructions: AtomicU64::new(0),
            locked: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
        }
    }

    /// Reads the next instruction.
    fn look(&self, registers: &Registers) {
        let at = registers[libc::REG_RIP as usize] as usize;
        // SAFETY: H6: only this thread's trap handler calls this, and no other trap comes while it runs.
        let reader = unsafe { &mut *self.reader.get() };
        // An instruction at the end of a page may be the end of readable memory.
        let in_page = LONGEST.min(PAGE - at % PAGE);
        let read = match reader.decode(code(at, in_page), at) {
            Err(DecoderError::NoMoreBytes) => reader.decode(code(at, LONGEST), at),
            read => read,
        };
        if read.is_err() {
            return self.unreadable.store(true, Ordering::Relaxed);
        }
        add_one(&self.instructions);
        if reader.is_locked() {
            add_one(&self.locked);
        }
        let value = |register| value_of(registers, register);
        // SAFETY: H6: the watch is the thread's, so its sink lives, is borrowed by it alone, and is of the type that `call`
        // expects.
        reader.accesses(value, &mut |access| unsafe { (self.call)(self.sink, access) });
    }
}

const PAGE: usize = 4096;

/// The general registers of an interrupted thread.
pub(super) type Registers = [libc::greg_t; 23];

/// The code that is about to be executed.
fn code<'a>(at: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: H7: the processor is about to read the instruction that starts here, so its page is readable; more than the
    // rest of that page is asked for when the instruction goes on behind it. Code is never changed.
    unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(at), bytes) }
}

/// Adds one; only this thread uses its counters.
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The value of a register that takes part in addresses. Segments with their own base are unknown here.
fn value_of(registers: &Registers, register: Register) -> Option<u64> {
    let at = match register.full_register() {
        Register::CS | Register::DS | Register::ES | Register::SS => return Some(0),
        Register::RAX => libc::REG_RAX,
        Register::RBX => libc::REG_RBX,
        Register::RCX => libc::REG_RCX,
        Register::RDX => libc::REG_RDX,
        Register::RSI => libc::REG_RSI,
        Register::RDI => libc::REG_RDI,
        Register::RSP => libc::REG_RSP,
        Register::RBP => libc::REG_RBP,
        Register::R8 => libc::REG_R8,
        Register::R9 => libc::REG_R9,
        Register::R10 => libc::REG_R10,
        Register::R11 => libc::REG_R11,
        Register::R12 => libc::REG_R12,
        Register::R13 => libc::REG_R13,
        Register::R14 => libc::REG_R14,
        Register::R15 => libc::REG_R15,
        _ => return None,
    };
    let value = registers[at as usize] as u64;
    Some(if register.is_gpr32() { value & u64::from(u32::MAX) } else { value })
}

/// Called when the processor is about to execute an instruction of this thread. Returns whether to watch the
/// next one too.
pub(super) fn looked(registers: &Registers) -> bool {
    // SAFETY: H6: the watch is on the thread's list, so the guard borrows it still.
    let Some(watch) = (unsafe { WATCH.with(|watch| watch.load(Ordering::Relaxed)).as_ref() }) else {
        return false;
    };
    if watch.instructions.load(Ordering::Relaxed) == watch.limit {
        watch.cut.store(true, Ordering::Relaxed);
    }
    // Printing a trace step by step takes seconds.
    let goes_on = !watch.cut.load(Ordering::Relaxed) && !std::thread::panicking();
    if goes_on {
        watch.look(registers);
    }
    goes_on
}

/// Installs a watch for the running thread until dropped.
pub(super) struct Installed<'w>(PhantomData<&'w Watch>, *mut Watch);

impl<'w> Installed<'w> {
    pub(super) fn new(watch: &'w Watch) -> Self {
        put(ptr::from_ref(watch).cast_mut());
        Self(PhantomData, watch.outer)
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        put(self.1);
    }
}

fn put(watch: *mut Watch) {
    compiler_fence(Ordering::SeqCst);
    WATCH.with(|own| own.store(watch, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
}
