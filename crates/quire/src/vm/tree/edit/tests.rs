use std::boxed::Box;
use std::ptr::NonNull;
use std::vec::Vec;

use super::*;
use crate::arch::Protection;
use crate::filemap::{FileKind, FileNode, FileRef};
use crate::vm::mapping::vma::Backing;
use crate::vm::tree::tests::{Random, boxed, pages, unboxed};

/// What the model knows of one page: protection bits, and the file page behind it.
type Page = Option<(u8, Option<u64>)>;
const SPAN: usize = 48;

struct World {
    tree: VmaTree,
    model: [Page; SPAN],
    node: NonNull<FileNode>,
    file: FileRef,
}

impl World {
    fn new() -> Self {
        let node =
            NonNull::new(Box::into_raw(Box::new(FileNode::new(FileKind::Shmem { bytes: 0 })))).unwrap();
        // SAFETY: a fresh node whose first count this is; freed in `finish` after the last count.
        let file = unsafe { FileRef::from_raw(node) };
        Self { tree: VmaTree::new(), model: [None; SPAN], node, file }
    }

    fn attributes(&self, protection: u8, file_page: Option<u64>) -> VmaAttributes {
        let mut attributes = VmaAttributes::anonymous(Protection::from_bits(protection));
        if let Some(page_offset) = file_page {
            attributes.backing = Backing::File { file: self.file.again(), page_offset };
        }
        attributes
    }

    /// The mappings that the model calls for: maximal runs of pages that agree.
    fn expected(&self) -> Vec<(usize, usize)> {
        let follows = |at: usize| match (self.model[at - 1], self.model[at]) {
            (Some((a, None)), Some((b, None))) => a == b,
            (Some((a, Some(from))), Some((b, Some(to)))) => a == b && from + 1 == to,
            _ => false,
        };
        let starts = (0..SPAN).filter(|&at| self.model[at].is_some() && (at == 0 || !follows(at)));
        starts.map(|start| (start, (start + 1..SPAN).find(|&at| !follows(at)).unwrap_or(SPAN))).collect()
    }

    fn compare(&self) {
        self.tree.validate().unwrap();
        let found: Vec<_> = self
            .tree
            .iter()
            .map(|vma| (vma.range.start.page() as usize, vma.range.end.page() as usize))
            .collect();
        assert_eq!(found, self.expected());
        for vma in self.tree.iter() {
            for page in vma.range.start.page()..vma.range.end.page() {
                let seen = (vma.attributes.protection.bits(), vma.file_page(VirtAddr(page << 12)));
                assert_eq!(self.model[page as usize], Some(seen));
            }
        }
        let mapped = self.tree.iter().filter(|vma| !vma.attributes.is_anonymous()).count();
        assert_eq!(self.file.node().references(), 1 + mapped as u64, "one count for each mapping");
    }

    fn finish(mut self) {
        while let Some(node) = self.tree.pop_first() {
            released(node);
        }
        assert!(self.file.give_back().is_some());
        // SAFETY: made by `Box::into_raw` in `new`; the last count has just gone.
        drop(unsafe { Box::from_raw(self.node.as_ptr()) });
    }
}

/// Frees a node and gives back its count on the file; returns where it was.
fn released(node: VmaBox) -> VirtRange {
    let Vma { range, attributes } = unboxed(node);
    if let Backing::File { file, .. } = attributes.backing {
        assert!(file.give_back().is_none(), "the world keeps a count of its own");
    }
    range
}

fn spares(count: usize) -> Spares {
    let mut spares = Spares::new();
    for _ in 0..count {
        let vma = Vma::new(pages(0, 1), VmaAttributes::anonymous(Protection::NONE));
        assert!(spares.put(boxed(vma)).is_none());
    }
    spares
}

fn drain(list: &mut VmaList) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    while let Some(node) = list.pop() {
        let range = released(node);
        out.push((range.start.page(), range.end.page()));
    }
    out
}

fn step(random: &mut Random, world: &mut World) {
    let start = random.below(SPAN as u64 - 1);
    let end = start + 1 + random.below(SPAN as u64 - start);
    let (range, hit) = (pages(start, end), start as usize..end as usize);
    let need = splits(&world.tree, range);
    let mut out = VmaList::new();
    if need > 0 && random.below(3) == 0 {
        let mut few = spares(need - 1);
        assert!(carve(&mut world.tree, range, &mut few).is_none());
        assert!(!change(&mut world.tree, range, &mut few, &mut out, |_| ()));
        world.compare();
        std::iter::from_fn(|| few.take()).for_each(|node| assert!(!released(node).is_empty()));
    }
    let mut spares = spares(need);
    if random.below(2) == 0 {
        let protection = random.below(3) as u8;
        let touch = |vma: &mut VmaAttributes| vma.protection = Protection::from_bits(protection);
        assert!(change(&mut world.tree, range, &mut spares, &mut out, touch));
        world.model[hit].iter_mut().flatten().for_each(|page| page.0 = protection);
    } else {
        let mut carved = carve(&mut world.tree, range, &mut spares).unwrap();
        let gone: u64 = drain(&mut carved).iter().map(|(from, to)| to - from).sum();
        assert_eq!(gone, world.model[hit.clone()].iter().flatten().count() as u64);
        world.model[hit.clone()].fill(None);
        if random.below(3) > 0 {
            let file = (random.below(2) == 0).then_some(start + random.below(2));
            let protection = random.below(3) as u8;
            let node = boxed(Vma::new(range, world.attributes(protection, file)));
            insert(&mut world.tree, node, &mut out).unwrap();
            for (at, page) in world.model[hit].iter_mut().enumerate() {
                *page = Some((protection, file.map(|file| file + at as u64)));
            }
        }
    }
    assert!(spares.is_empty());
    drain(&mut out);
}

#[test]
fn lockstep_with_single_pages() {
    let (runs, steps) = if cfg!(miri) { (1, 60) } else { (20, 1500) };
    let mut random = Random::seeded(2);
    for _ in 0..runs {
        let mut world = World::new();
        for _ in 0..steps {
            step(&mut random, &mut world);
            world.compare();
        }
        world.finish();
    }
}

/// Every hole in one mapping of six pages, every protection change over it.
#[test]
fn every_hole_and_change() {
    for start in 0..6 {
        for end in start + 1..=6 {
            for hole in [false, true] {
                let mut world = World::new();
                let node = boxed(Vma::new(pages(0, 6), world.attributes(1, Some(9))));
                insert(&mut world.tree, node, &mut VmaList::new()).unwrap();
                (0..6).for_each(|at| world.model[at] = Some((1, Some(9 + at as u64))));
                let range = pages(start, end);
                let need = splits(&world.tree, range);
                assert_eq!(need, usize::from(start > 0) + usize::from(end < 6));
                let (mut spares, mut out) = (spares(need), VmaList::new());
                for page in &mut world.model[start as usize..end as usize] {
                    *page = if hole { None } else { page.map(|(_, file)| (3, file)) };
                }
                if hole {
                    let mut carved = carve(&mut world.tree, range, &mut spares).unwrap();
                    assert_eq!(drain(&mut carved), [(start, end)]);
                } else {
                    let touch = |vma: &mut VmaAttributes| vma.protection = Protection::from_bits(3);
                    assert!(change(&mut world.tree, range, &mut spares, &mut out, touch));
                }
                assert!(out.is_empty() && spares.is_empty());
                world.compare();
                world.finish();
            }
        }
    }
}
