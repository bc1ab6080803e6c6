//! A subject that is the model itself with a bug, of which the lockstep must find the difference; and what was written
//! back wrongly.

use hosted::HostedConfig;
use oracle::lockstep::Lockstep;
use oracle::machine::check_written;
use oracle::ops::prelude::*;
use oracle::ops::{At, HEAP};
use oracle::space::{
    Advice, Family, Kind, Map, PAGE, PROBE_OFFSETS, Prot, Remap, Rules, SpaceId, Vma, normalise,
};
use oracle::subject::{Actor, Resident, Subject};
use quire::error::{FaultError, MmError};
use quire::platform::{FileId, Pager};

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// `mremap` refuses each range that was mapped by several calls.
    MovesOneMapping,
    /// The list of mappings has neighbours that agree in everything.
    LeavesNeighbours,
    /// Every second load from a page that was freed lazily finds it dropped.
    RevivesPages,
}

struct Broken {
    family: Family,
    bug: Bug,
    loads: u64,
}

impl Broken {
    fn new(bug: Bug) -> Self {
        let mut family = Family::new(Rules::default());
        let first = family.create();
        family.set_brk_start(first, HEAP);
        Self { family, bug, loads: 0 }
    }
}

fn probe(addr: u64) -> usize {
    PROBE_OFFSETS.iter().position(|&offset| offset == addr % PAGE).expect("one of the probes")
}

impl Subject for Broken {
    fn mmap(&mut self, actor: Actor, map: &Map) -> Result<u64, MmError> {
        self.family.mmap(actor.space, map)
    }

    fn munmap(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.family.munmap(actor.space, addr, len)
    }

    fn mprotect(&mut self, actor: Actor, addr: u64, len: u64, prot: Prot) -> Result<(), MmError> {
        self.family.mprotect(actor.space, addr, len, prot)
    }

    fn mremap(&mut self, actor: Actor, addr: u64, old: u64, new: u64, to: Remap) -> Result<u64, MmError> {
        if self.bug == Bug::MovesOneMapping
            && self.family.space(actor.space).has_edge_inside(addr, addr + old)
        {
            return Err(MmError::Fault);
        }
        self.family.mremap(actor.space, addr, old, new, to)
    }

    fn madvise(&mut self, actor: Actor, addr: u64, len: u64, advice: Advice) -> Result<(), MmError> {
        self.family.madvise(actor.space, addr, len, advice)
    }

    fn brk(&mut self, actor: Actor, addr: u64) -> u64 {
        self.family.brk(actor.space, addr)
    }

    fn mlock(&mut self, actor: Actor, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError> {
        self.family.mlock(actor.space, addr, len, on_fault)
    }

    fn munlock(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.family.munlock(actor.space, addr, len)
    }

    fn mlockall(&mut self, actor: Actor, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
        self.family.mlockall(actor.space, current, future, on_fault)
    }

    fn munlockall(&mut self, actor: Actor) -> Result<(), MmError> {
        self.family.munlockall(actor.space);
        Ok(())
    }

    fn truncate(&mut self, _actor: Actor, file: u64, bytes: u64) -> Result<(), MmError> {
        self.family.truncate(file, bytes);
        Ok(())
    }

    fn fork(&mut self, actor: Actor) -> Result<(), MmError> {
        self.family.fork(actor.space);
        Ok(())
    }

    fn exit(&mut self, actor: Actor) {
        self.family.exit(actor.space);
    }

    fn store(&mut self, actor: Actor, addr: u64, word: u64) -> Result<(), FaultError> {
        self.family.write(actor.space, addr, probe(addr), word)
    }

    fn load(&mut self, actor: Actor, addr: u64) -> Result<u64, FaultError> {
        let seen = self.family.read(actor.space, addr, probe(addr))?;
        self.loads += u64::from(seen.or_zero);
        let dropped = seen.or_zero && self.bug == Bug::RevivesPages && self.loads.is_multiple_of(2);
        Ok(if dropped { 0 } else { seen.word })
    }

    fn fault(&mut self, actor: Actor, addr: u64, kind: Kind) -> Result<(), FaultError> {
        self.family.fault(actor.space, addr, kind)
    }

    fn vmas(&mut self, space: SpaceId) -> Vec<Vma> {
        let vmas = self.family.space(space).vmas().to_vec();
        if self.bug == Bug::LeavesNeighbours { vmas } else { normalise(vmas) }
    }

    fn resident(&mut self, _space: SpaceId) -> Option<Resident> {
        None
    }

    fn check(&mut self, _deep: bool) -> Result<(), String> {
        Ok(())
    }
}

/// Whether a lockstep with this bug finds a difference.
fn is_noticed(bug: Bug, ops: &[oracle::ops::Op]) -> bool {
    let steps: Vec<Step> = ops.iter().map(|&op| Step { cpu: 0, space: 0, op }).collect();
    Lockstep::new(Broken::new(bug), Rules::default(), 1, &[], 1).run(&steps).is_err()
}

fn one_page(at: At, prot: Prot) -> oracle::ops::Op {
    Mmap(MapOp {
        at,
        len: PAGE,
        prot,
        placement: Fixed,
        what: Anonymous,
        grows_down: false,
        populate: false,
        locked: false,
    })
}

#[test]
fn a_refusal_to_move_several_mappings_is_noticed() {
    let moved = |prot| {
        let to = FixedTo(Window(100, 0));
        [
            one_page(Window(0, 0), R),
            one_page(Window(1, 0), prot),
            Mremap(Window(0, 0), 2 * PAGE, 2 * PAGE, to),
        ]
    };
    for prot in [R, Rw] {
        assert!(!is_noticed(Bug::None, &moved(prot)));
        assert!(is_noticed(Bug::MovesOneMapping, &moved(prot)), "{prot:?}");
    }
}

#[test]
fn neighbours_that_were_not_merged_are_noticed() {
    let neighbours = [one_page(Window(0, 0), R), one_page(Window(1, 0), R)];
    assert!(!is_noticed(Bug::None, &neighbours));
    assert!(is_noticed(Bug::LeavesNeighbours, &neighbours));
}

#[test]
fn a_dropped_page_that_comes_back_is_noticed() {
    let page = Window(0, 0);
    let freed = [one_page(page, Rw), Store(page, 0), Madvise(page, PAGE, Free)];
    let loads = [Load(page, 0); 4];
    let ops = [&freed[..], &loads].concat();
    assert!(!is_noticed(Bug::None, &ops));
    assert!(is_noticed(Bug::RevivesPages, &ops));
}

#[test]
fn a_page_that_was_written_back_without_a_store_is_noticed() {
    let machine = HostedConfig::new(1 << 20).build().expect("the host has a MiB");
    let (file, files) = (FileId(1), [(1, 2 * PAGE)]);
    let mut model = Family::new(Rules::default());
    model.set_file(1, 2 * PAGE);
    machine.files().set_size(file, 2 * PAGE);
    assert_eq!(check_written(&machine, &model, &files), Ok(()));
    let mut page = [0; PAGE as usize];
    machine.files().read(file, 0, &mut page).expect("it never fails");
    machine.files().write(file, 0, &page).expect("it never fails");
    assert_eq!(check_written(&machine, &model, &files), Ok(()), "its first contents");
    // Those of another page.
    machine.files().write(file, 1, &page).expect("it never fails");
    assert!(check_written(&machine, &model, &files).is_err());
}
