//! Huge pages of files in parts, in lockstep with a naive model. Several address spaces map, unmap, split,
//! mark, move, collapse and lose parts, and answer as a handler; each runs on a CPU with a TLB of its own,
//! and one has a guest. After each verb the leaves are compared, and now and then the count of each frame and
//! each word (invariants 2, 5, 6, 11 and 12).

mod answers;
mod check;
mod model;
mod verbs;

use std::mem::ManuallyDrop;
use std::ops::Range;

use fastrand::Rng;
use hosted::{HostedConfig, Nested};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugeSize};
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, CountScheme, NodeSet};
use quire::stats::Stat;
use quire::vm::CollapseSteps;

use crate::hugetlb::world::{BASE, HUGE, Space, info};
use model::{Mapping, Model, Places, Slot, cells_of};
use testkit::{long, ranges_of, runs, seed};
use verbs::{Both, Piece, RealSpace};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// Where the places of each size start: those of 1 GiB are first.
const FIRST: [u64; 2] = [BASE + 4 * GIB, BASE];
/// How many places an address space has, pages a file, and pages a pool, of each size.
const PLACES: [u64; 2] = [6, 3];
const FILE: [u64; 2] = [4, 2];
const POOL: [u64; 2] = [6, 2];
/// Guest memory covers all places.
const GUEST: u64 = 4 * GIB + PLACES[0] * HUGE;
const SPACES: usize = 3;

impl Both<'_, '_, '_> {
    /// Where the next verb acts: mostly where an earlier one did.
    fn draw(&self, random: &mut Rng) -> (usize, Slot, usize) {
        let task = random.usize(0..self.spaces.len());
        let mapped: Vec<Slot> = self.model.spaces[task].keys().copied().collect();
        let size = random.usize(0..2);
        let slot = match random.u32(0..12) {
            1.. if !mapped.is_empty() => mapped[random.usize(0..mapped.len())],
            _ => (size, random.u64(0..PLACES[size])),
        };
        let block = [0, 0, 1, 3, 511, random.usize(0..512)][random.usize(0..6)] % (cells_of(slot.0) / 512);
        let at = [0, 1, 7, 8, 9, 511, random.usize(0..512)][random.usize(0..7)];
        (task, slot, block * 512 + at)
    }

    /// Some of the cells from a place on: a few, up to a border, whole blocks, or whole pages.
    fn piece(&self, random: &mut Rng) -> Piece {
        let (task, (size, slot), at) = self.draw(random);
        let len = cells_of(size);
        let first = slot as usize * len;
        let block = first + at / 512 * 512;
        let end = PLACES[size] as usize * len;
        let cells: Range<usize> = match random.u32(0..8) {
            0..3 => first + at..first + at + random.usize(1..20),
            3 => block..block + 512 * random.usize(1..4),
            4 => first + at..block + 512 * random.usize(1..3),
            5 => block..first + at + 1,
            _ => first..first + len,
        };
        Piece { task, size, cells: cells.start..cells.end.min(end) }
    }

    /// One or two whole pages.
    fn pages(&self, random: &mut Rng) -> Piece {
        let (task, (size, slot), _) = self.draw(random);
        let len = cells_of(size);
        let first = slot as usize;
        let end = (first + random.usize(1..3)).min(PLACES[size] as usize);
        Piece { task, size, cells: first * len..end * len }
    }

    fn step(&mut self, random: &mut Rng) {
        let (task, slot, at) = self.draw(random);
        let word = random.bool().then(|| random.u64(1..));
        let guest = task == 0 && random.bool();
        match random.u32(0..100) {
            0..8 => self.map_some(random),
            8..10 => self.unmap(&self.pages(random)),
            10..20 => self.split(&self.pages(random)),
            20..40 => self.access(task, slot, at, word, guest),
            40..46 => self.populate(task, slot, random.u32(0..3) == 0),
            46..60 => self.dont_need(&self.piece(random)),
            60..64 => self.protect(&self.pages(random), random.u32(0..3) > 0),
            64..72 => self.mark(random),
            72..74 if self.spaces.len() < SPACES => {
                self.poison_some(random, task);
                self.fork(task);
            }
            74 if task > 0 => self.exit(task),
            75..77 => self.remap(task, slot, random.u64(0..PLACES[slot.0])),
            77..89 => self.collapse_some(random),
            89..91 => self.lose(random),
            91..93 => self.cut(random),
            93..100 => self.answer(random),
            _ => {}
        }
    }

    fn map_some(&mut self, random: &mut Rng) {
        let (task, (size, slot), _) = self.draw(random);
        let first = random.u64(0..FILE[size]);
        let count = random.u64(1..3).min(FILE[size] - first).min(PLACES[size] - slot);
        let of = Mapping { size, first, writable: random.u32(0..5) > 0, noreserve: random.bool() };
        self.map(task, slot, count, &of);
        if random.u32(0..3) > 0 {
            let len = cells_of(size);
            let cells = slot as usize * len..(slot + count) as usize * len;
            self.split(&Piece { task, size, cells });
        }
    }

    fn mark(&mut self, random: &mut Rng) {
        let piece = self.piece(random);
        match random.u32(0..5) {
            0 => self.track(&piece, Space::clear_soft_dirty, |leaf| (leaf.write, leaf.soft) = (false, false)),
            1..3 => self
                .track(&piece, Space::write_protect_marked, |leaf| (leaf.write, leaf.marked) = (false, true)),
            _ => self.track(&piece, Space::remove_write_protect_marks, |leaf| leaf.marked = false),
        }
    }

    /// Collapses a piece, mostly after faulting in all that was missing or read-only; now and then with marks
    /// on all of it.
    fn collapse_some(&mut self, random: &mut Rng) {
        let piece = if random.bool() { self.piece(random) } else { self.pages(random) };
        let steps = if random.bool() { CollapseSteps::Staged } else { CollapseSteps::Direct };
        let blocks = piece.cells.start / 512 * 512..piece.cells.end.next_multiple_of(512);
        let piece = Piece { cells: blocks, ..piece };
        if random.u32(0..3) > 0 {
            for (slot, _) in Model::parts(piece.size, &piece.cells) {
                let writable = self.model.spaces[piece.task].get(&slot).is_some_and(|place| place.writable);
                self.populate(piece.task, slot, writable && random.u32(0..4) > 0);
            }
            match random.u32(0..4) {
                0 => self.track(&piece, Space::write_protect_marked, |leaf| {
                    (leaf.write, leaf.marked) = (false, true);
                }),
                1 => self.track(&piece, Space::remove_write_protect_marks, |leaf| leaf.marked = false),
                2 => self
                    .track(&piece, Space::clear_soft_dirty, |leaf| (leaf.write, leaf.soft) = (false, false)),
                _ => {}
            }
        }
        self.collapse(&piece, steps);
    }

    /// Truncates or extends the file, or punches a hole. Rarely for pages of 1 GiB, which take long to clear.
    fn cut(&mut self, random: &mut Rng) {
        let size = usize::from(random.u32(0..6) == 0);
        let bytes = HugeSize::ALL[size].bytes();
        let (start, end) = (random.u64(0..FILE[size]), FILE[size]);
        println!("cut {size} {start}");
        match random.u32(0..3) {
            0 => {
                self.files[size].truncate(start * bytes).unwrap();
                self.model.drop_pages(size, start..u64::MAX);
                self.model.files[size].size = start;
            }
            1 => {
                self.files[size].truncate(end * bytes).unwrap();
                self.model.drop_pages(size, end..u64::MAX);
                self.model.files[size].size = end;
            }
            _ => {
                let end = start + random.u64(1..=end - start);
                self.files[size].punch_hole(start * bytes..end * bytes).unwrap();
                self.model.drop_pages(size, start..end);
            }
        }
    }
}

fn lockstep(config: &Config, seed: u64, steps: u32) {
    println!("QUIRE_SEED={seed}, {config:?}");
    let bytes = (POOL[1] + 1) * GIB;
    let machine = HostedConfig::new(bytes).with_cpus(SPACES).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(&machine, &ranges_of(&machine), config).expect("a manager");
        let pools = manager.huge_pools();
        machine.set_kernel_root(pools.window().map(|window| window.root()));
        manager.pages().lists().drain_local();
        let used = || manager.meminfo().frames.used - pools.window().map_or(0, |window| window.frames());
        let before = used();
        for size in [1, 0] {
            let grown = pools.resize(manager.pages(), HugeSize::ALL[size], NodeSet::ALL, POOL[size]);
            assert_eq!(grown.after, POOL[size]);
        }
        let mm = manager.new_mm().expect("an address space");
        mm.register_secondary().keep();
        mm.switch_in();
        // A failure is reported by the first panic, not by a drop during unwinding.
        let mut both = ManuallyDrop::new(Both {
            machine: &machine,
            manager: &manager,
            nested: Nested::new(&machine, &mm, VirtAddr(FIRST[1]), GUEST, 1),
            model: Model { files: Default::default(), pools: POOL, spaces: vec![Places::new()] },
            spaces: vec![RealSpace { mm, cpu: CpuId(0) }],
            files: HugeSize::ALL.map(|size| manager.huge_file(size, 0).expect("memory for a file")),
        });
        let mut random = Rng::with_seed(seed);
        for step in 0..steps {
            both.step(&mut random);
            both.check();
            if step % 20 == 19 {
                both.check_all();
            }
        }
        (0..both.spaces.len()).rev().for_each(|task| both.exit(task));
        if config.allocator.counts == CountScheme::Dense {
            assert_eq!(manager.stat(Stat::NrMapCountPages), 0, "nothing is counted any more");
        }
        let Both { files, nested, .. } = ManuallyDrop::into_inner(both);
        drop((files, nested));
        for size in HugeSize::ALL {
            let pool = info(&manager, size);
            assert_eq!((pool.free, pool.reserved), (pool.total, 0), "all pages are back");
            let _ = pools.resize(manager.pages(), size, NodeSet::ALL, 0);
        }
        manager.pages().lists().drain_local();
        assert_eq!(manager.stat(Stat::NrMapCountPages), 0, "no memory for counts is left");
        assert_eq!(used(), before + manager.meminfo().bad, "frames were lost, or freed twice");
        manager.validate().expect("broken at the end");
        machine.assert_clean();
    });
}

/// A run of a configuration, of so many steps; thirty of 250 in a long run.
fn agree(descriptors: DescriptorPolicy, counts: CountScheme, steps: u32) {
    let allocator = AllocatorConfig { counts, ..AllocatorConfig::default() };
    let config = Config { allocator, descriptors, ..Config::default() };
    let first = seed(descriptors as u64 * 1000 + counts as u64 * 100);
    let steps = if long() { 250 } else { steps };
    for seed in first..first + runs(1) {
        lockstep(&config, seed, steps);
    }
}

#[test]
fn parts_and_model_agree() {
    agree(DescriptorPolicy::InBlock, CountScheme::Dense, 250);
}

#[test]
fn parts_and_model_agree_with_all_descriptors_there() {
    agree(DescriptorPolicy::Full, CountScheme::Dense, 100);
}

#[test]
fn parts_and_model_agree_over_a_window_page_by_page() {
    agree(DescriptorPolicy::PerPage, CountScheme::Dense, 100);
}

#[test]
fn parts_and_model_agree_over_a_window_in_batches() {
    agree(DescriptorPolicy::Batched, CountScheme::Dense, 100);
}

#[test]
fn parts_and_model_agree_with_a_number_for_each_frame() {
    agree(DescriptorPolicy::InBlock, CountScheme::PerFrame, 100);
    agree(DescriptorPolicy::Full, CountScheme::PerFrame, 100);
}
