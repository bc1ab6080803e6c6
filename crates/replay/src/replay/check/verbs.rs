//! Runs each verb on the model after Quire: where Quire may choose, the model follows a legal choice.

use oracle::space::{self, Map, Place, Prot, SpaceId};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::error::MmError;
use quire::vm::{Advice, Placement, Remap};

use super::{Check, Verdict};
use crate::replay::verb::{Mapping, Verb};

impl Check {
    /// Calls the verb on the model and compares the answers.
    ///
    /// # Errors
    /// The difference.
    pub(in crate::replay) fn verb(&mut self, id: SpaceId, verb: &Verb, got: Result<u64, MmError>) -> Verdict {
        let family = &mut self.family;
        let done = |want: Result<(), MmError>| want.map(|()| 0);
        let want = match *verb {
            Verb::Mmap(ref mapping) => {
                let map = model_map(mapping);
                let place = family.place(id, &map);
                let legal = |addr| family.is_legal(id, addr, map.len);
                let chosen = choose(place, got, legal)?;
                if let Ok(addr) = chosen {
                    family.map_at(id, &map, addr);
                }
                chosen
            }
            Verb::Mremap { addr, old, new, to } => {
                let to = model_remap(to);
                let place = family.place_remap(id, addr, old, new, to);
                let legal = |dest| family.is_legal(id, dest, new);
                let chosen = choose(place, got, legal)?;
                if let Ok(dest) = chosen {
                    family.remap_at(id, addr, old, new, to, dest);
                }
                chosen
            }
            Verb::Munmap { addr, len } => done(family.munmap(id, addr, len)),
            Verb::Mprotect { addr, len, prot } => done(family.mprotect(id, addr, len, model_prot(prot))),
            Verb::Madvise { addr, len, advice } => done(family.madvise(id, addr, len, model_advice(advice))),
            Verb::Brk { to, .. } => Ok(family.brk(id, to)),
            Verb::Mlock { addr, len, on_fault } => done(family.mlock(id, addr, len, on_fault)),
            Verb::Munlock { addr, len } => done(family.munlock(id, addr, len)),
            Verb::Mlockall { current, future, on_fault } => {
                done(family.mlockall(id, current, future, on_fault))
            }
            Verb::Munlockall => {
                family.munlockall(id);
                Ok(0)
            }
        };
        if got == want { Ok(()) } else { Err(format!("{verb:x?} gives {got:x?}, the model says {want:x?}")) }
    }
}

/// The address of a mapping in the model: the required one, or Quire's choice if that is legal.
fn choose(
    place: Result<Place, MmError>,
    got: Result<u64, MmError>,
    legal: impl Fn(u64) -> bool,
) -> Result<Result<u64, MmError>, String> {
    Ok(match (place, got) {
        (Ok(Place::At(addr)), _) => Ok(addr),
        (Ok(Place::Anywhere), Ok(addr)) if legal(addr) => Ok(addr),
        (Ok(Place::Anywhere), Ok(addr)) => {
            return Err(format!("a mapping was placed at {addr:#x}, which is not free"));
        }
        (Ok(Place::Anywhere), Err(error)) => {
            return Err(format!("no place was found ({error}), though there is one"));
        }
        (Err(error), _) => Err(error),
    })
}

fn model_map(mapping: &Mapping) -> Map {
    Map {
        addr: mapping.addr,
        len: mapping.len,
        prot: model_prot(mapping.prot),
        placement: match mapping.placement {
            Placement::Hint => space::Placement::Hint,
            Placement::Fixed => space::Placement::Fixed,
            Placement::FixedNoReplace => space::Placement::FixedNoReplace,
            Placement::Low => unreachable!("no plan has it"),
        },
        shared: mapping.shared,
        file: mapping.file,
        grows_down: mapping.grows_down,
        populate: mapping.populate,
        locked: mapping.locked,
    }
}

/// The model, as the hardware, has no memory that can be executed and not read.
pub(super) fn model_prot(prot: Protection) -> Prot {
    match prot.bits() & 7 {
        0 => Prot::None,
        1 => Prot::R,
        2 => Prot::W,
        3 => Prot::Rw,
        4 | 5 => Prot::Rx,
        _ => Prot::Rwx,
    }
}

fn model_remap(to: Remap) -> space::Remap {
    match to {
        Remap::InPlace => space::Remap::InPlace,
        Remap::MayMove => space::Remap::MayMove,
        Remap::Fixed(VirtAddr(to)) => space::Remap::Fixed(to),
        Remap::DontUnmap(VirtAddr(hint)) => space::Remap::DontUnmap(hint),
        Remap::FixedDontUnmap(VirtAddr(to)) => space::Remap::FixedDontUnmap(to),
    }
}

fn model_advice(advice: Advice) -> space::Advice {
    match advice {
        Advice::DontNeed => space::Advice::DontNeed,
        Advice::Free => space::Advice::Free,
        Advice::WillNeed => space::Advice::WillNeed,
        Advice::HugePage => space::Advice::HugePage,
        Advice::NoHugePage => space::Advice::NoHugePage,
        Advice::PopulateRead => space::Advice::PopulateRead,
        Advice::PopulateWrite => space::Advice::PopulateWrite,
        _ => unreachable!("no plan has {advice:?}: `plan_madvise` skips it"),
    }
}
