//! Arms of the experiments `clear`, `clear-cache` and `clear-then-use`: kernels by themselves, and the policy.

mod cache;
mod fill;
mod grounds;
pub(in crate::bench::arms) mod huge;
mod populate;
mod raw;
mod used;
mod way;

use std::rc::Rc;

use quire::platform::TouchHint;

use crate::bench::experiment::Arm;
use grounds::Shared;
use way::{Way, kernels};

pub(in crate::bench::arms) use way::{CONTIGUOUS_ABOUT, contiguous};

pub use cache::{Cache, Reread};
pub use fill::Fill;
pub use populate::Populating;
pub use used::{Use, Used};
pub use way::{RATE, Setting};

/// Every clearing kernel by itself, of this machine or another, and the C library's.
pub const KERNELS: &[&str] =
    &["string", "quadwords", "cached", "movnti", "nt16", "nt32", "nt64", "clzero", "movdir64b", "memset"];

/// The names of the kernels' arms, and of the C library's.
pub fn raw() -> Vec<&'static str> {
    kernels().chain([Way::Memset]).map(Way::name).collect()
}

/// Arms that fill extents. The checksum of a repetition is the number of marks that became zero.
pub fn fills(setting: &Setting) -> Vec<Box<dyn Arm<Fill>>> {
    let shared = Rc::new(Shared::new(setting));
    let ways = [Way::Policy(TouchHint::Unknown), Way::Contiguous].into_iter();
    let ways = ways.chain(kernels()).chain([Way::Memset]);
    ways.map(|way| fill::Filling::arm(way, &shared)).collect()
}

/// Arms that populate memory by large pages. The checksum is the number of 4 KiB pages that are populated.
pub fn populates(setting: &Setting) -> Vec<Box<dyn Arm<Populating>>> {
    populate::all(setting)
}

/// Arms that clear beside a working set. The checksum is the sum of its words.
pub fn caches(setting: &Setting) -> Vec<Box<dyn Arm<Cache>>> {
    let shared = Rc::new(Shared::new(setting));
    let hints = [TouchHint::Unknown, TouchHint::Soon, TouchHint::Later].map(Way::Policy);
    let ways = [Way::Nothing, Way::Wait, Way::Translate].into_iter().chain(hints).chain(kernels());
    ways.map(|way| cache::Beside::arm(way, &shared)).collect()
}

/// Arms that clear and then use. The checksum is the number of lines that were read as zero.
pub fn uses(setting: &Setting) -> Vec<Box<dyn Arm<Used>>> {
    let shared = Rc::new(Shared::new(setting));
    let hints = [TouchHint::Soon, TouchHint::Unknown, TouchHint::Later].map(Way::Policy);
    let ways = hints.into_iter().chain([Way::Contiguous]).chain(kernels());
    ways.map(|way| used::Using::arm(way, &shared)).collect()
}
