//! The error code of a page fault (Intel SDM volume 3A section 4.7; AMD64 APM volume 2 section 8.4.2).

use crate::arch::Access;
use crate::error::PageFaultError;

/// Bit 0 (P): a translation was present and refused the access.
const PRESENT: u64 = 1 << 0;
/// Bit 1 (W/R): a store.
const WRITE: u64 = 1 << 1;
/// Bit 2 (U/S): in user mode.
const USER: u64 = 1 << 2;
/// Bit 3 (RSVD): an entry has a reserved bit set.
const RESERVED: u64 = 1 << 3;
/// Bit 4 (I/D): an instruction fetch.
const FETCH: u64 = 1 << 4;
/// Bit 5 (PK): refused by a protection key.
const KEY: u64 = 1 << 5;
/// Bit 6 (SS): an access of a shadow stack.
const SHADOW_STACK: u64 = 1 << 6;

const KNOWN: u64 = PRESENT | WRITE | USER | RESERVED | FETCH | KEY | SHADOW_STACK;

/// A page fault that [`Mm::fault`](crate::vm::Mm::fault) may be able to resolve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// What the program did.
    pub access: Access,
    /// Whether in user mode. A fault in kernel mode is the kernel's own bug unless it copies from or to a
    /// program; then the copy fails instead of the program.
    pub user: bool,
    /// Whether a translation was present, and refused the access.
    pub present: bool,
}

impl PageFault {
    /// Reads the error code that the processor pushed. The faulting address is in `CR2`.
    ///
    /// # Errors
    /// [`PageFaultError`] for a fault that no change of a mapping resolves.
    pub const fn from_error_code(code: u64) -> Result<Self, PageFaultError> {
        if code & RESERVED != 0 {
            return Err(PageFaultError::ReservedBit);
        }
        if code & SHADOW_STACK != 0 {
            return Err(PageFaultError::ShadowStack);
        }
        if code & KEY != 0 {
            return Err(PageFaultError::ProtectionKey);
        }
        if code & !KNOWN != 0 {
            return Err(PageFaultError::Unknown);
        }
        let user = code & USER != 0;
        let access = match (code & FETCH != 0, code & WRITE != 0) {
            (true, true) => return Err(PageFaultError::Unknown),
            (true, false) if !user => return Err(PageFaultError::KernelFetch),
            (true, false) => Access::Exec,
            (false, true) => Access::Write,
            (false, false) => Access::Read,
        };
        Ok(Self { access, user, present: code & PRESENT != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the seven bits, against a table by bit number.
    #[test]
    fn every_error_code_is_an_access_or_a_reason() {
        for code in 0..1_u64 << 7 {
            let bit = |number: u32| code >> number & 1 == 1;
            let expected = if bit(3) {
                Err(PageFaultError::ReservedBit)
            } else if bit(6) {
                Err(PageFaultError::ShadowStack)
            } else if bit(5) {
                Err(PageFaultError::ProtectionKey)
            } else {
                match code >> 1 & 0b1011 {
                    0b0000 => Ok((Access::Read, false)),
                    0b0001 => Ok((Access::Write, false)),
                    0b0010 => Ok((Access::Read, true)),
                    0b0011 => Ok((Access::Write, true)),
                    0b1000 => Err(PageFaultError::KernelFetch),
                    0b1010 => Ok((Access::Exec, true)),
                    _ => Err(PageFaultError::Unknown),
                }
            };
            let expected = expected.map(|(access, user)| PageFault { access, user, present: bit(0) });
            assert_eq!(PageFault::from_error_code(code), expected, "{code:#b}");
        }
    }

    /// Bit 7 (HLAT), bit 15 (SGX) and bit 31 (RMP) are faults of features that the library does not manage.
    #[test]
    fn error_codes_of_other_features_are_refused() {
        for bit in 7..64 {
            assert_eq!(
                PageFault::from_error_code(1 << bit | 0b111),
                Err(PageFaultError::Unknown),
                "bit {bit}"
            );
        }
    }

    /// The numbers that a processor pushes for the commonest faults, as the manuals draw the bits.
    #[test]
    fn common_error_codes_are_read() {
        let fault = |access, user, present| Ok(PageFault { access, user, present });
        assert_eq!(PageFault::from_error_code(4), fault(Access::Read, true, false));
        assert_eq!(PageFault::from_error_code(6), fault(Access::Write, true, false));
        assert_eq!(PageFault::from_error_code(7), fault(Access::Write, true, true));
        assert_eq!(PageFault::from_error_code(0x14), fault(Access::Exec, true, false));
        assert_eq!(PageFault::from_error_code(0x15), fault(Access::Exec, true, true));
        assert_eq!(PageFault::from_error_code(2), fault(Access::Write, false, false));
    }
}
