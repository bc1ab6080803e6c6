//! The code that an experiment measures, as one number: result files store it, and a page of figures compares
//! it with today's.
//!
//! The build script hashes the tokens of every source file, without comments, documentation and tests.

/// A folder or file of this repository, from its root, and the hash of its tokens.
type Hashed = (&'static str, u64);

include!(concat!(env!("OUT_DIR"), "/code.rs"));

/// The page allocator and what it is built on.
pub const FRAMES: &[&str] = &[
    "crates/quire/src/atomic.rs",
    "crates/quire/src/limits.rs",
    "crates/quire/src/addr.rs",
    "crates/quire/src/sync/",
    "crates/quire/src/clear/",
    "crates/quire/src/memmap/",
    "crates/quire/src/page_alloc/",
    "crates/hosted/src/bare.rs",
];

/// The whole library.
pub const LIBRARY: &[&str] = &["crates/quire/src/"];

/// The library and the hosted machine that runs its address spaces.
pub const LIBRARY_AND_MACHINE: &[&str] = &["crates/quire/src/", "crates/hosted/src/"];

/// The kernels that clear memory, the policy that chooses one, and what the policy measures.
pub const CLEARING: &[&str] =
    &["crates/quire/src/clear/", "crates/quire/src/arch/", "crates/replay/src/calibrate/"];

/// The arms that fault in gigantic pages, and how the kernel of each is chosen.
pub const GIGANTIC: &[&str] = &[
    "crates/lab/src/bench/arms/gigantic/",
    "crates/lab/src/bench/arms/clear/huge.rs",
    "crates/lab/src/bench/arms/clear/way.rs",
    "crates/replay/src/calibrate/",
    "crates/replay/src/host/thp.rs",
];

/// What runs the arms of every experiment, and the kernel's side of them.
pub const RUNNER: &[&str] = &[
    "crates/lab/src/bench/runner.rs",
    "crates/lab/src/bench/stats.rs",
    "crates/lab/src/bench/counts.rs",
    "crates/lab/src/bench/beside.rs",
    "crates/lab/src/bench/folio.rs",
    "crates/lab/src/bench/memory.rs",
    "crates/lab/src/bench/linux/",
    "crates/lab/src/bench/ours/",
    "crates/replay/src/host/cycles.rs",
    "crates/replay/src/host/threads.rs",
    "crates/hosted/src/",
];

/// The hash of the sources below the paths of `lists`, in hexadecimal, as of this build. Empty if a path has
/// no source, as in a build outside the repository.
pub fn hash(lists: &[&[&str]]) -> String {
    hash_of(SOURCES, &lists.concat())
}

fn hash_of(sources: &[Hashed], paths: &[&str]) -> String {
    let mut sum = Fnv::new();
    for path in paths {
        let below = |source: &&Hashed| match path.strip_suffix('/') {
            Some(_) => source.0.starts_with(path),
            None => source.0 == *path,
        };
        let mut found = sources.iter().filter(below).peekable();
        if found.peek().is_none() {
            return String::new();
        }
        for (name, hash) in found {
            sum.add(name.as_bytes());
            sum.add(&hash.to_le_bytes());
        }
    }
    format!("{:016x}", sum.0)
}

/// The hash FNV-1a of 64 bits.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests;
