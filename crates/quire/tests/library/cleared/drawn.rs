//! Drawn calls of programs that store to all that they map, with pools, files and idle CPUs beside them.

use fastrand::Rng;
use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Order, VirtRange};
use quire::hugetlb::HugeSize;
use quire::page_alloc::{Gfp, NodeSet};
use quire::stats::Stat;
use quire::vm::{Advice, Backing, Collapser, File, FolioPolicy, MapRequest, Remap, Sharing};
use testkit::seed;

use super::alloc::write_to;
use super::support::{
    BASE, Ground, MIB, at, cleared_again, config, idle, only, report, store_all, sweep, unmarked,
};
use crate::hugetlb::world::{HUGE, private};
use crate::vm::world::{Manager, Space, anonymous, run};

/// Of a program.
struct World<'t, 'm> {
    machine: &'t Hosted,
    manager: &'t Manager<'m>,
    file: &'t File<'t, Hosted>,
    rng: Rng,
    collapser: Collapser,
}

/// Regions of a program, each of this many bytes.
const REGION: u64 = 4 * MIB;
const REGIONS: u64 = 3;
const AREA: u64 = 1 << 30;

/// Page tables of which one call may take all entries away, so that they are zero without a mark.
const TABLES: u64 = 2;

impl World<'_, '_> {
    /// A part of a region, in whole blocks.
    fn part(&mut self) -> (u64, u64) {
        let region = BASE + self.rng.u64(..REGIONS) * AREA;
        let (from, to) = (self.rng.u64(..REGION / HUGE), self.rng.u64(1..=REGION / HUGE));
        (region + from.min(to - 1) * HUGE, (to - from.min(to - 1)) * HUGE)
    }

    fn store(&self, mm: &Space<'_>, addr: u64, len: u64) {
        store_all(self.machine, mm, addr, len);
    }

    fn step(&mut self, mm: &Space<'_>, whole: bool) {
        let (addr, len) = self.part();
        match self.rng.u8(..16) {
            0..3 => {
                mm.mmap(&anonymous(addr, len)).unwrap();
                self.store(mm, addr, len);
            }
            3 => mm.munmap(at(addr), len).unwrap(),
            4 => _ = mm.madvise(at(addr), len, Advice::DontNeed),
            5 => {
                mm.mmap(&anonymous(addr, len)).unwrap();
                mm.mlock(at(addr), len, false).unwrap();
                self.store(mm, addr, len);
                mm.munlock(at(addr), len).unwrap();
            }
            6 => {
                mm.mmap(&anonymous(addr, len)).unwrap();
                self.store(mm, addr, len);
                let child = mm.fork().unwrap();
                self.store(mm, addr, len);
                child.exit();
            }
            7 => {
                mm.mmap(&anonymous(addr, HUGE)).unwrap();
                self.store(mm, addr, HUGE);
                let to = at(addr ^ 1 << 33);
                mm.mremap(at(addr), HUGE, HUGE, Remap::Fixed(to)).unwrap();
                mm.munmap(to, HUGE).unwrap();
            }
            8 => {
                mm.mmap(&anonymous(addr, HUGE)).unwrap();
                self.store(mm, addr, HUGE);
                let _ = mm.madvise(at(addr), HUGE, Advice::Collapse);
                self.manager.collapse_ahead(&mut self.collapser);
            }
            9 => {
                let backing = Backing::File { file: self.file, page_offset: 0 };
                let request = MapRequest { sharing: Sharing::Shared, backing, ..anonymous(addr, HUGE) };
                mm.mmap(&request).unwrap();
                self.store(mm, addr, HUGE);
                mm.munmap(at(addr), HUGE).unwrap();
            }
            10 => self.file.punch_hole(0..self.rng.u64(..HUGE)).unwrap(),
            11 => {
                let mut frames = Vec::new();
                let page = VirtRange::from_len(at(addr), 4096);
                mm.mapped(page, |found| frames.push(found.frames.start));
                frames.into_iter().for_each(|frame| _ = self.manager.migrate(frame));
            }
            12 => _ = self.manager.compact(NodeSet::ALL),
            13 => {
                if let Ok(run) = self.manager.alloc_contig(Gfp::USER, 1, 1) {
                    write_to(self.machine, run.frames().start, Order::BLOCK);
                    assert!(self.manager.pages().free_contig(run).is_ok());
                }
            }
            14 => idle(self.manager),
            _ if whole => self.pool(mm, addr),
            _ => {}
        }
    }

    /// Changes the size of the pool, and uses its pages.
    fn pool(&mut self, mm: &Space<'_>, addr: u64) {
        let wanted = self.rng.u64(..6);
        let pages = self.manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, wanted).after;
        let used = self.rng.u64(..=pages);
        if used > 0 && mm.mmap(&private(addr ^ 1 << 33, used)).is_ok() {
            self.store(mm, addr ^ 1 << 33, used * HUGE);
            mm.munmap(at(addr ^ 1 << 33), used * HUGE).unwrap();
        }
    }
}

fn draw(ground: Ground, folios: FolioPolicy, seed: u64) {
    let again = cleared_again(HostedConfig::new(48 * MIB), &config(folios), |machine, manager| {
        let held = ground.hold(manager);
        let file = manager.shmem(HUGE).unwrap();
        sweep(machine, manager);
        run(manager, |mm| {
            let (rng, collapser) = (Rng::with_seed(seed), Collapser::default());
            let mut world = World { machine, manager, file: &file, rng, collapser };
            let drained = || manager.stat(Stat::PcpDrain);
            let mut after = unmarked(machine, manager);
            for round in 0..60 {
                let (before, drained_before) = (after, drained());
                world.step(mm, ground == Ground::Blocks);
                let again = report(machine);
                after = unmarked(machine, manager);
                let (lost, drained) = (after.saturating_sub(before), drained() - drained_before);
                assert!(again <= before, "{again} frames were cleared again in round {round}, seed {seed}");
                assert!(lost <= drained + TABLES, "{lost} marks were lost in round {round}, seed {seed}");
            }
        });
        drop(file);
        held.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
    });
    assert_eq!(again, 0);
}

#[test]
fn drawn_calls() {
    for seed in seed(1)..seed(1) + 2 {
        draw(Ground::Pieces, only(0), seed);
        draw(Ground::Blocks, only(9), seed);
    }
}
