//! Arguments that no sane program has, put into drawn operations.

use fastrand::Rng;
use oracle::ops::{At, Op, Step, To};
use oracle::space::PAGE;

use crate::subject::{TOP, USER_END};

/// Of so many arguments, one is made hostile.
const ONE_OF: u32 = 12;

/// Makes some arguments of some operations hostile.
pub(crate) fn make_hostile(rng: &mut Rng, steps: &mut [Step]) {
    for step in steps {
        let (addresses, lengths) = arguments(&mut step.op);
        for at in addresses {
            if rng.u32(..ONE_OF) == 0 {
                *at = address(rng);
            }
        }
        for len in lengths {
            if rng.u32(..ONE_OF) == 0 {
                *len = length(rng);
            }
        }
    }
}

fn arguments(op: &mut Op) -> (Vec<&mut At>, Vec<&mut u64>) {
    match op {
        Op::Mmap(map) => (vec![&mut map.at], vec![&mut map.len]),
        Op::Munmap(at, len)
        | Op::Mprotect(at, len, _)
        | Op::Madvise(at, len, _)
        | Op::Mlock(at, len, _)
        | Op::Munlock(at, len) => (vec![at], vec![len]),
        Op::Mremap(at, old, new, to) => {
            let mut addresses = vec![at];
            match to {
                To::FixedTo(to) | To::FixedDontUnmap(to) | To::DontUnmap(to) => addresses.push(to),
                To::InPlace | To::MayMove => {}
            }
            (addresses, vec![old, new])
        }
        Op::Brk(at) | Op::Store(at, _) | Op::Load(at, _) | Op::Touch(at, _) | Op::Access(at, _) => {
            (vec![at], Vec::new())
        }
        _ => (Vec::new(), Vec::new()),
    }
}

fn address(rng: &mut Rng) -> At {
    let pages = rng.u64(..4) * PAGE;
    let byte = if rng.u32(..4) == 0 { rng.u64(1..PAGE) } else { 0 };
    let base = match rng.u32(..8) {
        0 => 0,
        1 => 0x1_0000,
        2 => TOP.wrapping_sub(4 * PAGE),
        3 => USER_END - 2 * PAGE,
        4 => 1 << 47,
        5 => u64::MAX - 4 * PAGE + 1,
        6 => 1 << 63,
        _ => 1 << rng.u32(16..44),
    };
    At::Absolute(base.wrapping_add(pages).wrapping_add(byte))
}

fn length(rng: &mut Rng) -> u64 {
    let base: u64 = match rng.u32(..8) {
        0 => 0,
        1 => u64::MAX,
        2 => USER_END,
        3 => 1 << 47,
        4 => 1 << 63,
        5 => TOP,
        _ => 1 << rng.u32(12..48),
    };
    match rng.u32(..3) {
        0 => base,
        1 => base.wrapping_sub(rng.u64(..3 * PAGE)),
        _ => base.wrapping_add(rng.u64(..3 * PAGE)),
    }
}
