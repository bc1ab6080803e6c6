//! Signal handlers that are to this process what handlers of exceptions are to a kernel: one for page faults
//! that the address space refuses, and an emulation of the instructions that ring 0 alone may execute.

use std::cell::{Cell, RefCell};
use std::sync::Once;

use libc::{REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
use libc::{REG_RAX, REG_RBP, REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP};
use quire_interop::user_memory::fixup;

/// General registers in the order of their numbers in instructions.
#[rustfmt::skip]
const NUMBERED: [i32; 16] = [
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
];

/// An instruction of ring 0 that was emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emulated {
    Invlpg(u64),
    ReadCr3,
    WriteCr3(u64),
    WriteMsr(u32, u64),
}

thread_local! {
    /// Page faults that continued elsewhere.
    pub(crate) static FAULTS: Cell<u64> = const { Cell::new(0) };
    /// `stac` without their `clac` yet, and how often the pair was met.
    pub(crate) static OPEN: Cell<i64> = const { Cell::new(0) };
    pub(crate) static PAIRS: Cell<u64> = const { Cell::new(0) };
    pub(crate) static CR3: Cell<u64> = const { Cell::new(0) };
    /// Has room before a test begins, since a handler must not allocate.
    pub(crate) static EMULATED: RefCell<Vec<Emulated>> = const { RefCell::new(Vec::new()) };
}

/// Sets the handlers, once for the process.
pub(crate) fn catch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| [libc::SIGSEGV, libc::SIGILL].into_iter().for_each(set));
}

fn set(signal: i32) {
    // SAFETY: K3: the handler has the form that SA_SIGINFO asks for, and lives as long as the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

extern "C" fn handle(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: K3: a handler that was set with SA_SIGINFO gets the stopped thread's context, which it may change.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let rip = registers[REG_RIP as usize];
    if let Some(rip) = fixup(rip as u64) {
        registers[REG_RIP as usize] = rip as i64;
        FAULTS.set(FAULTS.get() + 1);
        return;
    }
    // SAFETY: P2: the thread was about to execute an instruction there, and more code follows the short ones.
    let code = unsafe { (rip as *const [u8; 4]).read_unaligned() };
    match emulate(code, registers) {
        Some(length) => registers[REG_RIP as usize] += length,
        // SAFETY: P2: an ordinary fault of this process: it ends.
        None => _ = unsafe { libc::signal(signal, libc::SIG_DFL) },
    }
}

/// Emulates one instruction and returns its length (Intel SDM volumes 2A and 2B).
fn emulate(code: [u8; 4], registers: &mut [i64; 23]) -> Option<i64> {
    match code {
        [0x0f, 0x30, ..] => {
            let word = |register: i32| registers[register as usize] as u32;
            let value = u64::from(word(REG_RDX)) << 32 | u64::from(word(REG_RAX));
            note(Emulated::WriteMsr(word(REG_RCX), value));
            return Some(2);
        }
        [0x0f, 0x01, 0xcb, _] => {
            OPEN.set(OPEN.get() + 1);
            return Some(3);
        }
        [0x0f, 0x01, 0xca, _] => {
            OPEN.set(OPEN.get() - 1);
            PAIRS.set(PAIRS.get() + u64::from(OPEN.get() == 0));
            return Some(3);
        }
        _ => {}
    }
    let is_prefixed = code[0] & 0xf0 == 0x40;
    let ([0x0f, opcode, operand, ..], high) = (match is_prefixed {
        true => ([code[1], code[2], code[3]], (code[0] & 1) << 3),
        false => ([code[0], code[1], code[2]], 0),
    }) else {
        return None;
    };
    let number = (operand & 7) as usize;
    let register = &mut registers[NUMBERED[number | high as usize] as usize];
    let done = match (opcode, operand >> 3) {
        // Registers 4 and 5 would mean another form of address.
        (0x01, 0b00_111) if ![4, 5].contains(&number) => Emulated::Invlpg(*register as u64),
        (0x20, 0b11_011) => {
            *register = CR3.get() as i64;
            Emulated::ReadCr3
        }
        (0x22, 0b11_011) => {
            CR3.set(*register as u64);
            Emulated::WriteCr3(*register as u64)
        }
        _ => return None,
    };
    note(done);
    Some(3 + i64::from(is_prefixed))
}

fn note(done: Emulated) {
    EMULATED.with_borrow_mut(|all| {
        assert!(all.len() < all.capacity());
        all.push(done);
    });
}
