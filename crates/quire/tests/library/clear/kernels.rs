//! Each kernel does its work on exactly the bytes that it is given (K1), and a kernel that the processor
//! lacks cannot be had (K2).

use quire::arch::{ClearKernel, CopyKernel, CpuFeatures, Feature, ReadyClear, ReadyCopy};
use quire::error::KernelError;

use crate::clear::support::{clears, copies, copy, zero};
use testkit::seed;

const ROOM: usize = if cfg!(miri) { 2 << 10 } else { 24 << 10 };
const ROUNDS: usize = if cfg!(miri) { 5 } else { 400 };

/// Where to start, and how many bytes: mostly few, so that heads and tails meet; sometimes all.
fn extent(random: &mut fastrand::Rng, round: usize) -> (usize, usize) {
    let (start, longest) = match round % 4 {
        0 => (random.usize(0..200), 200),
        1 => (random.usize(0..ROOM / 64) * 64, ROOM),
        _ => (random.usize(0..ROOM), ROOM),
    };
    (start, random.usize(0..=longest.min(ROOM - start)))
}

/// Fills with nonzero bytes, eight at a time.
fn dirty(random: &mut fastrand::Rng, bytes: &mut [u8]) {
    let (eights, rest) = bytes.as_chunks_mut::<8>();
    eights.iter_mut().for_each(|eight| *eight = (random.u64(..) | u64::from_ne_bytes([1; 8])).to_ne_bytes());
    rest.fill(1);
}

/// The first byte that differs.
fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    // At once, since nearly all are the same.
    if one == other { None } else { (0..one.len()).find(|&at| one.get(at) != other.get(at)) }
}

/// The property for one kernel, emulated or not.
pub(crate) fn zeroes_exactly(kernel: ReadyClear, rounds: usize) {
    let name = kernel.kernel().name();
    let mut random = fastrand::Rng::with_seed(seed(5));
    let mut room = vec![0; ROOM];
    for round in 0..rounds {
        dirty(&mut random, &mut room);
        let (start, len) = extent(&mut random, round);
        let mut wanted = room.clone();
        wanted[start..start + len].fill(0);
        zero(kernel, &mut room[start..start + len]);
        let wrong = difference(&room, &wanted);
        assert_eq!(wrong, None, "{name}: {len} bytes from {start} on, address {:?}", room.as_ptr());
    }
}

fn copies_exactly(kernel: ReadyCopy) {
    let name = kernel.kernel().name();
    let mut random = fastrand::Rng::with_seed(seed(6));
    let (mut source, mut room) = (vec![0; ROOM], vec![0; ROOM]);
    for round in 0..ROUNDS {
        dirty(&mut random, &mut source);
        dirty(&mut random, &mut room);
        let (start, len) = extent(&mut random, round);
        // Sources of any alignment against the target.
        let from = random.usize(0..=ROOM - len);
        let mut wanted = room.clone();
        wanted[start..start + len].copy_from_slice(&source[from..from + len]);
        copy(kernel, &source[from..from + len], &mut room[start..start + len]);
        let wrong = difference(&room, &wanted);
        assert_eq!(wrong, None, "{name}: {len} bytes from {from} to {start}");
    }
}

#[test]
fn every_clear_zeroes_its_bytes_and_no_neighbour() {
    clears().into_iter().for_each(|kernel| zeroes_exactly(kernel, ROUNDS));
}

#[test]
fn every_copy_fills_its_bytes_and_no_neighbour() {
    copies().into_iter().for_each(copies_exactly);
}

/// A fault copies a page that another CPU may free meanwhile, and then copies it onto itself.
#[test]
fn a_copy_onto_itself_changes_nothing() {
    let mut random = fastrand::Rng::with_seed(seed(7));
    let mut room = vec![0; ROOM];
    for kernel in copies() {
        dirty(&mut random, &mut room);
        let (before, at) = (room.clone(), room.as_mut_ptr());
        // SAFETY: K1: both runs are the vector's bytes, and are the same; its processor has the kernel.
        unsafe { kernel.copy(at, at, ROOM) };
        assert!(room == before, "{kernel:?}");
    }
}

/// Long enough that the processor's own code for long string stores is used.
#[test]
#[cfg(not(miri))]
fn long_extents_are_cleared_and_copied_to_the_last_byte() {
    const LONG: usize = (8 << 20) + 1234;
    let mut bytes = vec![0; LONG];
    for kernel in clears() {
        bytes.fill(0xa5);
        zero(kernel, &mut bytes[7..LONG - 9]);
        assert!(bytes[7..LONG - 9].iter().all(|&byte| byte == 0), "{kernel:?}");
        assert!(bytes[..7].iter().chain(&bytes[LONG - 9..]).all(|&byte| byte == 0xa5), "{kernel:?}");
    }
    let source: Vec<u8> = (0..LONG).map(|at| (at % 251) as u8).collect();
    for kernel in copies() {
        bytes.fill(0xff);
        copy(kernel, &source[3..LONG - 4], &mut bytes[3..LONG - 4]);
        assert!(bytes[3..LONG - 4] == source[3..LONG - 4], "{kernel:?}");
        assert!(bytes[..3].iter().chain(&bytes[LONG - 4..]).all(|&byte| byte == 0xff), "{kernel:?}");
    }
}

#[test]
fn a_processor_without_the_feature_refuses_by_name() {
    // SAFETY: no kernel of these features is run.
    let everything = unsafe { CpuFeatures::assume(&Feature::ALL) };
    let kernels =
        ClearKernel::ALL.map(|kernel| (kernel.name(), kernel.needs(), kernel.on(everything).is_ok()));
    assert!(kernels.iter().all(|(.., runs)| *runs), "a processor that has all runs all");
    let plain = ClearKernel::ALL.into_iter().filter(|kernel| kernel.on(CpuFeatures::NONE).is_ok());
    assert_eq!(plain.collect::<Vec<_>>(), [ClearKernel::String, ClearKernel::Quadwords, ClearKernel::Movnti]);
    let plain = CopyKernel::ALL.into_iter().filter(|kernel| kernel.on(CpuFeatures::NONE).is_ok());
    assert_eq!(plain.collect::<Vec<_>>(), [CopyKernel::String, CopyKernel::Quadwords, CopyKernel::Movnti]);
    for kernel in ClearKernel::ALL {
        let Some(needed) = kernel.needs() else {
            assert!(kernel.on(CpuFeatures::NONE).is_ok(), "{kernel:?}");
            continue;
        };
        let error = kernel.on(everything.without(needed)).unwrap_err();
        assert_eq!(error, KernelError::Missing { kernel: kernel.name(), feature: needed.name() });
        let said = error.to_string();
        assert!(said.contains(kernel.name()) && said.contains(needed.name()), "{said}");
    }
    for kernel in CopyKernel::ALL {
        let error = kernel.needs().map(|needed| kernel.on(everything.without(needed)).unwrap_err());
        let wanted = kernel
            .needs()
            .map(|needed| KernelError::Missing { kernel: kernel.name(), feature: needed.name() });
        assert_eq!(error, wanted);
    }
}

/// Without vector registers no kernel that uses them can be had.
#[test]
fn without_vectors_nothing_uses_them() {
    // SAFETY: no kernel of these features is run.
    let plain = unsafe { CpuFeatures::assume(&Feature::ALL) }.without_vectors();
    for kernel in ClearKernel::ALL {
        assert_eq!(kernel.on(plain).is_ok(), !kernel.uses_vectors(), "{kernel:?}");
    }
    for kernel in CopyKernel::ALL {
        assert_eq!(kernel.on(plain).is_ok(), !kernel.uses_vectors(), "{kernel:?}");
    }
}

#[test]
fn names_lead_back_to_kernels() {
    for kernel in ClearKernel::ALL {
        assert_eq!(ClearKernel::from_name(kernel.name()), Ok(kernel));
    }
    for kernel in CopyKernel::ALL {
        assert_eq!(CopyKernel::from_name(kernel.name()), Ok(kernel));
    }
    assert_eq!(ClearKernel::from_name("memset"), Err(KernelError::Unknown));
}
