//! What a signal says about its cause (`siginfo_t`).

use linux_raw_sys::general as abi;

use super::queue::FIRST_QUEUED;
use crate::task::credentials::REAL;
use crate::task::process::{Exit, Process};

/// The size of `siginfo_t`.
pub const INFO_BYTES: usize = 128;
/// The codes that `linux/signal.h` gives to user programs' signals.
const SI_USER: i32 = 0;
const SI_KERNEL: i32 = 0x80;
const SI_TIMER: i32 = -2;
const SI_TKILL: i32 = -6;

/// `si_pid` and `si_uid`: a process and its real user.
fn number_and_user(process: &Process) -> u64 {
    u64::from(process.id) | u64::from(process.credentials().users[REAL]) << 32
}

/// A signal and its cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SigInfo {
    /// The signal's number.
    pub signal: u32,
    /// `si_code`.
    pub code: i32,
    /// The words after `si_code`, which mean what the code says.
    pub words: [u64; 3],
}

impl SigInfo {
    /// From the kernel, without more to say.
    pub const fn kernel(signal: u32) -> Self {
        Self { signal, code: SI_KERNEL, words: [0; 3] }
    }

    /// A fault whose address is not known, as that of a general protection fault.
    pub const fn kernel_fault(signal: u32) -> Self {
        Self::kernel(signal)
    }

    /// The fault of an instruction, with the address.
    pub const fn fault(signal: u32, code: i32, addr: u64) -> Self {
        Self { signal, code, words: [addr, 0, 0] }
    }

    /// The same with how much memory was lost, as a power of two (`si_addr_lsb`).
    pub fn with_lost(self, log2: u8) -> Self {
        let [addr, ..] = self.words;
        Self { words: [addr, log2.into(), 0], ..self }
    }

    /// From `kill(2)`.
    pub fn user(signal: u32, sender: &Process) -> Self {
        Self { signal, code: SI_USER, words: [number_and_user(sender), 0, 0] }
    }

    /// From `tgkill(2)`.
    pub fn thread(signal: u32, sender: &Process) -> Self {
        Self { signal, code: SI_TKILL, words: [number_and_user(sender), 0, 0] }
    }

    /// Whether it says that it is from the kernel, or from `kill(2)` or `tgkill(2)`: what a program may only say to itself.
    pub fn claims_kernel(&self) -> bool {
        self.code >= 0 || self.code == SI_TKILL
    }

    /// Whether it is lost where too many wait. Of others it is kept that they were sent.
    pub fn is_lost(&self) -> bool {
        self.timer_number().is_some() || self.signal >= FIRST_QUEUED && self.code != SI_USER
    }

    /// From a timer of `timer_create(2)`.
    pub fn timer(signal: u32, number: u32, value: u64) -> Self {
        Self { signal, code: SI_TIMER, words: [number.into(), value, 0] }
    }

    /// The timer of `timer_create(2)` that it says it is from.
    pub fn timer_number(&self) -> Option<u32> {
        (self.code == SI_TIMER).then_some(self.words[0] as u32)
    }

    /// How often its timer was due besides.
    pub fn set_overruns(&mut self, count: u32) {
        if let Some(number) = self.timer_number() {
            self.words[0] = u64::from(number) | u64::from(count) << 32;
        }
    }

    /// A child has ended.
    pub fn child(signal: u32, child: &Process, exit: Exit) -> Self {
        let (code, status) = match exit {
            Exit::Exited(status) => (abi::CLD_EXITED as i32, u32::from(status)),
            Exit::Killed(signal) => (abi::CLD_KILLED as i32, signal),
            Exit::Dumped(signal) => (abi::CLD_DUMPED as i32, signal),
        };
        Self { signal, code, words: [number_and_user(child), u64::from(status), 0] }
    }

    /// A child has stopped or continued.
    pub fn job(child: &Process, code: u32, signal: u32) -> Self {
        let words = [number_and_user(child), u64::from(signal), 0];
        Self { signal: abi::SIGCHLD, code: code as i32, words }
    }

    /// The bytes that a program gets.
    pub fn bytes(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        bytes[..4].copy_from_slice(&self.signal.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.code.to_le_bytes());
        bytes[16..40].copy_from_slice(self.words.map(u64::to_le_bytes).as_flattened());
        bytes
    }

    /// The value of the bytes of a program (`rt_sigqueueinfo(2)`).
    pub fn from_bytes(signal: u32, bytes: &[u8; INFO_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let code = i32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        Self { signal, code, words: [word(16), word(24), word(32)] }
    }
}
