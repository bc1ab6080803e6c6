//! Random moves among random verbs: every page of every address space and file keeps its bytes.

use std::collections::BTreeMap;

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::{BlockNumber, FrameRange, Order, VirtAddr};
use quire::page_alloc::Gfp;
use quire::vm::{Advice, Backing, File, FolioPolicy, MapRequest, OrderPolicy, Remap, Sharing};

use crate::migrate::support::{PAGE, find_frame, head_of};
use crate::migrate::world::{FORKS, MIB, Manager, Space, anonymous, load, store, with_forks};
use testkit::{order, seed};

const BASE: u64 = 0x4000_0000;
/// Pages of the window that all verbs work in, and of the file that is mapped beside it.
const WINDOW: u64 = 3 * 512;
const SHARED: u64 = 128;
const SHARED_AT: u64 = 2 * BASE;
const STEPS: u32 = 300;

/// An address space, and the contents of each of its private pages.
struct Child<'m> {
    mm: Space<'m>,
    words: BTreeMap<u64, u64>,
}

struct World<'w, 'm> {
    machine: &'m Hosted,
    manager: &'w Manager<'m>,
    spaces: Vec<Child<'w>>,
    file: File<'w, Hosted>,
    shared: Vec<u64>,
    rng: Rng,
}

impl<'w> World<'w, '_> {
    fn on<R>(&self, at: usize, action: impl FnOnce(&Space<'w>) -> R) -> R {
        let mm = &self.spaces[at].mm;
        mm.switch_in();
        let result = action(mm);
        mm.switch_out();
        result
    }

    fn step(&mut self) {
        let at = self.rng.usize(..self.spaces.len());
        let page = self.rng.u64(..WINDOW);
        let len = self.rng.u64(1..=(WINDOW - page).min(700));
        let addr = BASE + page * PAGE;
        match self.rng.u32(..13) {
            0..=2 => self.write(at, page, len.min(40)),
            3 => {
                let index = self.rng.u64(..SHARED);
                let word = self.rng.u64(..);
                self.on(at, |mm| store(self.machine, mm, SHARED_AT + index * PAGE, word).unwrap());
                self.shared[index as usize] = word;
            }
            4 => {
                if self.on(at, |mm| mm.madvise(VirtAddr(addr), len * PAGE, Advice::DontNeed)).is_ok() {
                    self.forget(at, page, len);
                }
            }
            5 if self.spaces.len() < 5 => {
                let mm = self.spaces[at].mm.fork().unwrap();
                let words = self.spaces[at].words.clone();
                self.spaces.push(Child { mm, words });
            }
            6 if self.spaces.len() > 1 => {
                let gone = self.spaces.swap_remove(at);
                gone.mm.validate().unwrap();
                gone.mm.exit();
            }
            7 => self.shift(at, page, len.min(200)),
            8 => {
                let policy = FolioPolicy::FRAMES
                    .with(order(self.rng.u8(1..=9)), OrderPolicy::Always)
                    .with(order(self.rng.u8(1..=9)), OrderPolicy::Always);
                self.manager.set_folio_policy(policy.with_pmd_mapped(self.rng.bool()));
            }
            9 => {
                let blocks = self.rng.u32(1..=16);
                if let Ok(run) = self.manager.alloc_contig(Gfp::USER, blocks, 1) {
                    self.manager.pages().free_contig(run).unwrap();
                }
            }
            10 => {
                let block = BlockNumber(self.rng.u32(..32));
                let first = block.first_frame().add(self.rng.u64(..400));
                self.manager.move_out(FrameRange::new(first, self.rng.u64(1..600)));
            }
            _ => {
                let place = if self.rng.u32(..5) == 0 { SHARED_AT + page % SHARED * PAGE } else { addr };
                if let Some(frame) = find_frame(self.machine, &self.spaces[at].mm, place) {
                    let _refused = self.manager.migrate(head_of(self.manager.pages(), frame));
                }
            }
        }
    }

    fn write(&mut self, at: usize, page: u64, count: u64) {
        for page in page..page + count {
            let word = self.rng.u64(..);
            self.on(at, |mm| store(self.machine, mm, BASE + page * PAGE, word).unwrap());
            self.spaces[at].words.insert(page, word);
        }
    }

    fn forget(&mut self, at: usize, page: u64, len: u64) {
        (page..page + len).for_each(|page| {
            self.spaces[at].words.remove(&page);
        });
    }

    /// Moves pages to another place of the window, and maps fresh memory at their old addresses.
    fn shift(&mut self, at: usize, from: u64, len: u64) {
        let to = self.rng.u64(..WINDOW - len);
        if from < to + len && to < from + len {
            return;
        }
        let (source, target) = (VirtAddr(BASE + from * PAGE), VirtAddr(BASE + to * PAGE));
        self.on(at, |mm| {
            mm.mremap(source, len * PAGE, len * PAGE, Remap::Fixed(target)).unwrap();
            mm.mmap(&anonymous(source.0, len * PAGE)).unwrap();
        });
        self.forget(at, to, len);
        for page in 0..len {
            if let Some(word) = self.spaces[at].words.remove(&(from + page)) {
                self.spaces[at].words.insert(to + page, word);
            }
        }
    }

    fn check(&self) {
        for (at, child) in self.spaces.iter().enumerate() {
            self.on(at, |mm| {
                for page in 0..WINDOW {
                    if find_frame(self.machine, mm, BASE + page * PAGE).is_none() {
                        assert!(!child.words.contains_key(&page), "page {page} of {at} is gone");
                        continue;
                    }
                    let expected = child.words.get(&page).copied().unwrap_or(0);
                    assert_eq!(
                        load(self.machine, mm, BASE + page * PAGE),
                        Ok(expected),
                        "page {page} of {at}"
                    );
                }
                for (index, &word) in (0..).zip(&self.shared) {
                    assert_eq!(load(self.machine, mm, SHARED_AT + index * PAGE), Ok(word));
                }
                mm.validate().unwrap();
            });
        }
        self.manager.validate().unwrap();
    }
}

#[test]
fn moves_among_other_verbs_change_no_byte() {
    let first = seed(fastrand::u64(..));
    for round in 0..6 {
        println!("QUIRE_SEED={}", first.wrapping_add(round));
        play(first.wrapping_add(round));
    }
}

fn play(seed: u64) {
    let fork = FORKS[seed as usize % 2];
    with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
        let mut rng = Rng::with_seed(seed);
        let file = manager.shmem(SHARED * PAGE).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, WINDOW * PAGE)).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        let shared = MapRequest { backing, sharing: Sharing::Shared, ..anonymous(SHARED_AT, SHARED * PAGE) };
        mm.mmap(&shared).unwrap();
        let steps = rng.u32(STEPS / 2..STEPS);
        let spaces = vec![Child { mm, words: BTreeMap::new() }];
        let shared = vec![0; SHARED as usize];
        let mut world = World { machine, manager, spaces, file, shared, rng };
        for step in 0..steps {
            world.step();
            if step % 16 == 0 {
                world.check();
            }
        }
        world.check();
        assert!(world.file.resident() <= SHARED);
        for child in world.spaces {
            child.mm.exit();
        }
    });
}

const _: () = assert!(Order::BLOCK.frames() * 3 == WINDOW);
