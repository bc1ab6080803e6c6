//! Looks at each instruction of a piece of work before it is executed.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

use iced_x86::{DecoderError, Register};

pub use super::instruction::Access;
use super::instruction::{LONGEST, Reader};
use super::signals::{self, Running, Stepping};
use crate::error::HostedError;
use crate::machine::Hosted;
use crate::task::Task;

/// What was seen of work that ran one instruction at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steps<R> {
    /// What the work gave.
    pub result: R,
    /// Instructions, each turn of a repeated one by itself. Some ten of them are of the beginning and the end.
    pub instructions: u64,
    /// Locked ones among them: read-modify-writes that no other processor comes in between.
    pub locked: u64,
    /// The limit was reached, and what came after it was not looked at.
    pub cut: bool,
}

/// Lives on the stack of the thread that it watches and is that thread's watch for as long.
pub(crate) struct Watch {
    outer: *mut Self,
    reader: UnsafeCell<Reader>,
    /// Who is told of accesses, and what calls it as its own type.
    sink: *mut (),
    call: unsafe fn(*mut (), Access),
    limit: u64,
    instructions: AtomicU64,
    locked: AtomicU64,
    cut: AtomicBool,
    /// An instruction was met that cannot be read.
    unreadable: AtomicBool,
}

impl Watch {
    fn new<S: FnMut(Access)>(limit: u64, sink: &mut S) -> Self {
        /// # Safety
        /// `sink` is an `S` that nobody else uses meanwhile.
        unsafe fn call<S: FnMut(Access)>(sink: *mut (), access: Access) {
            // SAFETY: the caller's promise.
            unsafe { (*sink.cast::<S>())(access) }
        }
        Self {
            outer: Task::with(|task| task.watch.load(Ordering::Relaxed)),
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

    /// Looks at the instruction that comes next.
    fn look(&self, registers: &Registers) {
        let at = registers[libc::REG_RIP as usize] as usize;
        // SAFETY: only this thread's trap handler comes here, and no other trap comes while it runs.
        let reader = unsafe { &mut *self.reader.get() };
        // What stands at the end of a page may be the end of what can be read.
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
        // SAFETY: the watch was made with a sink of the type that `call` expects, which lives and is nobody else's as long
        // as the watch is the thread's.
        reader.accesses(value, &mut |access| unsafe { (self.call)(self.sink, access) });
    }
}

const PAGE: usize = 4096;

/// What an interrupted thread's general registers hold.
pub(super) type Registers = [libc::greg_t; 23];

/// The code that is about to be executed.
fn code<'a>(at: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: the processor is about to read the instruction that starts here, so its page can be read; more than the rest
    // of that page is asked for when the instruction goes on behind it. Nobody changes code.
    unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(at), bytes) }
}

/// One more; the thread is alone with its counters.
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// What a register that takes part in addresses holds. The segments that have a base of their own are unknown here.
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

/// The processor is about to execute an instruction of this thread. Says whether somebody looks at the next one too.
pub(super) fn looked(task: &Task, registers: &Registers) -> bool {
    // SAFETY: a watch is the thread's from `Installed::new` until that guard is dropped, and the guard borrows it.
    let Some(watch) = (unsafe { task.watch.load(Ordering::Relaxed).as_ref() }) else { return false };
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

/// A watch that is the running thread's, until dropped.
struct Installed<'w>(PhantomData<&'w Watch>, *mut Watch);

impl<'w> Installed<'w> {
    fn new(watch: &'w Watch) -> Self {
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
    Task::with(|task| task.watch.store(watch, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
}

impl Hosted {
    /// Runs `body` one machine instruction at a time, counts what it executes, and tells `on_access` of all memory that it
    /// is about to read or write, in order. Other threads run as ever. An instruction takes microseconds, ten on a
    /// virtual machine; what comes after `limit` of them runs at full speed and unseen.
    ///
    /// Seen is all that the thread itself executes, the library, the platform and whatever else alike, but not what system
    /// calls and interrupts do, nor what runs in [`Self::unwatched`], nor the one instruction that follows a system call.
    /// Not told of are variables of the thread. A fetch in advance is no access.
    ///
    /// # Errors
    /// [`HostedError::NoSignals`]; [`HostedError::Unreadable`] when `body` has run, but not all of it could be read.
    ///
    /// # Panics
    /// As `body` does.
    ///
    /// # Safety
    /// `on_access` runs where a signal's handler does, between any two instructions of `body`: whatever `body` may be using
    /// that is not made for that, it must leave alone, the heap above all, and it must not panic.
    pub unsafe fn watch_steps<R>(
        &self,
        limit: u64,
        mut on_access: impl FnMut(Access) + Send,
        body: impl FnOnce() -> R,
    ) -> Result<Steps<R>, HostedError> {
        signals::prepare()?;
        let watch = Watch::new(limit, &mut on_access);
        let result = {
            let _installed = Installed::new(&watch);
            let _stepping = Stepping::start();
            body()
        };
        if watch.unreadable.load(Ordering::Relaxed) {
            return Err(HostedError::Unreadable);
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok(Steps {
            result,
            instructions: count(&watch.instructions),
            locked: count(&watch.locked),
            cut: watch.cut.load(Ordering::Relaxed),
        })
    }

    /// Runs `action`, a part of work whose instructions are looked at or interrupted, at full speed and without that: what a
    /// machine would do by itself, such as copying a page.
    pub fn unwatched<R>(&self, action: impl FnOnce() -> R) -> R {
        let _running = Running::start();
        action()
    }
}
