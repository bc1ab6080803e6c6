//! Compares the reverse map with the page tables: it finds every mapping of a frame or of a file's page, and
//! no other.

use std::collections::BTreeMap;

use hosted::Hosted;
use quire::addr::Frame;
use quire::arch::EntryFlags;
use quire::filemap::FileKind;
use quire::manager::MemoryManager;
use quire::vm::{File, Mm};

use crate::space::PAGE;

/// Root and address of each leaf.
type Places = Vec<(u64, u64)>;

/// The mappings in the page tables of all address spaces, by frame and by page of a file.
#[derive(Debug, Default)]
pub struct Mappings {
    frames: BTreeMap<u64, Places>,
    pages: BTreeMap<(u64, u64), Places>,
}

impl Mappings {
    /// Reads every leaf as the software MMU does, and the file of each mapping from the address space.
    pub fn read<'a, 'm: 'a>(machine: &Hosted, spaces: impl Iterator<Item = &'a Mm<'m, Hosted>>) -> Self {
        let mut all = Self::default();
        for mm in spaces {
            let mut vmas = Vec::new();
            mm.vmas(|vma| vmas.push((vma.range, vma.file)));
            for leaf in machine.leaves(mm.root()) {
                if leaf.entry & EntryFlags::SPECIAL.bits() != 0 {
                    continue;
                }
                let at = vmas.partition_point(|(range, _)| range.end <= leaf.addr);
                let (range, file) = vmas[at];
                for page in 0..leaf.frames {
                    let (addr, frame) = (leaf.addr.add(page * PAGE), leaf.frame.0 + page);
                    let place = (mm.root().0, addr.0);
                    if leaf.entry & EntryFlags::ANON.bits() != 0 {
                        all.frames.entry(frame).or_default().push(place);
                    } else if let Some((FileKind::Paged(id), first)) = file {
                        let index = first + (addr.0 - range.start.0) / PAGE;
                        all.pages.entry((id.0, index)).or_default().push(place);
                    }
                }
            }
        }
        all
    }

    /// Compares the library's results for every `step`-th frame and for every page of these files.
    ///
    /// # Errors
    /// The first frame or page with another result.
    pub fn compare<'m>(
        &self,
        manager: &MemoryManager<'_, Hosted>,
        files: impl Iterator<Item = (u64, &'m File<'m, Hosted>)>,
        step: usize,
    ) -> Result<(), String> {
        let same = |what: String, want: Option<&Places>, mut found: Places| {
            let mut want = want.cloned().unwrap_or_default();
            want.sort_unstable();
            found.sort_unstable();
            if want == found { Ok(()) } else { Err(format!("{what} is found at {found:x?}, want {want:x?}")) }
        };
        for (&frame, places) in self.frames.iter().step_by(step) {
            let mut found = Vec::new();
            manager.mappings(Frame(frame), |root, addr| found.push((root.0, addr.0)));
            same(format!("frame {frame:#x}"), Some(places), found)?;
        }
        for (number, file) in files {
            let last = self.pages.range((number, 0)..(number + 1, 0)).next_back();
            for page in 0..last.map_or(0, |((_, page), _)| *page) + 3 {
                let mut found = Vec::new();
                file.mappings(page, |root, addr| found.push((root.0, addr.0)));
                same(format!("page {page} of file {number}"), self.pages.get(&(number, page)), found)?;
            }
        }
        Ok(())
    }
}
