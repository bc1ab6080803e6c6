//! The instructions that access user memory, and where each continues after a fault.
//!
//! Each routine is written whole in assembly, so that the compiler neither copies nor moves its instructions.
//! An instruction that may fault has an address; asked for it, the routine returns the address and where to
//! continue. So the table needs no section of the linker and no name that another version of this crate could
//! have too.
//!
//! A word that faults is tried again by bytes, so that each routine ends at the first inaccessible byte.

#![allow(unsafe_code)]

use core::arch::naked_asm;

/// What a routine returns: for a copy, the bytes that are missing. For a string, its length and its [`End`].
/// If it was asked, the address of an instruction and where to continue.
#[repr(C)]
struct Answer {
    first: u64,
    second: u64,
}

/// What a routine shall do: its last parameter.
const WITHOUT_SMAP: u32 = 0;
const WITH_SMAP: u32 = 1;
/// Name the instruction for words, or the only one.
const NAME_WORDS: u32 = 2;
/// Name the instruction for bytes.
const NAME_BYTES: u32 = 3;

/// Why the copy of a string ended.
pub(super) enum End {
    /// It reached the zero byte.
    Zero,
    /// It has as many bytes as it may have.
    Limit,
    /// It reached an inaccessible byte.
    Fault,
}

/// Where the page-fault handler continues when the instruction at `rip` must not access what it accessed;
/// `None` for an instruction of other code. The handler stores the result to the saved instruction pointer
/// and returns. Does not block, takes no lock.
pub fn fixup(rip: u64) -> Option<u64> {
    let nowhere = core::ptr::null_mut();
    let named = |instruction: u32| {
        // SAFETY: K3: a routine that is asked for a name accesses no memory.
        unsafe {
            [
                copy_routine(nowhere, nowhere, 0, 0, instruction),
                clear_routine(nowhere, 0, 0, instruction),
                string_routine(nowhere, nowhere, 0, NAME_WORDS),
                compare_exchange_routine(nowhere.cast(), 0, 0, NAME_WORDS),
            ]
        }
    };
    let all = [NAME_WORDS, NAME_BYTES].into_iter().flat_map(named);
    all.filter(|fault| fault.first == rip).map(|fault| fault.second).next()
}

/// Copies words and then bytes, and returns the bytes that are missing. One side is memory of the caller, the
/// other was checked to be of the program.
pub(super) fn copy(to: *mut u8, from: *const u8, words: usize, bytes: usize, smap: bool) -> usize {
    // SAFETY: K3: by the contract of `UserMemory::new` the user's side is no memory of the caller; the other
    // side is a slice of the caller's. K2: that contract says where SMAP is.
    unsafe { copy_routine(to, from, words, bytes, control(smap)).first as usize }
}

/// Stores zeroes as words and then as bytes to user memory, and returns the bytes that are missing.
pub(super) fn clear(to: *mut u8, words: usize, bytes: usize, smap: bool) -> usize {
    // SAFETY: K3: by the contract of `UserMemory::new` the bytes are no memory of the caller. K2: that
    // contract says where SMAP is.
    unsafe { clear_routine(to, words, bytes, control(smap)).first as usize }
}

/// Copies a string of at most `most` bytes, which is not 0, and returns its length and why the copy ended.
pub(super) fn string(to: *mut u8, from: *const u8, most: usize, smap: bool) -> (usize, End) {
    // SAFETY: K3: `most` bytes at `to` are the caller's slice; it only reads user memory. K2: the contract of
    // `UserMemory::new` says where SMAP is.
    let answer = unsafe { string_routine(to, from, most, control(smap)) };
    let end = match answer.second {
        0 => End::Zero,
        1 => End::Limit,
        _ => End::Fault,
    };
    (answer.first as usize, end)
}

/// Stores `new` if the word of user memory is `expected`, at once. Returns what it was, or `None` if it is
/// inaccessible.
pub(super) fn compare_exchange(at: *mut u32, expected: u32, new: u32, smap: bool) -> Option<u32> {
    // SAFETY: K3: by the contract of `UserMemory::new` the word is no memory of the caller. K2: that contract
    // says where SMAP is.
    let answer = unsafe { compare_exchange_routine(at, expected, new, control(smap)) };
    (answer.second == 0).then_some(answer.first as u32)
}

fn control(smap: bool) -> u32 {
    if smap { WITH_SMAP } else { WITHOUT_SMAP }
}

/// `rdi` to, `rsi` from, `rdx` words, `rcx` bytes after them, `r8d` what to do.
///
/// # Safety
/// `to` is the caller's to write and `from` to read, or they are user memory that the page-fault handler knows.
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_routine(
    to: *mut u8,
    from: *const u8,
    words: usize,
    bytes: usize,
    control: u32,
) -> Answer {
    naked_asm!(
        "cmp r8d, 2",
        "jae 6f",
        "mov r9, rcx",
        "mov rcx, rdx",
        "test r8d, r8d",
        "jz 2f",
        "stac",
        // A fault leaves in rcx the words that are missing.
        "2: rep movsq",
        "3: lea rcx, [rcx * 8 + r9]",
        "4: rep movsb",
        "5: mov rax, rcx",
        "test r8d, r8d",
        "jz 7f",
        "clac",
        "jmp 7f",
        // `lea` keeps the flags of the first comparison.
        "6: lea rax, [rip + 2b]",
        "lea rdx, [rip + 3b]",
        "je 7f",
        "lea rax, [rip + 4b]",
        "lea rdx, [rip + 5b]",
        "7: ret",
    )
}

/// `rdi` to, `rsi` words, `rdx` bytes after them, `ecx` what to do.
///
/// # Safety
/// `to` is user memory that the page-fault handler knows.
#[unsafe(naked)]
unsafe extern "sysv64" fn clear_routine(to: *mut u8, words: usize, bytes: usize, control: u32) -> Answer {
    naked_asm!(
        "mov r8d, ecx",
        "cmp r8d, 2",
        "jae 6f",
        "mov rcx, rsi",
        "xor eax, eax",
        "test r8d, r8d",
        "jz 2f",
        "stac",
        "2: rep stosq",
        "3: lea rcx, [rcx * 8 + rdx]",
        "4: rep stosb",
        "5: mov rax, rcx",
        "test r8d, r8d",
        "jz 7f",
        "clac",
        "jmp 7f",
        "6: lea rax, [rip + 2b]",
        "lea rdx, [rip + 3b]",
        "je 7f",
        "lea rax, [rip + 4b]",
        "lea rdx, [rip + 5b]",
        "7: ret",
    )
}

/// `rdi` to, `rsi` from, `rdx` the most bytes, `ecx` what to do. Returns the bytes before the zero, and 0 at
/// a zero, 1 at the limit, 2 after a fault.
///
/// # Safety
/// `to` has room for `most` bytes, at least one; `from` is user memory that the page-fault handler knows.
#[unsafe(naked)]
unsafe extern "sysv64" fn string_routine(to: *mut u8, from: *const u8, most: usize, control: u32) -> Answer {
    naked_asm!(
        "cmp ecx, 2",
        "jae 6f",
        "mov r9, rdx",
        "xor r8d, r8d",
        "test ecx, ecx",
        "jz 2f",
        "stac",
        "2: mov al, [rsi]",
        "mov [rdi], al",
        "test al, al",
        "jz 4f",
        "inc rsi",
        "inc rdi",
        "dec rdx",
        "jnz 2b",
        "mov r8d, 1",
        "jmp 4f",
        "3: mov r8d, 2",
        "4: sub r9, rdx",
        "mov rax, r9",
        "mov edx, r8d",
        "test ecx, ecx",
        "jz 7f",
        "clac",
        "jmp 7f",
        "6: lea rax, [rip + 2b]",
        "lea rdx, [rip + 3b]",
        "7: ret",
    )
}

/// `rdi` at, `esi` expected, `edx` new, `ecx` what to do. Returns what the word was, and 0, or 2 after a fault.
///
/// # Safety
/// `at` is user memory that the page-fault handler knows.
#[unsafe(naked)]
unsafe extern "sysv64" fn compare_exchange_routine(
    at: *mut u32,
    expected: u32,
    new: u32,
    control: u32,
) -> Answer {
    naked_asm!(
        "cmp ecx, 2",
        "jae 6f",
        "mov eax, esi",
        "xor r8d, r8d",
        "test ecx, ecx",
        "jz 2f",
        "stac",
        "2: lock cmpxchg [rdi], edx",
        "jmp 4f",
        "3: mov r8d, 2",
        "4: mov edx, r8d",
        "test ecx, ecx",
        "jz 7f",
        "clac",
        "jmp 7f",
        "6: lea rax, [rip + 2b]",
        "lea rdx, [rip + 3b]",
        "7: ret",
    )
}
