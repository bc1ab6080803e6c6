use std::string::ToString;
use std::vec::Vec;

use super::*;

/// What Linux 6.1 runs with on a processor of 2021: CR0, CR4 and EFER.
const LINUX: (u64, u64, u64) = (0x8005_0033, 0x0037_06f0, 0x0d01);

fn missing(state: ProcessorState, mode: PagingMode) -> Vec<&'static str> {
    state.check(mode).err().iter().flat_map(ProcessorError::missing).map(|one| one.name).collect()
}

#[test]
fn the_state_of_a_running_kernel_is_enough() {
    let (cr0, cr4, efer) = LINUX;
    let four = ProcessorState::from_registers(cr0, cr4, efer);
    assert_eq!(four.check(PagingMode::FourLevel), Ok(()));
    let five = ProcessorState::from_registers(cr0, cr4 | 1 << 12, efer);
    assert_eq!(five.check(PagingMode::FiveLevel), Ok(()));
}

#[test]
fn each_missing_bit_is_named() {
    let (cr0, cr4, efer) = LINUX;
    for (without, name) in [
        ((1 << 31, 0, 0), "CR0.PG set"),
        ((1 << 16, 0, 0), "CR0.WP set"),
        ((0, 1 << 5, 0), "CR4.PAE set"),
        ((0, 0, 1 << 10), "EFER.LMA set"),
        ((0, 0, 1 << 11), "EFER.NXE set"),
    ] {
        let (no_cr0, no_cr4, no_efer) = without;
        let state = ProcessorState::from_registers(cr0 & !no_cr0, cr4 & !no_cr4, efer & !no_efer);
        assert_eq!(missing(state, PagingMode::FourLevel), [name]);
        let text = state.check(PagingMode::FourLevel).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("without which"), "{text}");
    }
}

#[test]
fn the_number_of_levels_must_match() {
    use PagingMode::{FiveLevel, FourLevel};
    assert_eq!(missing(ProcessorState::modelled(FourLevel), FiveLevel), ["CR4.LA57 set"]);
    assert_eq!(missing(ProcessorState::modelled(FiveLevel), FourLevel), ["CR4.LA57 clear"]);
    for mode in [FourLevel, FiveLevel] {
        assert_eq!(ProcessorState::modelled(mode).check(mode), Ok(()));
    }
}

#[test]
fn all_missing_bits_are_named_together() {
    let none = ProcessorState::from_registers(0, 0, 0);
    let expected = ["CR0.PG set", "CR0.WP set", "CR4.PAE set", "EFER.LMA set", "EFER.NXE set"];
    assert_eq!(missing(none, PagingMode::FourLevel), expected);
    let text = none.check(PagingMode::FourLevel).unwrap_err().to_string();
    assert!(expected.iter().all(|name| text.contains(name)), "{text}");
}
