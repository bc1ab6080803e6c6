//! Random verbs on a family of address spaces, compared with the naive reading every few steps (invariant 5).

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::filemap::FileKind;
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::NodeSet;
use quire::platform::FileId;
use quire::vm::{
    Access, Advice, Backing, File, FolioPolicy, ForkStrategy, MapRequest, OrderPolicy, Placement, Remap,
    Sharing,
};

use crate::usage::naive::compare;
use crate::usage::world::{FORKS, MIB, Manager, R, RW, Space, anonymous, with_config};
use testkit::{order, seed};

const PAGE: u64 = 4096;
/// Where places of 4 MiB start.
const BASE: u64 = 1 << 30;
const PLACES: u64 = 6;
const PLACE: u64 = 4 * MIB;
const MOST: usize = 5;

pub(crate) struct World<'a, 'm> {
    pub(crate) manager: &'m Manager<'m>,
    pub(crate) file: &'a File<'m, Hosted>,
    pub(crate) shared: &'a File<'m, Hosted>,
    /// Huge pages that are mapped in parts, if there are any.
    pub(crate) parts: Option<&'a File<'m, Hosted>>,
    pub(crate) spaces: Vec<Space<'m>>,
    pub(crate) rng: Rng,
}

impl World<'_, '_> {
    /// Maps random memory at a place.
    fn map(&mut self, mm: usize) {
        let at = BASE + self.rng.u64(0..PLACES) * PLACE;
        let kinds = if self.parts.is_some() { 7 } else { 5 };
        let (kind, len) = (self.rng.u8(0..kinds), self.rng.u64(1..PLACE / PAGE) * PAGE);
        let plain = MapRequest { prot: if self.rng.u8(0..4) == 0 { R } else { RW }, ..anonymous(at, len) };
        let backed =
            |file, sharing| MapRequest { sharing, backing: Backing::File { file, page_offset: 0 }, ..plain };
        let request = match kind {
            0 => backed(self.file, Sharing::Private),
            1 => backed(self.shared, Sharing::Shared),
            2 => MapRequest { huge: Some(HugeSize::Size2M), len: 2 * MIB, ..plain },
            5 | 6 => match self.parts {
                Some(file) => MapRequest { len: 4 * MIB, ..backed(file, Sharing::Shared) },
                None => plain,
            },
            _ => plain,
        };
        // A pool may have no page for it.
        let mapped = self.spaces[mm].mmap(&MapRequest { placement: Placement::Fixed, ..request });
        if kind >= 5 && mapped.is_ok() {
            self.spaces[mm].madvise(VirtAddr(at), 4 * MIB, Advice::Split).unwrap();
        }
    }

    pub(crate) fn step(&mut self) {
        let mm = self.rng.usize(0..self.spaces.len());
        let at = BASE + self.rng.u64(0..PLACES * PLACE / PAGE) * PAGE;
        let len = if self.rng.bool() { PAGE * self.rng.u64(1..40) } else { PLACE };
        let (addr, kind) = (VirtAddr(at), self.rng.u8(0..20));
        let space = &self.spaces[mm];
        // A verb may be refused where nothing is mapped or allowed; the comparison then shows that nothing
        // changed.
        match kind {
            0 | 1 => self.map(mm),
            2..=6 => {
                let access = if self.rng.bool() { Access::Write } else { Access::Read };
                for page in 0..self.rng.u64(1..64) {
                    let _outcome = space.fault(addr.add(page * PAGE), access);
                }
            }
            7 => _ = space.madvise(addr, len, Advice::PopulateWrite),
            8 if self.spaces.len() < MOST => {
                if let Ok(child) = self.spaces[mm].fork() {
                    self.spaces.push(child);
                }
            }
            9 if self.spaces.len() > 1 => self.spaces.swap_remove(mm).exit(),
            10 => _ = space.munmap(addr, len),
            11 => _ = space.mprotect(addr, len, if self.rng.bool() { R } else { RW }),
            12 => _ = space.madvise(addr, len, Advice::DontNeed),
            13 if !is_huge(space, addr) => _ = space.madvise(addr, len, Advice::Free),
            14 => {
                let to = VirtAddr(BASE + self.rng.u64(0..PLACES * PLACE / PAGE) * PAGE);
                let _moved = space.mremap(addr, len, len, Remap::Fixed(to));
            }
            15 => {
                if let Some(leaf) = space.translate(addr, Access::Read) {
                    let _moved = self.manager.migrate(leaf.frame);
                }
            }
            16 => {
                let leaf = space.translate(addr, Access::Read);
                // The folios of pools stay whole.
                if let Some(leaf) = leaf.filter(|_| !is_huge(space, addr)) {
                    let _split = self.manager.split_folio(leaf.frame, order(self.rng.u8(0..3)));
                }
            }
            // Whole places: a huge page is marked as a whole.
            19 if self.parts.is_some() => _ = space.collapse(addr.align_down(2 * MIB), 2 * MIB),
            17 => _ = space.clear_soft_dirty(addr.align_down(PLACE), PLACE),
            18 => _ = space.write_protect_marked(addr.align_down(PLACE), PLACE),
            _ => _ = space.mlock(addr, PAGE * 4, true),
        }
    }
}

/// Whether huge pages are mapped at an address.
fn is_huge(mm: &Space<'_>, addr: VirtAddr) -> bool {
    let mut huge = false;
    mm.vmas(|vma| huge |= vma.range.contains(addr) && matches!(vma.file, Some((FileKind::Huge { .. }, _))));
    huge
}

fn run(fork: ForkStrategy, folios: FolioPolicy, seed: u64) {
    println!("QUIRE_SEED={seed}, {fork:?}");
    let config = Config { fork, folios, ..Config::default() };
    with_config(HostedConfig::new(96 * MIB), config, |machine, manager| {
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 6).after, 6);
        machine.files().set_size(FileId(2), PLACE);
        let (file, shared) = (manager.open(FileId(2)).unwrap(), manager.shmem(PLACE).unwrap());
        let (first, rng) = (manager.new_mm().unwrap(), Rng::with_seed(seed));
        let mut world =
            World { manager, file: &file, shared: &shared, parts: None, spaces: vec![first], rng };
        let mut shared_pages = 0;
        for step in 0..480 {
            world.step();
            if step % 8 == 7 {
                shared_pages += compare(machine, manager, &world.spaces);
            }
        }
        assert!(shared_pages > 100, "{shared_pages} pages were shared: too little happens");
        world.spaces.drain(..).for_each(|mm| {
            mm.validate().unwrap();
            mm.exit();
        });
        drop((file, shared));
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
    });
}

#[test]
fn small_folios() {
    for fork in FORKS {
        (0..4).for_each(|more| run(fork, FolioPolicy::only(order(0)), seed(11) + more));
    }
}

#[test]
fn large_folios() {
    let folios = FolioPolicy::only(order(9)).with(order(4), OrderPolicy::Always).with_pmd_mapped(true);
    for fork in FORKS {
        (0..4).for_each(|more| run(fork, folios, seed(21) + more));
    }
}
