//! A page of 1 GiB in parts on several CPUs at once: faults, stores, unmapping, truncation, and collapses of
//! both kinds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig, Nested, VirtualCpu};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::NodeSet;
use quire::stats::Stat;
use quire::vm::Sharing::Shared;
use quire::vm::{Access, Advice, CollapseSteps, File};

use crate::hugetlb::world::{BASE, HUGE, Manager, Space, info, load, of_file};
use testkit::{ranges_of, seed, stress_time};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// The page that is cut off and mapped anew; the page before it stays.
const CUT: u64 = BASE + GIB;
/// Words that are incremented, in as many 4 KiB pages of the first page.
const WORDS: u64 = 64;

struct Scene<'s, 'm> {
    machine: &'s Hosted,
    mm: &'s Space<'m>,
    file: &'s File<'m, Hosted>,
    /// A guest that can access both pages.
    guest: &'s Nested<'m>,
}

/// In three blocks, including the last pages of the last one.
fn word(at: u64) -> u64 {
    let block = [0, 5, 511][at as usize % 3];
    BASE + block * HUGE + (512 - WORDS + at) * PAGE + at * 8
}

impl Scene<'_, '_> {
    fn map(&self, at: u64, page: u64) {
        let made = self.mm.mmap(&of_file(self.file, Shared, at, (page * GIB / HUGE, GIB / HUGE)));
        made.expect("as many pages are in the pool");
        self.mm.madvise(VirtAddr(at), GIB, Advice::Split).expect("it is mapped");
    }

    /// Increments a word of the page that stays, or reads one of the other.
    fn touch(&self, cpu: &VirtualCpu<'_, '_>, random: &mut Rng, sums: &[AtomicU64]) {
        if random.u32(0..4) == 0 {
            let at = VirtAddr(CUT + random.u64(0..8) * HUGE + random.u64(0..512) * PAGE);
            let access = if random.bool() { Access::Write } else { Access::Read };
            let done = if random.bool() {
                cpu.load(self.mm, at.0 - BASE).map(drop)
            } else {
                self.mm.fault(at, access).map(drop)
            };
            match done {
                Ok(_) | Err(FaultError::BeyondEnd | FaultError::NotMapped | FaultError::NoHugePage) => {}
                Err(error) => panic!("{error:?}"),
            }
            return;
        }
        let at = random.u64(0..WORDS);
        if random.bool() {
            // By a virtual CPU, through second-stage tables.
            cpu.fetch_add(self.mm, word(at) - BASE, 1).expect("it stays mapped");
            sums[at as usize].fetch_add(1, Ordering::Relaxed);
            return;
        }
        while self.machine.fetch_add(VirtAddr(word(at)), 1).is_err() {
            self.mm.fault(VirtAddr(word(at)), Access::Write).expect("it stays mapped");
        }
        sums[at as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Drops parts of both pages, truncates the file, or maps the second page anew.
    fn upset(&self, random: &mut Rng) {
        // Long enough that pages are whole now and then.
        std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        match random.u32(0..64) {
            0 => {
                self.file.truncate(GIB).expect("whole pages");
                self.file.truncate(2 * GIB).expect("whole pages");
            }
            1 | 2 => {
                self.mm.munmap(VirtAddr(CUT), GIB).expect("whole pages");
                self.map(CUT, 1);
            }
            _ => {
                let near = word(random.u64(0..WORDS)) / PAGE * PAGE;
                let at = if random.bool() { near } else { CUT + (near - BASE) };
                let len = random.u64(1..4).min((BASE + GIB - near) / PAGE);
                match self.mm.madvise(VirtAddr(at), len * PAGE, Advice::DontNeed) {
                    Ok(()) | Err(MmError::NoMemory) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    }

    /// Populates and collapses both pages. Returns how many leaves of 1 GiB that made.
    fn collapse(&self, steps: CollapseSteps) -> u64 {
        for at in [BASE, CUT] {
            _ = self.mm.madvise(VirtAddr(at), GIB, Advice::PopulateWrite);
        }
        self.mm.collapse_in(VirtAddr(BASE), 2 * GIB, steps).map_or(0, |done| done.gigantic)
    }
}

/// No store is lost, no count is left, and every page is free again (invariants 2, 3, 5 and 11).
#[test]
fn one_gigantic_page_is_collapsed_by_one_and_taken_apart_by_others() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    let machine = HostedConfig::new(3 * GIB).with_cpus(3).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager: Manager<'_> =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default())
                .expect("a manager");
        let pools = manager.huge_pools();
        assert_eq!(pools.resize(manager.pages(), HugeSize::Size1G, NodeSet::ALL, 2).after, 2);
        let file = manager.huge_file(HugeSize::Size1G, 2 * GIB).expect("memory for a file");
        let mm = manager.new_mm().expect("an address space");
        let registered = mm.register_secondary();
        let guest = Nested::new(&machine, &mm, VirtAddr(BASE), 2 * GIB, 1);
        let scene = Scene { machine: &machine, mm: &mm, file: &file, guest: &guest };
        scene.map(BASE, 0);
        scene.map(CUT, 1);
        let sums: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let (over, made) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
        machine.spawn_cpus(3, |cpu| {
            mm.switch_in();
            let mut random = Rng::with_seed(first.wrapping_add(cpu.0.into()));
            let guest = (cpu.0 == 0).then(|| scene.guest.cpu(0));
            let end = Instant::now() + stress_time();
            while !over.load(Ordering::Relaxed) {
                match cpu.0 {
                    0 => {
                        guest.iter().for_each(|guest| scene.touch(guest, &mut random, &sums));
                    }
                    1 => scene.upset(&mut random),
                    _ => {
                        for (steps, made) in
                            [CollapseSteps::Staged, CollapseSteps::Direct].into_iter().zip(&made)
                        {
                            made.fetch_add(scene.collapse(steps), Ordering::Relaxed);
                        }
                        let any = made.iter().any(|made| made.load(Ordering::Relaxed) > 0);
                        let late = Instant::now() > end + 10 * stress_time();
                        over.store(late || any && Instant::now() > end, Ordering::Relaxed);
                    }
                }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        let made = made.map(AtomicU64::into_inner);
        println!("{made:?} pages of 1 GiB were put together in stages, and directly");
        mm.switch_in();
        for (at, sum) in sums.iter().enumerate() {
            assert_eq!(load(&machine, &mm, word(at as u64)), Ok(sum.load(Ordering::Relaxed)), "word {at}");
        }
        // Pages that are in parts now can be collapsed, as no other CPU interferes.
        while scene.collapse(CollapseSteps::Direct) > 0 {}
        assert_eq!(machine.leaves(mm.root()).len(), 2);
        mm.switch_out();
        guest.check();
        println!("{} copies of the guest became larger", guest.stats().collapses);
        drop(guest);
        drop(registered);
        mm.validate().expect("broken address space");
        mm.exit();
        drop(file);
        assert_eq!(manager.stat(Stat::NrMapCountPages), 0, "nothing is counted any more");
        let pool = info(&manager, HugeSize::Size1G);
        assert_eq!((pool.total, pool.free, pool.reserved), (2, 2, 0));
        manager.validate().expect("broken at the end");
        machine.assert_clean();
        assert!(made[0] + made[1] > 0, "nothing was ever put together");
    });
}
