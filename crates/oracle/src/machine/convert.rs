//! Conversions from the model's types to the library's.

use quire::arch::Protection;
use quire::filemap::FileKind;
use quire::vm::vma::VmaFlags;
use quire::vm::{self, HugeAdvice, VmaInfo};

use crate::space::{Advice, Backing, Huge, Kind, Locked, Placement, Prot, Remap, Vma};
use quire::addr::VirtAddr;

/// A kind of access.
pub fn access(kind: Kind) -> vm::Access {
    match kind {
        Kind::Read => vm::Access::Read,
        Kind::Write => vm::Access::Write,
        Kind::Exec => vm::Access::Exec,
    }
}

/// A protection.
pub fn protection(prot: Prot) -> Protection {
    let set = [
        (prot.names_read(), Protection::READ),
        (prot.writes(), Protection::WRITE),
        (prot.executes(), Protection::EXEC),
    ];
    set.into_iter().filter(|(set, _)| *set).fold(Protection::NONE, |all, (_, one)| all.union(one))
}

/// A placement.
pub fn placement(placement: Placement) -> vm::Placement {
    match placement {
        Placement::Hint => vm::Placement::Hint,
        Placement::Fixed => vm::Placement::Fixed,
        Placement::FixedNoReplace => vm::Placement::FixedNoReplace,
    }
}

/// A target of `mremap`.
pub fn remap(to: Remap) -> vm::Remap {
    match to {
        Remap::InPlace => vm::Remap::InPlace,
        Remap::MayMove => vm::Remap::MayMove,
        Remap::Fixed(to) => vm::Remap::Fixed(VirtAddr(to)),
        Remap::DontUnmap(hint) => vm::Remap::DontUnmap(VirtAddr(hint)),
        Remap::FixedDontUnmap(to) => vm::Remap::FixedDontUnmap(VirtAddr(to)),
    }
}

/// An advice.
pub fn advice(advice: Advice) -> vm::Advice {
    match advice {
        Advice::DontNeed => vm::Advice::DontNeed,
        Advice::Free => vm::Advice::Free,
        Advice::WillNeed => vm::Advice::WillNeed,
        Advice::HugePage => vm::Advice::HugePage,
        Advice::NoHugePage => vm::Advice::NoHugePage,
        Advice::PopulateRead => vm::Advice::PopulateRead,
        Advice::PopulateWrite => vm::Advice::PopulateWrite,
    }
}

/// A mapping as the library shows it.
///
/// # Panics
/// When its protection is none that the model knows.
pub fn vma(info: &VmaInfo) -> Vma {
    let prot = Prot::ALL.into_iter().find(|&prot| protection(prot) == info.protection);
    let locked = match (info.flags.contains(VmaFlags::LOCKED), info.flags.contains(VmaFlags::LOCK_ON_FAULT)) {
        (false, _) => Locked::No,
        (true, false) => Locked::Now,
        (true, true) => Locked::OnFault,
    };
    let (backing, page_offset) = match info.file {
        None => (Backing::Anonymous, 0),
        Some((FileKind::Paged(file), page)) => (Backing::File(file.0), page),
        Some((FileKind::Shmem { .. } | FileKind::Huge { .. }, page)) => (Backing::Shared(0), page),
    };
    Vma {
        start: info.range.start.0,
        end: info.range.end.0,
        prot: prot.unwrap_or_else(|| panic!("{:?} was never asked for", info.protection)),
        shared: info.flags.contains(VmaFlags::SHARED),
        backing,
        page_offset,
        grows_down: info.flags.contains(VmaFlags::GROWS_DOWN),
        locked,
        huge: match info.advice {
            HugeAdvice::None => Huge::Default,
            HugeAdvice::Huge => Huge::Yes,
            HugeAdvice::NoHuge => Huge::No,
        },
        accounted: info.flags.contains(VmaFlags::ACCOUNTED),
    }
}
