//! The registers of interrupted code.

use core::fmt;

/// What stands in the vector's place when a program made a system call.
pub const SYSTEM_CALL: u64 = 256;

/// Registers as the trap stubs and the processor push them, the last pushed first.
///
/// The processor pushes at multiples of 16, so the structure has that alignment and size.
#[repr(C, align(16))]
#[derive(Clone, Default)]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rbx: u64,
    pub rax: u64,
    /// The trap, or [`SYSTEM_CALL`].
    pub vector: u64,
    /// The trap's error code, or 0.
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

impl fmt::Display for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "vector {} error {:#x} cs {:#x} rflags {:#x}",
            self.vector, self.error, self.cs, self.rflags
        )?;
        writeln!(f, "rip {:#018x} rsp {:#018x} rbp {:#018x}", self.rip, self.rsp, self.rbp)?;
        writeln!(f, "rax {:#018x} rbx {:#018x} rcx {:#018x}", self.rax, self.rbx, self.rcx)?;
        writeln!(f, "rdx {:#018x} rsi {:#018x} rdi {:#018x}", self.rdx, self.rsi, self.rdi)?;
        writeln!(f, "r8  {:#018x} r9  {:#018x} r10 {:#018x}", self.r8, self.r9, self.r10)?;
        writeln!(f, "r11 {:#018x} r12 {:#018x} r13 {:#018x}", self.r11, self.r12, self.r13)?;
        write!(f, "r14 {:#018x} r15 {:#018x}", self.r14, self.r15)
    }
}
