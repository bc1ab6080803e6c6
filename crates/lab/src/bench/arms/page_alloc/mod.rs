//! Arms of the experiment `page-alloc`.
//!
//! An arm makes one [`Frames`] per thread; `loops` has the timed loops, which all arms share.

mod bitmap;
mod buddy_slab;
mod buddy_system;
mod case;
mod frame_alloc;
mod free_list;
mod linux;
mod loops;
mod owned_blocks;
mod peer;
mod quire;

use std::rc::Rc;

use quire::Quire;

use crate::bench::experiment::Arm;

pub use case::{Back, Crowded, Frames, Half, Operation, PageAlloc, Timed};

/// The arms that ratios are taken against.
pub const PEERS: &[&str] =
    &[buddy_system::NAME, buddy_slab::NAME, bitmap::NAME, frame_alloc::NAME, free_list::NAME];

/// Every arm. The checksum of a repetition is the number of frames that were allocated and, where many are
/// held at once, all different.
pub fn all() -> Vec<Box<dyn Arm<PageAlloc>>> {
    let crowded = Rc::default();
    let ours = Quire::arms().map(|config| Quire::new(config, &crowded));
    let mut arms: Vec<Box<dyn Arm<PageAlloc>>> = Vec::new();
    arms.extend(ours.into_iter().map(|arm| Box::new(arm) as Box<dyn Arm<PageAlloc>>));
    arms.push(Box::new(linux::Linux));
    arms.push(Box::new(buddy_system::BuddySystem));
    arms.push(Box::new(buddy_slab::BuddySlab));
    arms.push(Box::new(bitmap::Bitmap));
    arms.push(Box::new(frame_alloc::FrameAlloc));
    arms.push(Box::new(free_list::Ranges));
    arms.push(Box::new(owned_blocks::OwnedBlocks));
    arms
}
