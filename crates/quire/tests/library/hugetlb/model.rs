//! Programs that map huge pages in lockstep with a model that keeps each page separately.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fastrand::Rng;
use hosted::Hosted;
use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize::Size2M;
use quire::vm::{Advice, File, MapRequest, Remap, Sharing};

use crate::hugetlb::world::{
    BASE, HUGE, Manager, Space, check, fork, free_and_promised, load, of_file, private, store, with_huge,
};

/// Pages of the pool, places of an address space, pages of a file.
const POOL: u64 = 14;
const PLACES: u64 = 12;
const FILE: u64 = 6;
const FILES: usize = 2;

/// A page in use; all its mappings share it.
type Page = Rc<Cell<u64>>;

/// A place of one huge page in an address space.
#[derive(Clone)]
struct Place {
    /// The file, and the page of it; an anonymous mapping has a private file.
    file: (Rc<ModelFile>, u64),
    shared: bool,
    reserved: bool,
    own: Option<Page>,
    /// A parent took its page back.
    lost: bool,
}

#[derive(Default)]
struct ModelFile {
    size: Cell<u64>,
    pages: std::cell::RefCell<BTreeMap<u64, Option<Page>>>,
}

#[derive(Default)]
struct Model {
    spaces: Vec<BTreeMap<u64, Place>>,
    files: Vec<Rc<ModelFile>>,
}

impl Model {
    /// Every file that is in use.
    fn all_files(&self) -> Vec<Rc<ModelFile>> {
        let mut all = self.files.clone();
        for place in self.spaces.iter().flat_map(BTreeMap::values) {
            if !all.iter().any(|file| Rc::ptr_eq(file, &place.file.0)) {
                all.push(Rc::clone(&place.file.0));
            }
        }
        all
    }

    fn free_and_promised(&self) -> (u64, u64) {
        let mut used: Vec<*const Cell<u64>> = Vec::new();
        let mut reserved = 0;
        for place in self.spaces.iter().flat_map(BTreeMap::values) {
            reserved += u64::from(place.reserved && place.own.is_none());
            used.extend(place.own.iter().map(Rc::as_ptr));
        }
        used.sort_unstable();
        used.dedup();
        let mut there = used.len() as u64;
        for file in self.all_files() {
            for page in file.pages.borrow().values() {
                there += u64::from(page.is_some());
                reserved += u64::from(page.is_none());
            }
        }
        (POOL - there, reserved)
    }

    fn spare(&self) -> u64 {
        let (free, reserved) = self.free_and_promised();
        free - reserved
    }

    fn page_to_store(&mut self, task: usize, at: u64) -> Result<Page, FaultError> {
        let spare = self.spare();
        let place = self.spaces[task].get_mut(&at).ok_or(FaultError::NotMapped)?;
        let (file, index) = place.file.clone();
        if place.lost {
            return Err(FaultError::Poisoned);
        }
        if place.shared {
            return shared_page(&file, index, spare);
        }
        let old = match &place.own {
            Some(own) if Rc::strong_count(own) == 1 => return Ok(Rc::clone(own)),
            Some(own) => Some((own.get(), false)),
            None if index >= file.size.get() => return Err(FaultError::BeyondEnd),
            None => None,
        };
        let first = old.is_none();
        let contents = old.map(|(word, _)| word);
        let contents = contents.or_else(|| {
            file.pages.borrow().get(&index).and_then(|page| page.as_ref().map(|page| page.get()))
        });
        if !(first && place.reserved) && spare == 0 {
            let own = place.own.clone().filter(|_| place.reserved).ok_or(FaultError::NoHugePage)?;
            self.take_back(task, at, &own);
            return Ok(own);
        }
        let page = Rc::new(Cell::new(contents.unwrap_or(0)));
        place.own = Some(Rc::clone(&page));
        Ok(page)
    }

    /// All other mappings lose a page.
    fn take_back(&mut self, task: usize, at: u64, page: &Page) {
        for (number, space) in self.spaces.iter_mut().enumerate() {
            for (_, place) in space.iter_mut().filter(|(place, _)| (number, **place) != (task, at)) {
                if place.own.as_ref().is_some_and(|own| Rc::ptr_eq(own, page)) {
                    (place.own, place.lost) = (None, true);
                }
            }
        }
    }

    fn load(&mut self, task: usize, at: u64) -> Result<u64, FaultError> {
        let spare = self.spare();
        let place = self.spaces[task].get(&at).ok_or(FaultError::NotMapped)?;
        if place.lost {
            return Err(FaultError::Poisoned);
        }
        let (file, index) = place.file.clone();
        if let Some(own) = &place.own {
            return Ok(own.get());
        }
        if index >= file.size.get() {
            return Err(FaultError::BeyondEnd);
        }
        let there = file.pages.borrow().get(&index).cloned().flatten();
        match there {
            Some(page) => Ok(page.get()),
            None if place.shared => shared_page(&file, index, spare).map(|page| page.get()),
            None => self.page_to_store(task, at).map(|page| page.get()),
        }
    }

    fn map(&mut self, task: usize, at: u64, count: u64, of: &Mapped) -> Result<(), MmError> {
        let file = of.file.map_or_else(Default::default, |file| Rc::clone(&self.files[file]));
        let indices = of.first..of.first + count;
        let missing = indices.clone().filter(|index| !file.pages.borrow().contains_key(index)).count() as u64;
        let reservations = if of.shared { missing } else { count };
        if !of.noreserve && reservations > self.spare() {
            return Err(MmError::NoMemory);
        }
        if of.shared && !of.noreserve {
            indices.clone().for_each(|index| _ = file.pages.borrow_mut().entry(index).or_insert(None));
        }
        file.size.set(file.size.get().max(indices.end));
        for step in 0..count {
            let place = Place {
                file: (Rc::clone(&file), of.first + step),
                shared: of.shared,
                reserved: !of.shared && !of.noreserve,
                own: None,
                lost: false,
            };
            self.spaces[task].insert(at + step, place);
        }
        Ok(())
    }

    fn dont_need(&mut self, task: usize, at: u64, count: u64) -> Result<(), MmError> {
        let holes = (at..at + count).any(|at| !self.spaces[task].contains_key(&at));
        let spare = self.spare();
        let places = || (at..at + count).filter_map(|at| self.spaces[task].get(&at));
        let kept = |place: &&Place| {
            place.reserved && place.own.as_ref().is_some_and(|own| Rc::strong_count(own) > 1)
        };
        if places().filter(kept).count() as u64 > spare {
            return Err(MmError::NoMemory);
        }
        (at..at + count).for_each(|at| {
            _ = self.spaces[task].get_mut(&at).map(|place| (place.own, place.lost) = (None, false))
        });
        if holes { Err(MmError::NoMemory) } else { Ok(()) }
    }

    /// Truncation drops pages of a file, and their private copies.
    fn drop_pages(&mut self, file: usize, indices: std::ops::Range<u64>) {
        let file = Rc::clone(&self.files[file]);
        file.pages.borrow_mut().retain(|index, _| !indices.contains(index));
        for place in self.spaces.iter_mut().flat_map(BTreeMap::values_mut) {
            if Rc::ptr_eq(&place.file.0, &file) && indices.contains(&place.file.1) {
                (place.own, place.lost) = (None, false);
            }
        }
    }
}

fn shared_page(file: &ModelFile, index: u64, spare: u64) -> Result<Page, FaultError> {
    if index >= file.size.get() {
        return Err(FaultError::BeyondEnd);
    }
    let mut pages = file.pages.borrow_mut();
    match pages.get(&index) {
        Some(Some(page)) => return Ok(Rc::clone(page)),
        Some(None) => {}
        None if spare == 0 => return Err(FaultError::NoHugePage),
        None => {}
    }
    let page = Page::default();
    pages.insert(index, Some(Rc::clone(&page)));
    Ok(page)
}

#[derive(Debug)]
struct Mapped {
    file: Option<usize>,
    first: u64,
    shared: bool,
    noreserve: bool,
}

/// The model, and the machine that is checked against it.
struct Both<'w, 'm, 'p> {
    machine: &'w Hosted,
    manager: &'m Manager<'p>,
    model: Model,
    spaces: Vec<Space<'m>>,
    files: Vec<File<'m, Hosted>>,
}

fn addr(place: u64) -> VirtAddr {
    VirtAddr(BASE + place * HUGE)
}

impl<'m> Both<'_, 'm, '_> {
    fn on<T>(&self, task: usize, call: impl FnOnce(&Space<'m>) -> T) -> T {
        self.spaces[task].switch_in();
        let done = call(&self.spaces[task]);
        self.spaces[task].switch_out();
        done
    }

    fn map(&mut self, task: usize, at: u64, count: u64, of: &Mapped) {
        let sharing = if of.shared { Sharing::Shared } else { Sharing::Private };
        let request = match of.file {
            Some(file) => of_file(&self.files[file], sharing, addr(at).0, (of.first, count)),
            None => MapRequest { sharing, ..private(addr(at).0, count) },
        };
        let made =
            self.on(task, |mm| mm.mmap(&MapRequest { noreserve: of.noreserve, ..request }).map(|_| ()));
        assert_eq!(made, self.model.map(task, at, count, of), "{of:?}");
    }

    fn step(&mut self, random: &mut Rng) {
        let (task, at) = (random.usize(0..self.spaces.len()), random.u64(0..PLACES));
        let count = random.u64(1..=3.min(PLACES - at));
        let file = random.usize(0..FILES);
        match random.u32(0..20) {
            0..4 => {
                let file = random.bool().then_some(file);
                let first = if file.is_some() { random.u64(0..FILE - 2) } else { 0 };
                let of = Mapped { file, first, shared: random.bool(), noreserve: random.u32(0..4) == 0 };
                self.map(task, at, count, &of);
            }
            4 => {
                self.on(task, |mm| mm.munmap(addr(at), count * HUGE)).unwrap();
                self.model.spaces[task].retain(|place, _| !(at..at + count).contains(place));
            }
            5..10 => {
                let word = random.u64(1..);
                let machine = self.machine;
                let stored = self.on(task, |mm| store(machine, mm, addr(at).0 + 8, word));
                assert_eq!(stored, self.model.page_to_store(task, at).map(|page| page.set(word)));
            }
            10..14 => {
                let machine = self.machine;
                let loaded = self.on(task, |mm| load(machine, mm, addr(at).0 + 8));
                assert_eq!(loaded, self.model.load(task, at));
            }
            14 => {
                let done = self.on(task, |mm| mm.madvise(addr(at), count * HUGE, Advice::DontNeed));
                assert_eq!(done, self.model.dont_need(task, at, count));
            }
            15 if self.spaces.len() < 4 => {
                let child = fork(&self.spaces[task]);
                self.spaces.push(child);
                let mut places = self.model.spaces[task].clone();
                places.values_mut().for_each(|place| place.reserved = false);
                self.model.spaces.push(places);
            }
            16 if self.spaces.len() > 1 => {
                self.spaces.remove(task).exit();
                self.model.spaces.remove(task);
            }
            17 => {
                let end = random.u64(0..=FILE);
                self.files[file].truncate(end * HUGE).unwrap();
                self.model.drop_pages(file, end..u64::MAX);
                self.model.files[file].size.set(end);
            }
            18 => {
                let end = random.u64(1..=FILE);
                let start = random.u64(0..end);
                self.files[file].punch_hole(start * HUGE..end * HUGE).unwrap();
                self.model.drop_pages(file, start..end);
            }
            19 => {
                let to = random.u64(0..PLACES);
                if to != at && self.model.spaces[task].contains_key(&at) {
                    let moved = self.on(task, |mm| mm.mremap(addr(at), HUGE, HUGE, Remap::Fixed(addr(to))));
                    assert_eq!(moved, Ok(addr(to)));
                    let place = self.model.spaces[task].remove(&at).unwrap();
                    self.model.spaces[task].insert(to, place);
                }
            }
            _ => {}
        }
    }

    fn check(&self) {
        assert_eq!(free_and_promised(self.manager), self.model.free_and_promised());
        for (file, model) in self.files.iter().zip(&self.model.files) {
            let pages = model.pages.borrow();
            let there = pages.values().filter(|page| page.is_some()).count() as u64;
            assert_eq!(file.huge_pages(), (there, pages.len() as u64 - there));
        }
    }
}

fn lockstep(seed: u64, steps: u32) {
    with_huge(POOL, |machine, manager| {
        let mut random = Rng::with_seed(seed);
        let mut both = Both {
            machine,
            manager,
            model: Model {
                spaces: vec![BTreeMap::new()],
                files: (0..FILES).map(|_| Rc::default()).collect(),
            },
            spaces: vec![manager.new_mm().unwrap()],
            files: (0..FILES).map(|_| manager.huge_file(Size2M, 0).unwrap()).collect(),
        };
        for step in 0..steps {
            both.step(&mut random);
            both.check();
            if step % 32 == 0 {
                check(manager);
                both.spaces.iter().for_each(|mm| mm.validate().unwrap());
            }
        }
    });
}

/// Invariant 10, summed up from scratch after each step.
#[test]
fn programs_and_model_agree() {
    for seed in 0..16 {
        let failed = std::panic::catch_unwind(|| lockstep(seed, 400)).is_err();
        assert!(!failed, "seed {seed}");
    }
}
