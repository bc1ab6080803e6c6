//! No program sees what another one stored, whatever both of them, the kernel and idle CPUs do. Each word that a
//! program stores names the program. Memory that is new to a program must be zero, and later have its own words
//! only.

use fastrand::Rng;
use hosted::raw::{RawMachine, RawPages};
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order};
use quire::arch::Entry;
use quire::clear::Extent;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::page_alloc::{Contents, Gfp, Mobility, NodeSet};
use quire::platform::TouchHint;
use quire::stats::Stat;
use quire::vm::{
    Advice, AnswerMode, Backing, Collapser, File, FolioPolicy, MapRequest, OrderPolicy, Remap, Sharing,
    Splitter, UserfaultChanges, UserfaultModes,
};
use testkit::{Stress, long, order, ranges_of, seed};

use super::support::{BASE, MIB, PAGE, at, config, promise, unverified};
use crate::hugetlb::world::{HUGE, private};
use crate::vm::world::{Manager, R, RW, Space, anonymous, load, store};

/// A program has this many regions of so many bytes, each in an area of its own.
const REGIONS: u64 = 3;
const REGION: u64 = 4 * MIB;
const AREA: u64 = 1 << 30;

/// The program of words that the kernel stores.
const KERNEL: u64 = 0xfff;

/// Words of a page, at its ends and between. Each page that is stored to gets one of them, and all of them are loaded of each
/// page that is new: a page that was not cleared is seen for certain.
const SPOTS: [u64; 6] = [0, 101, 203, 307, 409, 511];

/// A program on one CPU, with memory of its own, a file of its own, and the kernel's calls that it makes beside.
struct Program<'t, 'm> {
    machine: &'t Hosted,
    manager: &'t Manager<'m>,
    file: &'t File<'t, Hosted>,
    name: u64,
    rng: Rng,
    collapser: Collapser,
}

impl Program<'_, '_> {
    /// A part of a region, in pages or in whole blocks.
    fn part(&mut self) -> (u64, u64) {
        let region = BASE + self.rng.u64(..REGIONS) * AREA;
        let unit = if self.rng.bool() { HUGE } else { PAGE };
        let units = REGION / unit;
        let from = self.rng.u64(..units);
        let len = self.rng.u64(1..=(units - from).min(600));
        (region + from * unit, len * unit)
    }

    fn word(&mut self) -> u64 {
        self.name << 48 | self.rng.u64(1..1 << 48)
    }

    fn spot(&mut self) -> u64 {
        SPOTS[self.rng.usize(..SPOTS.len())]
    }

    /// Stores two words to each of some pages. A page that came by a fault has nothing but zeroes beside them.
    fn scribble(&mut self, mm: &Space<'_>, from: u64, len: u64) {
        let sparse = self.rng.u64(1..4);
        for page in
            (from..from + len).step_by(PAGE as usize).filter(|page| (page / PAGE).is_multiple_of(sparse))
        {
            for at in [self.spot(), self.rng.u64(..512)] {
                let word = self.word();
                store(self.machine, mm, page + at * 8, word).unwrap();
            }
            for at in SPOTS {
                let found = load(self.machine, mm, page + at * 8).unwrap();
                assert!(found == 0 || found >> 48 == self.name, "program {}: {found:#x}", self.name);
            }
        }
    }

    /// Loads words of a range: all of two pages, and those of [`SPOTS`] and another of each page.
    fn look(&mut self, mm: &Space<'_>, from: u64, len: u64, is_good: impl Fn(u64) -> bool) {
        let whole = [self.rng.u64(..len / PAGE), self.rng.u64(..len / PAGE)];
        for page in 0..len / PAGE {
            let other = self.rng.u64(..512);
            let some = SPOTS.into_iter().chain([other]);
            let all = 0..if whole.contains(&page) { 512 } else { 0 };
            for word in some.chain(all) {
                let addr = from + page * PAGE + word * 8;
                let found = load(self.machine, mm, addr).unwrap();
                assert!(is_good(found), "program {}: {found:#x} at {addr:#x}", self.name);
            }
        }
    }

    /// New memory: it must be zero.
    fn is_new(&mut self, mm: &Space<'_>, from: u64, len: u64) {
        if self.rng.bool() {
            mm.madvise(at(from), len, Advice::PopulateWrite).unwrap();
        }
        self.look(mm, from, len, |word| word == 0);
    }

    fn is_own(&mut self, mm: &Space<'_>, from: u64, len: u64) {
        let name = self.name;
        self.look(mm, from, len, |word| word == 0 || word >> 48 == name);
    }

    fn map(&mut self, mm: &Space<'_>, addr: u64, len: u64) {
        mm.mmap(&anonymous(addr, len)).unwrap();
        self.is_new(mm, addr, len);
    }

    fn step(&mut self, mm: &Space<'_>) {
        let (addr, len) = self.part();
        match self.rng.u8(..18) {
            0..3 => {
                self.map(mm, addr, len);
                self.scribble(mm, addr, len);
            }
            3 => self.map(mm, addr, len),
            4 => mm.munmap(at(addr), len).unwrap(),
            5 => {
                self.map(mm, addr, len);
                self.scribble(mm, addr, len);
                mm.madvise(at(addr), len, Advice::DontNeed).unwrap();
                self.is_new(mm, addr, len);
            }
            6 => {
                self.map(mm, addr, len);
                mm.madvise(at(addr), len, Advice::Free).unwrap();
                self.scribble(mm, addr, len);
                mm.madvise(at(addr), len, Advice::Free).unwrap();
                self.manager.reclaim();
                self.is_own(mm, addr, len);
            }
            7 => self.fork(mm, addr, len),
            8 => {
                self.map(mm, addr, len);
                self.scribble(mm, addr, len);
                let to = addr ^ 1 << 33;
                mm.mremap(at(addr), len, len, Remap::Fixed(at(to))).unwrap();
                mm.mprotect(at(to), len, R).unwrap();
                mm.mprotect(at(to), len, RW).unwrap();
                self.is_own(mm, to, len);
                mm.munmap(at(to), len).unwrap();
            }
            9 => {
                let extent = addr & !(HUGE - 1);
                mm.mmap(&anonymous(extent, HUGE)).unwrap();
                self.scribble(mm, extent, HUGE);
                let _ = mm.madvise(at(extent), HUGE, Advice::Collapse);
                self.manager.collapse_ahead(&mut self.collapser);
                self.is_own(mm, extent, HUGE);
            }
            10 => _ = self.manager.split_underused(&mut Splitter::new(0), 4),
            11 => self.answers(mm, addr, len),
            12 => self.shared(mm, addr),
            13 => self.pool(mm, addr),
            14 => _ = self.manager.clear_ahead() || self.manager.zero_ahead(),
            15 => self.manager.pages().lists().drain_all(),
            _ => self.kernel(),
        }
    }

    fn fork(&mut self, mm: &Space<'_>, addr: u64, len: u64) {
        self.map(mm, addr, len);
        if self.rng.bool() {
            self.scribble(mm, addr, len);
        }
        let child = mm.fork().unwrap();
        mm.switch_out();
        child.switch_in();
        self.is_own(&child, addr, len);
        self.scribble(&child, addr, len);
        child.switch_out();
        child.exit();
        mm.switch_in();
        self.is_own(mm, addr, len);
    }

    /// A handler answers before the program asks.
    fn answers(&mut self, mm: &Space<'_>, addr: u64, len: u64) {
        mm.mmap(&anonymous(addr, len)).unwrap();
        let handler = self.manager.userfault(UserfaultChanges::NONE).unwrap();
        mm.userfault_register(&handler, at(addr), len, UserfaultModes::MISSING).unwrap();
        let half = len / PAGE / 2 * PAGE;
        let word = self.word();
        let copied = mm.userfault_copy(at(addr), half, AnswerMode::WAKE, |_, bytes| {
            bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|to| *to = word.to_le_bytes());
        });
        assert!(half == 0 || copied.all() == Ok(half));
        assert_eq!(
            mm.userfault_zeropage(at(addr + half), len - half, AnswerMode::WAKE).all(),
            Ok(len - half)
        );
        mm.userfault_unregister(at(addr), len).unwrap();
        handler.close();
        self.look(mm, addr + half, len - half, |word| word == 0);
        self.is_own(mm, addr, len);
        self.scribble(mm, addr, len);
    }

    /// The program's file: what was cut off is zero when it comes back.
    fn shared(&mut self, mm: &Space<'_>, addr: u64) {
        let (addr, backing) = (addr & !(HUGE - 1), Backing::File { file: self.file, page_offset: 0 });
        let sharing = if self.rng.bool() { Sharing::Shared } else { Sharing::Private };
        mm.mmap(&MapRequest { sharing, backing, ..anonymous(addr, HUGE) }).unwrap();
        self.is_own(mm, addr, HUGE);
        self.scribble(mm, addr, HUGE);
        let end = self.rng.u64(..HUGE);
        self.file.truncate(end).unwrap();
        self.file.truncate(HUGE).unwrap();
        let from = end.next_multiple_of(PAGE);
        if from < HUGE {
            self.is_new(mm, addr + from, HUGE - from);
        }
        mm.munmap(at(addr), HUGE).unwrap();
    }

    /// Changes the size of the pool, and uses its pages.
    fn pool(&mut self, mm: &Space<'_>, addr: u64) {
        let wanted = self.rng.u64(..5);
        let pages = self.manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, wanted).after;
        let (used, addr) = (self.rng.u64(..=pages), addr & !(HUGE - 1) ^ 1 << 33);
        if used > 0 && mm.mmap(&private(addr, used)).is_ok() {
            self.look(mm, addr, used * HUGE, |word| word == 0);
            self.scribble(mm, addr, used * HUGE);
            mm.munmap(at(addr), used * HUGE).unwrap();
        }
    }

    /// The kernel allocates, checks what it gets as zeroes, stores to it, and frees it.
    fn kernel(&mut self) {
        let pages = self.manager.pages();
        let mobility = Mobility::ALL[self.rng.usize(..3)];
        let gfp = Gfp { mobility, ..if self.rng.bool() { Gfp::USER.for_zeroes() } else { Gfp::USER } };
        match self.rng.u8(..6) {
            0 => {
                let folio = order([0, 0, 1, 3, 6, 8, 9][self.rng.usize(..7)]);
                let Ok((frame, contents)) = pages.alloc_maybe_zeroed_raw(gfp, folio) else { return };
                if contents == Contents::Zeroed && self.rng.bool() {
                    return pages.free_zeroed_raw(frame, folio).unwrap();
                }
                self.soil(FrameRange::folio(frame, folio));
                pages.free_raw(frame, folio).unwrap();
            }
            1 => {
                let frames = self.rng.u64(1..700);
                let Ok(run) = pages.alloc_exact(gfp, frames) else { return };
                self.soil(run.frames());
                assert!(pages.free_range(run).is_ok());
            }
            2 => {
                let start = self.frame();
                let Ok(run) = pages.alloc_at(FrameRange::new(start, self.rng.u64(1..600))) else { return };
                self.soil(run.frames());
                assert!(pages.free_range(run).is_ok());
            }
            3 => {
                let Ok(run) = self.manager.alloc_contig(gfp, self.rng.u32(1..3), 1) else { return };
                self.soil(run.frames());
                assert!(pages.free_contig(run).is_ok());
            }
            4 => _ = self.manager.compact(NodeSet::ALL),
            _ => {
                let range = FrameRange::folio(self.frame().block().first_frame(), Order::BLOCK);
                if self.manager.remove_memory(range).is_err() {
                    return;
                }
                self.soil(range);
                let zeroed = self.rng.bool();
                if zeroed {
                    pages.clear_extent_raw(&Extent::new(range, TouchHint::Later)).unwrap();
                }
                pages.add_memory_raw(range, zeroed).unwrap();
            }
        }
    }

    fn frame(&mut self) -> Frame {
        let range = &ranges_of(self.machine)[0].frames;
        range.start.add(self.rng.u64(..range.count - 600))
    }

    /// The kernel stores to frames that it owns.
    fn soil(&mut self, frames: FrameRange) {
        for at in frames.start.0..frames.end().0 {
            let word = KERNEL << 48 | self.rng.u64(1..1 << 48);
            let index = self.spot() as usize;
            self.machine.store_entry_raw(Frame(at), index, Entry::from_bits(word));
        }
    }
}

fn run_program(machine: &Hosted, manager: &Manager<'_>, name: u64, seed: u64, goes_on: impl Fn(u64) -> bool) {
    let file = manager.shmem(HUGE).unwrap();
    let mm = manager.new_mm().unwrap();
    mm.switch_in();
    let rng = Rng::with_seed(seed.wrapping_add(name));
    let mut program = Program { machine, manager, file: &file, name, rng, collapser: Collapser::default() };
    (0..).take_while(|&round| goes_on(round)).for_each(|_| program.step(&mm));
    mm.validate().unwrap();
    mm.switch_out();
    mm.exit();
    drop(file);
}

/// Folios of 4 KiB alone, with those of a drawn order, and with those of 2 MiB: each has faults of its own.
fn policies(rng: &mut Rng) -> [FolioPolicy; 3] {
    let small = FolioPolicy::FRAMES.with(order(rng.u8(1..=8)), OrderPolicy::Always);
    [FolioPolicy::FRAMES, small, small.with(order(9), OrderPolicy::Always)]
}

/// Runs programs side by side, two for each CPU in turn.
fn programs<G: Fn(u64) -> bool>(
    cpus: usize,
    folios: FolioPolicy,
    seed: u64,
    verify: bool,
    begin: impl Fn() -> G + Sync,
) {
    let config = if verify { config(folios) } else { unverified(folios) };
    let machine =
        HostedConfig::new(64 * MIB * cpus as u64).with_cpus(cpus).watching_clears().build().unwrap();
    promise(&machine);
    let manager = machine
        .run_on(CpuId(0), || hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).unwrap());
    machine.spawn_cpus(cpus, |cpu| {
        for turn in 0..2 {
            run_program(&machine, &manager, 1 + 2 * u64::from(cpu.0) + turn, seed, begin());
        }
        manager.pages().lists().drain_local();
    });
    machine.run_on(CpuId(0), || {
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
        manager.validate().unwrap();
        manager.pages().verify_zeroes().unwrap();
        assert!(manager.stat(Stat::PgzeroKnown) > 100, "{}", manager.stat(Stat::PgzeroKnown));
    });
    machine.assert_clean();
}

#[test]
fn one_program_after_the_other() {
    for seed in seed(1)..seed(1) + 2 {
        println!("QUIRE_SEED={seed}");
        for folios in policies(&mut Rng::with_seed(seed)) {
            programs(1, folios, seed, seed % 2 == 0, || |round| round < 80);
        }
    }
}

/// Each policy for a fixed number of rounds. Leaks that were planted in drains, in idle clearing, in large faults and in those
/// of 4 KiB were seen.
#[test]
fn programs_on_three_cpus() {
    let first = seed(fastrand::u64(..1 << 40));
    println!("QUIRE_SEED={first}");
    for folios in policies(&mut Rng::with_seed(first)) {
        programs(3, folios, first, false, || {
            let stress = Stress::begin();
            move |round| round < 12 || long() && stress.goes_on(|| true)
        });
    }
}
