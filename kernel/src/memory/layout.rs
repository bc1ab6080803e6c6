//! Which addresses mean what.
//!
//! | addresses | what |
//! |---|---|
//! | lower half | the running program; Quire's |
//! | `0xffff_8000_0000_0000` | all memory, one after the other (the direct map) |
//! | `0xffff_c000_0000_0000` | devices' registers and the firmware's tables, by physical address |
//! | `0xffff_d000_0000_0000` | kernel stacks, with unmapped pages between them |
//! | `0xffff_ffff_8000_0000` | the kernel's image |
//!
//! With page tables of five levels these addresses are the same, all below the last entry of the top level.

use core::ops::Range;

use quire::addr::PhysAddr;

/// Where physical address 0 stands in the direct map.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
/// Devices' registers and the firmware's tables: 1 TiB of physical addresses.
pub const DEVICES: Range<u64> = 0xffff_c000_0000_0000..0xffff_c100_0000_0000;
/// Kernel stacks.
pub const STACKS: Range<u64> = 0xffff_d000_0000_0000..0xffff_d080_0000_0000;
/// How much higher the image is linked than it is loaded (`kernel.ld`).
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// The pointer to a byte of memory in the direct map.
pub fn direct_map(addr: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut((DIRECT_MAP + addr.0) as usize)
}

/// The pointer to a byte of the kernel's image.
pub fn image_at(addr: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut((KERNEL_BASE + addr.0) as usize)
}

/// The physical address of a static.
pub fn phys_of_image<T>(item: *const T) -> PhysAddr {
    PhysAddr(item.expose_provenance() as u64 - KERNEL_BASE)
}

/// The physical address of memory of the direct map or of the kernel's image: of all objects of the heap.
pub fn phys_of<T: ?Sized>(item: *const T) -> PhysAddr {
    let addr = item.cast::<u8>().expose_provenance() as u64;
    debug_assert!(
        (DIRECT_MAP..DEVICES.start).contains(&addr) || addr >= KERNEL_BASE,
        "an address of the heap"
    );
    PhysAddr(addr - if addr >= KERNEL_BASE { KERNEL_BASE } else { DIRECT_MAP })
}

/// Statics and the first stack.
pub fn data_and_stack() -> Range<u64> {
    data().start..stack().end
}

/// Makes functions that return the addresses between two symbols of the linker script.
macro_rules! segments {
    ($($(#[$doc:meta])* $name:ident: $start:ident .. $end:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name() -> Range<u64> {
            unsafe extern "C" {
                safe static $start: u8;
                safe static $end: u8;
            }
            (&raw const $start).addr() as u64..(&raw const $end).addr() as u64
        }
    )*};
}

segments! {
    /// Code.
    text: text_start..text_end;
    /// Constants.
    rodata: rodata_start..rodata_end;
    /// Statics.
    data: data_start..data_end;
    /// The kernel's stack.
    stack: stack_start..stack_end;
}
