//! Compares what a program can see of an address space: its mappings and its resident memory.

use hosted::Hosted;
use oracle::space::{Backing, Huge, Locked, SpaceId, Vma, normalise};
use quire::addr::Order;
use quire::filemap::FileKind;
use quire::platform::FileId;
use quire::vm::policy::HugeAdvice;
use quire::vm::vma::VmaFlags;
use quire::vm::{Mm, VmaInfo};

use super::verbs::model_prot;
use super::{Check, Verdict};
use crate::replay::verb::PAGE;

impl Check {
    /// Compares the mappings and the counts of resident memory. `largest` is the folio size of the run.
    ///
    /// # Errors
    /// The difference.
    pub(in crate::replay) fn compare(&self, id: SpaceId, mm: &Mm<'_, Hosted>, largest: Order) -> Verdict {
        let mut found = Vec::new();
        mm.vmas(|vma| found.push(as_model(vma)));
        let space = self.family.space(id);
        let (got, want) = (comparable(found), comparable(self.expected(id)));
        if let Some((got, want)) = first_difference(&got, &want) {
            return Err(format!("mappings differ: Quire has {got:x?}, the model {want:x?}"));
        }
        let rss = mm.rss();
        let (locked, want) = (rss.locked * PAGE, space.locked_bytes());
        if locked != want {
            return Err(format!("{locked} bytes are locked, the model says {want}"));
        }
        let bounds = self.family.bounds(id);
        let most = if largest == Order::FRAME { bounds.anon_touched } else { bounds.anon_most };
        if rss.anon < bounds.anon_least || rss.anon > most {
            let least = bounds.anon_least;
            return Err(format!("{} private pages are resident, the model says {least} to {most}", rss.anon));
        }
        mm.validate().map_err(|fault| fault.to_string())
    }

    /// The mappings of the model, in which a memfd is a file.
    fn expected(&self, id: SpaceId) -> Vec<Vma> {
        let mut vmas = self.family.space(id).vmas().to_vec();
        for vma in &mut vmas {
            if matches!(vma.backing, Backing::File(number) if self.shmem.contains(&number)) {
                vma.backing = Backing::Shared(0);
            }
        }
        vmas
    }
}

fn as_model(vma: &VmaInfo) -> Vma {
    let (backing, page_offset) = match vma.file {
        None => (Backing::Anonymous, 0),
        Some((FileKind::Paged(FileId(number)), page)) => (Backing::File(number), page),
        Some((FileKind::Shmem { .. } | FileKind::Huge { .. }, page)) => (Backing::Shared(0), page),
    };
    let has = |flags| vma.flags.contains(flags);
    Vma {
        start: vma.range.start.0,
        end: vma.range.end.0,
        prot: model_prot(vma.protection),
        shared: has(VmaFlags::SHARED),
        backing,
        page_offset,
        grows_down: has(VmaFlags::GROWS_DOWN),
        locked: match (has(VmaFlags::LOCKED), has(VmaFlags::LOCK_ON_FAULT)) {
            (false, _) => Locked::No,
            (true, false) => Locked::Now,
            (true, true) => Locked::OnFault,
        },
        huge: match vma.advice {
            HugeAdvice::None => Huge::Default,
            HugeAdvice::Huge => Huge::Yes,
            HugeAdvice::NoHuge => Huge::No,
        },
        accounted: has(VmaFlags::ACCOUNTED),
    }
}

/// Merges mappings as far as possible; shared anonymous memory is not distinguished, since each side numbers
/// it by itself.
fn comparable(mut vmas: Vec<Vma>) -> Vec<Vma> {
    for vma in &mut vmas {
        match &mut vma.backing {
            Backing::Shared(number) => *number = 0,
            Backing::Anonymous => vma.page_offset = 0,
            Backing::File(_) => {}
        }
    }
    normalise(vmas)
}

/// The first mapping of either list that has no equal at its place in the other.
fn first_difference<'v>(got: &'v [Vma], want: &'v [Vma]) -> Option<(Option<&'v Vma>, Option<&'v Vma>)> {
    (0..got.len().max(want.len())).map(|at| (got.get(at), want.get(at))).find(|(got, want)| got != want)
}
