//! A program whose threads change the same few pages at once. It is this test binary itself, asked to by a variable.

mod waits;

use std::ffi::c_void;
use std::sync::Barrier;

use nix::libc;

/// Name of the test below.
pub(crate) const TEST: &str = "remap_script::the_script_itself";

/// The variable that asks for it: how many threads, and how many calls each makes.
pub(crate) const VARIABLE: &str = "QUIRE_REMAP_SCRIPT";

/// Asks for calls that wait for the calls of another thread.
pub(crate) const WAITS: &str = "waits";

const PAGE: u64 = 4096;

/// Far from everything that the kernel places by itself, so that holes are not given to anything else.
const ARENA: u64 = 0x10_0000_0000;
const ARENA_PAGES: u64 = 48;

/// Pages by which the heap is moved at most.
const HEAP_PAGES: u64 = 8;

#[test]
fn the_script_itself() {
    // Only a recording asks for it.
    let Ok(wanted) = std::env::var(VARIABLE) else { return };
    if wanted == WAITS {
        println!("waited: {}", waits::run());
        return;
    }
    let (threads, rounds) = wanted.split_once(' ').expect("threads and rounds");
    let (threads, rounds) = (threads.parse().expect("a number"), rounds.parse().expect("a number"));
    skip_what_faults();
    let heap = heap_end(0);
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(number as u64);
                barrier.wait();
                (0..rounds).for_each(|_| change(&mut rng, heap));
                // No stack is given back, and none is given, while others still change memory.
                barrier.wait();
            });
        }
    });
    heap_end(heap);
}

/// One drawn change, or touch, of the pages that all threads share. Most may fail.
fn change(rng: &mut fastrand::Rng, heap: u64) {
    let (at, len) = (ARENA + rng.u64(..ARENA_PAGES - 8) * PAGE, rng.u64(1..=8) * PAGE);
    let protection = [libc::PROT_NONE, libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE][rng.usize(..3)];
    let memory = at as *mut c_void;
    let len = len as usize;
    let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the calls reach the arena and the heap above its first end alone, which hold nothing that is used.
    unsafe {
        match rng.u8(..12) {
            0..3 => drop(libc::mmap(memory, len, protection, fixed, -1, 0)),
            3 => drop(libc::munmap(memory, len)),
            4 | 5 => drop(libc::mprotect(memory, len, protection)),
            6 => {
                let to = (ARENA + rng.u64(..ARENA_PAGES - 8) * PAGE) as *mut c_void;
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                libc::mremap(memory, len, len, flags, to);
            }
            7 => drop(libc::mremap(memory, len, rng.usize(1..=8) * PAGE as usize, 0)),
            8 => drop(libc::madvise(memory, len, libc::MADV_DONTNEED)),
            9 => drop(heap_end(heap + rng.u64(..=HEAP_PAGES) * PAGE)),
            _ => (at..at + len as u64).step_by(PAGE as usize).for_each(|page| touch(page, rng.bool())),
        }
    }
}

/// Moves the end of the heap and gives where it is.
fn heap_end(to: u64) -> u64 {
    // SAFETY: the callers never take away what was heap before them.
    unsafe { libc::syscall(libc::SYS_brk, to) as u64 }
}

/// Loads or stores one byte. Both instructions have two bytes, which the handler skips when they may not.
fn touch(at: u64, store: bool) {
    // SAFETY: the byte is in the arena; a fault is skipped.
    unsafe {
        if store {
            std::arch::asm!("mov [rdi], al", in("rdi") at, in("al") 1_u8);
        } else {
            std::arch::asm!("mov al, [rdi]", in("rdi") at, out("al") _);
        }
    }
}

/// A touch that is refused goes on behind its instruction.
fn skip_what_faults() {
    extern "C" fn skip(_: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives a handler with SA_SIGINFO the record of the fault and the thread's registers.
        unsafe {
            let at = (*info).si_addr() as u64;
            if !(ARENA..ARENA + ARENA_PAGES * PAGE).contains(&at) {
                libc::_exit(99);
            }
            let context = context.cast::<libc::ucontext_t>();
            (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
        }
    }
    // SAFETY: the action is complete, and its handler does nothing that a handler may not.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = skip as extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}
