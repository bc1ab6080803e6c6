//! Single loads and stores whose signals become answers.

use std::arch::global_asm;

/// What an access came to: the word that was loaded, or `signal << 8 | code`, and whether it is the latter.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Accessed {
    pub(super) word: u64,
    pub(super) raised: u64,
}

global_asm!(
    ".globl oracle_access_load",
    "oracle_access_load:",
    "xor edx, edx",
    "mov rax, [rdi]",
    "ret",
    ".globl oracle_access_store",
    "oracle_access_store:",
    "xor edx, edx",
    "mov [rdi], rsi",
    "ret",
    ".globl oracle_access_touch",
    "oracle_access_touch:",
    "xor edx, edx",
    "lock add qword ptr [rdi], 0",
    "ret",
    // The handler leads here, with the signal in rax.
    ".globl oracle_access_raised",
    "oracle_access_raised:",
    "mov edx, 1",
    "ret",
);

unsafe extern "C" {
    pub(super) fn oracle_access_load(addr: u64) -> Accessed;
    pub(super) fn oracle_access_store(addr: u64, word: u64) -> Accessed;
    pub(super) fn oracle_access_touch(addr: u64) -> Accessed;
    fn oracle_access_raised() -> Accessed;
}

extern "C" fn raised(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands out both for the length of the handler. Only an instruction of the functions above is gone
    // on from elsewhere, with the stack as they have it.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as usize;
        let (first, end) =
            (oracle_access_load as *const () as usize, oracle_access_raised as *const () as usize);
        if !(first..end).contains(&at) {
            libc::_exit(99);
        }
        registers[libc::REG_RIP as usize] = end as i64;
        registers[libc::REG_RAX as usize] = i64::from(signal << 8 | (*info).si_code);
    }
}

/// From now on signals of accesses become answers, in this process.
pub(super) fn catch_signals() {
    // SAFETY: the action is complete; the handler calls nothing that a handler may not.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = raised as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}
