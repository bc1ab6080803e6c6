//! What a handler finds on its stack: its return address, the interrupted registers and the signal's cause, in the
//! layout of Linux' `struct rt_sigframe` for x86-64 (`asm/sigframe.h`, `asm/sigcontext.h`).

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;
use x86_64::registers::rflags::RFlags;

use super::action::Action;
use super::info::{INFO_BYTES, SigInfo};
use super::own::AltStack;
use super::{send, vectors};
use crate::cpu::stubs::{USER_CODE, USER_DATA};
use crate::errno::Errno;
use crate::memory::user::UserMemory;
use crate::task::thread::{Task, UserContext};

/// Below a program's stack pointer the compiler may keep data (System V ABI, "The Stack Frame").
const RED_ZONE: u64 = 128;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const CONTEXT_FLAGS: u64 = 7;
/// The flags that a handler may change in what it returns to.
const USER_FLAGS: u64 = 0x0024_0dd5;

/// Words of the frame.
const RETURN: usize = 0;
const FLAGS: usize = 1;
const STACK: usize = 3;
const REGISTERS: usize = 6;
const SEGMENTS: usize = REGISTERS + 18;
const FPU: usize = SEGMENTS + 5;
const MASK: usize = FPU + 9;
/// The words before the signal's cause.
const WORDS: usize = MASK + 1;
const FRAME_BYTES: u64 = (WORDS * 8 + INFO_BYTES) as u64;

type Words = [u64; WORDS];

/// Pushes a frame and lets the program go on in its handler.
///
/// # Errors
/// [`Errno::EFAULT`] where the stack has no room.
pub fn push(task: &Task, info: SigInfo, action: Action) -> Result<(), Errno> {
    // SAFETY: X3: the task is the running one, and its program does not run.
    let user = unsafe { task.user() };
    let (mask, alt_stack) = {
        let mut own = task.signals.0.lock();
        (own.saved_mask.take().unwrap_or(own.mask), own.alt_stack)
    };
    // The program chooses the stack, so nothing about these addresses is certain.
    let below = |end: u64, bytes: u64| end.checked_sub(bytes).ok_or(Errno::EFAULT);
    let (start, end) = stack_for(user, action, alt_stack).ok_or(Errno::EFAULT)?;
    let fpu_at = below(end, vectors::BYTES)? & !63;
    // A function finds its return address 8 bytes below a multiple of 16.
    let at = below(below(fpu_at, FRAME_BYTES)? & !15, 8)?;
    if at <= start {
        return Err(Errno::EFAULT);
    }

    let words = encode(user, action, alt_stack, mask, fpu_at);
    let memory = UserMemory::of(task.space());
    vectors::push(memory, VirtAddr(fpu_at), &mut user.fpu)?;
    memory.write(VirtAddr(at), words.map(u64::to_le_bytes).as_flattened())?;
    memory.write(VirtAddr(at + WORDS as u64 * 8), &info.bytes())?;
    // An exception of x87 that is still raised would be raised again by the handler's first instruction of it.
    user.fpu.reset();

    let registers = &mut user.registers;
    registers.rdi = u64::from(info.signal);
    registers.rsi = at + WORDS as u64 * 8;
    registers.rdx = at + 8;
    registers.rax = 0;
    registers.rsp = at;
    registers.rip = action.handler;
    registers.rflags &= !(RFlags::DIRECTION_FLAG | RFlags::TRAP_FLAG).bits();
    user.make_full_return();
    if alt_stack.flags & abi::SS_AUTODISARM != 0 {
        task.signals.0.lock().alt_stack = AltStack::default();
    }
    Ok(())
}

/// Between which addresses the frame must be: the start of the stack for handlers, or 0 for the program's own stack,
/// and the end of what is free there.
fn stack_for(user: &UserContext, action: Action, alt_stack: AltStack) -> Option<(u64, u64)> {
    let rsp = user.registers.rsp;
    let is_used = alt_stack.is_used(rsp);
    if action.has(abi::SA_ONSTACK) && alt_stack.bytes != 0 && !is_used {
        return Some((alt_stack.start, alt_stack.start.checked_add(alt_stack.bytes)?));
    }
    Some((if is_used { alt_stack.start } else { 0 }, rsp.checked_sub(RED_ZONE)?))
}

fn encode(user: &UserContext, action: Action, alt_stack: AltStack, mask: u64, fpu_at: u64) -> Words {
    let registers = &user.registers;
    let mut words: Words = [0; WORDS];
    words[RETURN] = action.restorer;
    words[FLAGS] = CONTEXT_FLAGS;
    words[STACK] = alt_stack.start;
    words[STACK + 1] = match alt_stack.bytes {
        0 => u64::from(abi::SS_DISABLE),
        _ if alt_stack.is_used(registers.rsp) => u64::from(abi::SS_ONSTACK),
        // The return from the handler arms it again.
        _ => u64::from(alt_stack.flags),
    };
    words[STACK + 2] = alt_stack.bytes;
    words[REGISTERS..SEGMENTS].copy_from_slice(&[
        registers.r8,
        registers.r9,
        registers.r10,
        registers.r11,
        registers.r12,
        registers.r13,
        registers.r14,
        registers.r15,
        registers.rdi,
        registers.rsi,
        registers.rbp,
        registers.rbx,
        registers.rdx,
        registers.rax,
        registers.rcx,
        registers.rsp,
        registers.rip,
        registers.rflags,
    ]);
    words[SEGMENTS] = u64::from(USER_CODE) | u64::from(USER_DATA) << 48;
    words[SEGMENTS + 1] = registers.error;
    words[SEGMENTS + 2] = registers.vector;
    words[SEGMENTS + 3] = mask;
    words[SEGMENTS + 4] = user.fault_address;
    words[FPU] = fpu_at;
    words[MASK] = mask;
    words
}

/// `rt_sigreturn(2)`: the program goes on where the signal interrupted it.
///
/// # Errors
/// [`Errno::EFAULT`] where the frame cannot be read.
pub fn restore(task: &Task) -> Result<(), Errno> {
    // SAFETY: X3: the task is the running one, and its program does not run.
    let user = unsafe { task.user() };
    // The handler has popped its return address.
    let at = user.registers.rsp.wrapping_sub(8);
    let memory = UserMemory::of(task.space());
    let mut bytes = [[0; 8]; WORDS];
    memory.read(VirtAddr(at), bytes.as_flattened_mut())?;
    let words = bytes.map(u64::from_le_bytes);
    match words[FPU] {
        0 => user.fpu.reset(),
        at => vectors::pop(memory, VirtAddr(at), &mut user.fpu)?,
    }
    decode(user, &words);
    send::change(task, |own| own.mask = words[MASK]);
    let disabled = words[STACK + 1] & u64::from(abi::SS_DISABLE) != 0;
    task.signals.0.lock().alt_stack = AltStack {
        start: words[STACK],
        bytes: if disabled { 0 } else { words[STACK + 2] },
        flags: words[STACK + 1] as u32 & abi::SS_AUTODISARM,
    };
    task.set_signal_flag();
    Ok(())
}

fn decode(user: &mut UserContext, words: &Words) {
    let registers = &mut user.registers;
    let flags = registers.rflags;
    let [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags] =
        *words[REGISTERS..SEGMENTS].first_chunk::<18>().expect("the words of a frame");
    registers.r8 = r8;
    registers.r9 = r9;
    registers.r10 = r10;
    registers.r11 = r11;
    registers.r12 = r12;
    registers.r13 = r13;
    registers.r14 = r14;
    registers.r15 = r15;
    registers.rdi = rdi;
    registers.rsi = rsi;
    registers.rbp = rbp;
    registers.rbx = rbx;
    registers.rdx = rdx;
    registers.rax = rax;
    registers.rcx = rcx;
    registers.rsp = rsp;
    registers.rip = rip;
    registers.rflags = flags & !USER_FLAGS | rflags & USER_FLAGS | RFlags::INTERRUPT_FLAG.bits();
    user.make_full_return();
}
