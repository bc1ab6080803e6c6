//! What a kernel pays for the use of vector registers: the program's are stored before, and loaded after.

use std::arch::asm;
use std::cell::RefCell;

use raw_cpuid::CpuId;

/// The parts that are stored: x87, SSE, AVX and AVX-512, as XCR0 names them.
const PARTS: u32 = 0xe7;

/// An image begins on such a line (SDM volume 1, section 13.4).
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// Large enough for all parts that the system has switched on (CPUID leaf 0xd).
    static IMAGE: RefCell<Vec<Line>> = RefCell::new(vec![Line([0; 64]); lines()]);
}

fn lines() -> usize {
    let parts = CpuId::new().get_extended_state_info().expect("a processor of x86-64 that has XSAVE");
    (parts.xsave_area_size_enabled_features() as usize).div_ceil(64)
}

/// Does some work between XSAVE and XRSTOR of the running thread's registers.
pub fn saved<T>(work: impl FnOnce() -> T) -> T {
    IMAGE.with_borrow_mut(|image| {
        let image = image.as_mut_ptr();
        // SAFETY: C5: the image is aligned, begins with a header of zeroes or an earlier image, and has the bytes
        // that the processor asks for.
        unsafe { asm!("xsave64 [{}]", in(reg) image, in("eax") PARTS, in("edx") 0, options(nostack)) };
        let done = work();
        // SAFETY: C5: XSAVE has filled the image; the compiler keeps nothing in the registers that it loads.
        unsafe {
            asm!(
                "xrstor64 [{}]",
                in(reg) image,
                in("eax") PARTS,
                in("edx") 0,
                clobber_abi("sysv64"),
                options(nostack)
            );
        };
        done
    })
}

#[cfg(test)]
mod tests {
    use super::saved;

    #[test]
    fn registers_survive_what_comes_between() {
        // Sums that the compiler keeps in vector registers across the call.
        let numbers = std::hint::black_box([1.5_f64, 2.5, 3.5, 4.5]);
        let sum: f64 = numbers.iter().sum();
        let other = saved(|| std::hint::black_box([7.0_f64; 4]).iter().product::<f64>());
        assert_eq!((sum, other), (12.0, 2401.0));
    }
}
