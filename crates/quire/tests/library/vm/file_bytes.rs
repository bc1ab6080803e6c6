//! Files that are read and written by calls while they are mapped.

use std::time::Instant;

use fastrand::Rng;
use hosted::{FailurePlan, Hosted, HostedConfig, SyntheticFiles};
use quire::addr::VirtAddr;
use quire::error::MmError;
use quire::platform::FileId;
use quire::vm::{Backing, File, MapRequest, Sharing};

use crate::vm::world::{MIB, Manager, Space, anonymous, load, run, small, store, with_manager};
use testkit::{seed, stress_time};

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;
const PAGES: u64 = 48;
const NAME: FileId = FileId(5);

fn map(mm: &Space<'_>, at: u64, file: &File<'_, Hosted>, sharing: Sharing) {
    let backing = Backing::File { file, page_offset: 0 };
    mm.mmap(&MapRequest { sharing, backing, ..anonymous(at, PAGES * PAGE) }).expect("memory");
}

fn open<'m>(machine: &Hosted, manager: &'m Manager<'_>, paged: bool, bytes: u64) -> File<'m, Hosted> {
    machine.files().set_size(NAME, bytes);
    if paged { manager.open(NAME) } else { manager.shmem(bytes) }.expect("memory")
}

/// What a file should contain.
struct Model {
    bytes: Vec<u8>,
    size: usize,
}

impl Model {
    fn new(paged: bool, size: usize) -> Self {
        let pristine = |offset: usize| SyntheticFiles::pristine_byte(NAME, offset as u64);
        let byte = |offset: usize| if paged && offset < size { pristine(offset) } else { 0 };
        Self { bytes: (0..(PAGES * PAGE) as usize).map(byte).collect(), size }
    }

    fn resize(&mut self, size: usize) {
        self.bytes[size..].fill(0);
        self.size = size;
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.size = self.size.max(offset + bytes.len());
    }

    fn word(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes[offset..offset + 8].try_into().expect("eight bytes"))
    }
}

struct Scene<'a, 'm> {
    machine: &'a Hosted,
    manager: &'a Manager<'m>,
    mm: &'a Space<'a>,
    file: &'a File<'a, Hosted>,
    model: Model,
    rng: Rng,
}

impl Scene<'_, '_> {
    fn offset(&mut self) -> usize {
        // Near the ends of pages, and near the end of the file, more often than elsewhere.
        let page = self.rng.usize(..PAGES as usize) * PAGE as usize;
        match self.rng.u32(..4) {
            0 => page,
            1 => page + PAGE as usize - self.rng.usize(1..9),
            2 => self.model.size.min((PAGES * PAGE) as usize - 1),
            _ => page + self.rng.usize(..PAGE as usize),
        }
    }

    fn span(&mut self) -> (usize, usize) {
        let offset = self.offset();
        let most = (PAGES * PAGE) as usize - offset;
        let len = if self.rng.bool() { self.rng.usize(..20) } else { self.rng.usize(..3 * PAGE as usize) };
        (offset, len.min(most))
    }

    fn step(&mut self, paged: bool) {
        match self.rng.u32(..10) {
            0..=2 => self.read(),
            3..=4 => self.write(),
            5 => self.store(),
            6 => self.load(),
            7 => {
                let size = self.offset();
                self.file.truncate(size as u64).expect("the pager works");
                self.model.resize(size);
            }
            8 if !paged => self.punch(),
            8 => self.file.sync().expect("the pager works"),
            _ => drop(self.manager.reclaim()),
        }
        assert_eq!(self.file.size(), self.model.size as u64);
    }

    fn read(&mut self) {
        let (offset, len) = self.span();
        let mut got = vec![0xaa; len];
        let count = self.file.read_at(offset as u64, &mut got).expect("memory");
        assert_eq!(count, len.min(self.model.size.saturating_sub(offset)));
        assert_eq!(got[..count], self.model.bytes[offset..offset + count]);
        assert!(got[count..].iter().all(|byte| *byte == 0xaa), "bytes behind the end stay");
    }

    fn write(&mut self) {
        let (offset, len) = self.span();
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.u8(..)).collect();
        assert_eq!(self.file.write_at(offset as u64, &bytes), Ok(len));
        if len > 0 {
            self.model.write(offset, &bytes);
        }
    }

    fn punch(&mut self) {
        let (offset, len) = self.span();
        let done = self.file.punch_hole(offset as u64..(offset + len) as u64);
        assert_eq!(done.is_ok(), len > 0);
        self.model.bytes[offset..offset + len].fill(0);
        for at in [offset, offset + len] {
            let data = self.file.next_data(at as u64).map_or(self.model.size, |data| data as usize);
            let passed = self.model.bytes.get(at..data).unwrap_or(&[]);
            assert!(passed.iter().all(|byte| *byte == 0), "data was taken for a hole");
            let hole = self.file.next_hole(at as u64).map(|hole| hole as usize);
            assert_eq!(hole.is_some(), at < self.model.size);
            if let Some(hole) = hole.filter(|hole| *hole < self.model.size) {
                let end = (hole / PAGE as usize + 1) * PAGE as usize;
                assert!(self.model.bytes[hole..end].iter().all(|byte| *byte == 0), "a hole has data");
            }
        }
    }

    fn store(&mut self) {
        let (offset, value) = (self.offset() & !7, self.rng.u64(..));
        if offset + 8 <= self.model.size {
            let at = BASE + self.rng.u64(..2) * MIB + offset as u64;
            store(self.machine, self.mm, at, value).expect("mapped");
            self.model.write(offset, &value.to_le_bytes());
        }
    }

    fn load(&mut self) {
        let offset = self.offset() & !7;
        if offset + 8 <= self.model.size {
            let at = BASE + self.rng.u64(..2) * MIB + offset as u64;
            assert_eq!(load(self.machine, self.mm, at), Ok(self.model.word(offset)));
            let mut resident = [false];
            self.mm.mincore(VirtAddr(at & !(PAGE - 1)), &mut resident).expect("mapped");
            assert!(resident[0]);
        }
    }
}

/// Calls and two mappings see the same bytes as a vector.
#[test]
fn calls_and_mappings_agree_with_a_vector() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    for (round, paged) in (0..8).flat_map(|round| [(round, false), (round, true)]) {
        small(|machine, manager| {
            let size = 10 * PAGE + 100;
            let file = open(machine, manager, paged, size);
            run(manager, |mm| {
                map(mm, BASE, &file, Sharing::Shared);
                map(mm, BASE + MIB, &file, Sharing::Shared);
                let model = Model::new(paged, size as usize);
                let rng = Rng::with_seed(first.wrapping_add(round));
                let mut scene = Scene { machine, manager, mm, file: &file, model, rng };
                (0..400).for_each(|_| scene.step(paged));
            });
        });
    }
}

/// A write that finds no memory says how much it wrote, and the file is exactly that much longer.
#[test]
fn a_write_without_memory_is_short() {
    for paged in [false, true] {
        let mut short = 0;
        for nth in 0.. {
            let mut done = false;
            small(|machine, manager| {
                let file = open(machine, manager, paged, 100);
                machine.set_failures(FailurePlan::From(nth));
                let written = file.write_at(50, &[7; 70 * PAGE as usize]);
                done = machine.allocations_failed() == 0;
                machine.set_failures(FailurePlan::Off);
                let count = written.unwrap_or_else(|error| {
                    assert_eq!(error, MmError::NoMemory);
                    0
                });
                short += u32::from(!done);
                assert_eq!(done, count == 70 * PAGE as usize);
                assert_eq!(file.size(), 100.max(if count > 0 { 50 + count as u64 } else { 0 }));
                let mut got = vec![0; 71 * PAGE as usize];
                let read = file.read_at(50, &mut got).expect("memory");
                assert!(got[..count].iter().all(|byte| *byte == 7));
                assert_eq!(read as u64, file.size() - 50);
                assert!(file.resident() <= file.size().div_ceil(PAGE), "pages behind the end");
            });
            if done {
                break;
            }
        }
        assert!(short > 3, "only {short} allocations");
    }
}

/// Reads of pages that are missing allocate for the pager, and not for holes.
#[test]
fn a_read_without_memory_changes_nothing() {
    small(|machine, manager| {
        let (paged, holes) = (open(machine, manager, true, 4 * PAGE), manager.shmem(4 * PAGE).unwrap());
        let mut got = [1; 64];
        machine.set_failures(FailurePlan::From(0));
        assert_eq!(paged.read_at(PAGE, &mut got), Err(MmError::NoMemory));
        assert_eq!((holes.read_at(PAGE, &mut got), got), (Ok(64), [0; 64]));
        machine.set_failures(FailurePlan::Off);
        assert_eq!((paged.resident(), holes.resident()), (0, 0));
        machine.files().set_read_failures(FailurePlan::Nth(0));
        assert_eq!(paged.read_at(PAGE, &mut got), Err(MmError::Io));
        machine.files().set_read_failures(FailurePlan::Off);
        assert_eq!(paged.read_at(PAGE, &mut got), Ok(64));
        let pristine: [u8; 64] =
            std::array::from_fn(|at| SyntheticFiles::pristine_byte(NAME, PAGE + at as u64));
        assert_eq!(got, pristine);
    });
}

#[test]
fn a_pager_that_cannot_resize_takes_no_bytes_behind_the_end() {
    small(|machine, manager| {
        let file = open(machine, manager, true, 100);
        machine.files().set_write_failures(FailurePlan::From(0));
        assert_eq!(file.write_at(90, &[1; 20]), Err(MmError::Io));
        assert_eq!(file.write_at(80, &[1; 20]), Ok(20), "the file is as long already");
        machine.files().set_write_failures(FailurePlan::Off);
        assert_eq!((file.size(), file.dirty()), (100, 1));
        assert_eq!(file.write_at(u64::MAX - 3, &[1; 20]), Err(MmError::Overflow));
    });
}

#[test]
fn written_bytes_reach_the_pager() {
    small(|machine, manager| {
        let file = open(machine, manager, true, 100);
        assert_eq!(file.write_at(3 * PAGE - 4, &[9; 8]), Ok(8));
        file.sync().unwrap();
        assert_eq!(file.dirty(), 0);
        let pages: Vec<u64> = machine.files().written_pages(NAME).iter().map(|(page, _)| *page).collect();
        assert_eq!(pages, [2, 3]);
        run(manager, |mm| {
            map(mm, BASE, &file, Sharing::Shared);
            store(machine, mm, BASE + 8, 1).unwrap();
            assert_eq!(mm.msync(VirtAddr(BASE + 1), PAGE), Err(MmError::Invalid));
            assert_eq!(mm.msync(VirtAddr(BASE - PAGE), 2 * PAGE), Err(MmError::NoMemory));
            assert_eq!(file.dirty(), 0, "what is mapped was written");
            assert_eq!(mm.mincore(VirtAddr(BASE - PAGE), &mut [false; 2]), Err(MmError::NoMemory));
        });
    });
}

/// A hole takes the file's pages from mappings, but not a private copy.
#[test]
fn a_hole_leaves_private_copies() {
    small(|machine, manager| {
        let file = manager.shmem(PAGES * PAGE).unwrap();
        run(manager, |mm| {
            map(mm, BASE, &file, Sharing::Shared);
            map(mm, BASE + MIB, &file, Sharing::Private);
            (0..8).for_each(|page| store(machine, mm, BASE + page * PAGE, 1).unwrap());
            store(machine, mm, BASE + MIB + PAGE, 2).unwrap();
            file.punch_hole(0..4 * PAGE).unwrap();
            assert_eq!((file.resident(), mm.rss().shmem, mm.rss().anon), (4, 4, 1));
            assert_eq!(load(machine, mm, BASE + PAGE), Ok(0));
            assert_eq!(load(machine, mm, BASE + MIB + PAGE), Ok(2));
            assert_eq!(
                (file.next_data(2 * PAGE + 1), file.next_hole(2 * PAGE + 1)),
                (Some(4 * PAGE), Some(2 * PAGE + 1))
            );
            file.allocate(2 * PAGE..PAGES * PAGE + 1).unwrap();
            assert_eq!((file.size(), file.next_hole(2 * PAGE)), (PAGES * PAGE + 1, Some(PAGES * PAGE + 1)));
            assert_eq!(file.allocate(0..u64::MAX), Err(MmError::Overflow));
        });
    });
}

/// A fill that finds no memory leaves no page behind the end.
#[test]
fn a_fill_without_memory_keeps_the_size() {
    small(|machine, manager| {
        let file = manager.shmem(PAGE).unwrap();
        machine.set_failures(FailurePlan::From(5));
        assert_eq!(file.allocate(0..PAGES * PAGE), Err(MmError::NoMemory));
        machine.set_failures(FailurePlan::Off);
        assert_eq!((file.size(), file.resident()), (PAGE, 1));
    });
}

const CPUS: usize = 4;

/// Words are whole, however calls, mappings, truncations and holes meet.
#[test]
fn calls_meet_mappings_and_truncations() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    for paged in [false, true] {
        with_manager(HostedConfig::new(64 * MIB).with_cpus(CPUS), |machine, manager| {
            let file = open(machine, manager, paged, 0);
            let mm = manager.new_mm().expect("memory");
            map(&mm, BASE, &file, Sharing::Shared);
            let end = Instant::now() + stress_time();
            machine.spawn_cpus(CPUS, |cpu| {
                let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
                mm.switch_in();
                while Instant::now() < end {
                    use_bytes(machine, manager, &mm, &file, &mut rng);
                }
                mm.switch_out();
                manager.pages().lists().drain_local();
            });
            mm.validate().expect("broken address space");
            file.truncate(0).expect("the pager works");
            assert_eq!((file.resident(), mm.rss().file + mm.rss().shmem), (0, 0));
            mm.exit();
        });
    }
}

fn use_bytes(
    machine: &Hosted,
    manager: &Manager<'_>,
    mm: &Space<'_>,
    file: &File<'_, Hosted>,
    rng: &mut Rng,
) {
    let offset = rng.u64(..PAGES) * PAGE + rng.u64(..PAGE / 8) * 8;
    let len = (rng.usize(1..1000) * 8).min((PAGES * PAGE - offset) as usize);
    match rng.u32(..8) {
        0 => file.truncate(offset).expect("the pager works"),
        1 => drop(file.punch_hole(offset..offset + len as u64)),
        2 => drop(manager.reclaim()),
        3 => drop(store(machine, mm, BASE + offset, u64::from(rng.u8(..)) * 0x0101_0101_0101_0101)),
        4..=5 => assert_eq!(file.write_at(offset, &vec![rng.u8(..); len]), Ok(len)),
        _ => {
            let mut got = vec![0; len];
            let count = file.read_at(offset, &mut got).expect("memory");
            let (words, rest) = got[..count].as_chunks::<8>();
            assert!(rest.is_empty(), "the size is a multiple of eight");
            assert!(words.iter().all(|word| *word == [word[0]; 8]), "a torn word");
        }
    }
}
