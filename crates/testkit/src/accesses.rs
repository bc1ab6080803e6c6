//! Loads and stores as of a program: they handle faults and repeat the access.

use hosted::{FaultCause, Hosted};
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::vm::{Access, Mm};

/// A load by the program, with its faults.
pub fn load(machine: &Hosted, mm: &Mm<'_, Hosted>, addr: u64) -> Result<u64, FaultError> {
    let mut bytes = [0; 8];
    for _ in 0..100 {
        match machine.read(VirtAddr(addr), &mut bytes) {
            Ok(()) => return Ok(u64::from_le_bytes(bytes)),
            Err(fault) => {
                assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
                mm.fault(VirtAddr(addr), Access::Read)?;
            }
        }
    }
    panic!("the load of {addr:#x} faults for ever");
}

/// A store by the program, with its faults.
pub fn store(machine: &Hosted, mm: &Mm<'_, Hosted>, addr: u64, word: u64) -> Result<(), FaultError> {
    for _ in 0..100 {
        match machine.write(VirtAddr(addr), &word.to_le_bytes()) {
            Ok(()) => return Ok(()),
            Err(fault) => {
                assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
                mm.fault(VirtAddr(addr), Access::Write)?;
            }
        }
    }
    panic!("the store to {addr:#x} faults for ever");
}
