//! A program that runs: its address space, its registers, and the loop that serves it.

use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::vm::Access;

use super::{elf, stack};
use crate::cpu::registers::Registers;
use crate::cpu::user_mode::{self, Stop};
use crate::device::exit::Outcome;
use crate::device::serial::log;
use crate::errno::Errno;
use crate::files::initramfs;
use crate::files::open::OpenFiles;
use crate::memory::manager::{Space, manager};
use crate::syscall;

const SIGILL: u8 = 4;
const SIGBUS: u8 = 7;
const SIGFPE: u8 = 8;
const SIGKILL: u8 = 9;
const SIGSEGV: u8 = 11;

/// A program with one thread.
pub struct Process {
    space: Space,
    registers: Registers,
    files: OpenFiles,
}

impl Process {
    /// Loads a program of the initial RAM disk. Its address space is switched in.
    ///
    /// # Errors
    /// [`Errno`], as `execve` gives it.
    pub fn load(path: &str, arguments: &[&str]) -> Result<Self, Errno> {
        let file = initramfs::find(path).ok_or(Errno::ENOENT)?;
        let space = manager().new_mm()?;
        space.switch_in();
        match build(&space, file, arguments) {
            Ok(registers) => Ok(Self { space, registers, files: OpenFiles::default() }),
            Err(errno) => {
                // A CPU must not use a root that is about to be freed.
                space.switch_out();
                Err(errno)
            }
        }
    }

    /// Runs the program to its end, and frees all that it had.
    pub fn run(mut self) -> Outcome {
        let outcome = loop {
            let end = match user_mode::run(&mut self.registers) {
                Stop::SystemCall => syscall::serve(&self.space, &mut self.files, &mut self.registers),
                Stop::PageFault(addr, access) => self.fault(addr, access),
                Stop::Trap(vector) => self.killed_by(signal_of_trap(vector)),
            };
            if let Some(outcome) = end {
                break outcome;
            }
        };
        if let Err(fault) = self.space.validate() {
            log!("the address space is broken: {fault:?}");
            return Outcome::KernelFailed;
        }
        self.space.switch_out();
        self.space.exit();
        outcome
    }

    /// Lets Quire make the access possible. The program then repeats it.
    fn fault(&self, addr: VirtAddr, access: Access) -> Option<Outcome> {
        match self.space.fault(addr, access) {
            Ok(_) => None,
            Err(error) => {
                log!("{access:?} at {:#x}: {error}", addr.0);
                self.killed_by(signal_of_fault(error))
            }
        }
    }

    fn killed_by(&self, signal: u8) -> Option<Outcome> {
        log!("killed by signal {signal}\n{}", self.registers);
        Some(Outcome::Killed(signal))
    }
}

/// Maps a program in an empty address space and returns the registers that it starts with.
fn build(space: &Space, file: initramfs::File, arguments: &[&str]) -> Result<Registers, Errno> {
    let loaded = elf::load(space, file)?;
    space.set_brk_start(loaded.end);
    let stack = stack::build(space, &loaded, arguments)?;
    Ok(user_mode::initial_registers(loaded.entry, stack))
}

fn signal_of_fault(error: FaultError) -> u8 {
    error.signal().map_or(SIGKILL, |signal| signal.number as u8)
}

/// The signal for a trap of the processor, as Linux has it.
fn signal_of_trap(vector: u64) -> u8 {
    match vector {
        0 | 16 | 19 => SIGFPE,
        6 => SIGILL,
        17 => SIGBUS,
        _ => SIGSEGV,
    }
}
