//! Random bytes: `/dev/random`, `/dev/urandom`, `getrandom(2)`.

use core::arch::x86_64::{__cpuid, _rdrand64_step};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use spin::Once;

use super::io::{self, Sink, Source};
use super::open::{File, Io};
use crate::errno::Errno;
use crate::sync::Mutex;

/// The bit of CPUID leaf 1, ECX, for RDRAND.
const RDRAND: u32 = 1 << 30;
/// The seed on a machine without random numbers: runs repeat there, and no secret may depend on them.
const FIXED_SEED: [u8; 32] = *b"no entropy: these bytes repeat!!";

static GENERATOR: Once<Mutex<ChaCha20Rng>> = Once::new();

/// Fills the buffer.
pub fn fill(bytes: &mut [u8]) {
    let generator = GENERATOR.call_once(|| Mutex::new(ChaCha20Rng::from_seed(seed())));
    generator.lock().fill_bytes(bytes);
}

fn seed() -> [u8; 32] {
    let mut seed = FIXED_SEED;
    if __cpuid(1).ecx & RDRAND != 0 {
        for word in seed.as_chunks_mut::<8>().0 {
            if let Some(value) = random_word() {
                *word = value.to_le_bytes();
            }
        }
    }
    seed
}

/// The manual advises ten attempts.
fn random_word() -> Option<u64> {
    let mut value = 0;
    // SAFETY: X7: the caller has found that the processor has the instruction.
    (0..10).any(|_| unsafe { rdrand(&mut value) }).then_some(value)
}

/// # Safety
/// The processor has the instruction.
#[target_feature(enable = "rdrand")]
unsafe fn rdrand(value: &mut u64) -> bool {
    _rdrand64_step(value) == 1
}

/// Copies random bytes.
///
/// # Errors
/// [`Errno::EFAULT`], [`Errno::ENOMEM`].
pub fn read(to: &mut dyn Sink) -> Result<usize, Errno> {
    io::produce(to, fill)
}

/// An open `/dev/random`.
pub struct Random;

impl File for Random {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        read(to)
    }

    /// What programs write is not used.
    fn write(&self, _position: &mut u64, from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        Ok(from.left())
    }
}
