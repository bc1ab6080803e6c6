//! Quire: huge pages of a file, mapped for the guest piece by piece and read through second-stage tables.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hosted::{Bare, Hosted, HostedConfig, Nested};

use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::NodeSet;
use quire::vm::{
    Advice, AnswerMode, Backing, File, MapRequest, Mm, Placement, Sharing, Userfault, UserfaultChanges,
    UserfaultEvent, UserfaultModes,
};

use super::case::{HALT_POLL, Migration, WORDS, Wait, tag};
use super::guest;
use super::link::Link;
use super::outcome::{self, Part};
use super::receiver::{self, Answers};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours::{self, START};
use crate::host::threads::together;

/// Memory beside the guest's: page tables and the manager's own.
const SLACK: u64 = 256 << 20;

/// The machine of all arms that wait alike.
type Kept = Rc<RefCell<Option<Rc<Hosted>>>>;

pub(super) fn all() -> Vec<Box<dyn Arm<Migration>>> {
    let kept = [Kept::default(), Kept::default()];
    let (poll, sleep) = ((Wait::Poll, &kept[0]), (Wait::Sleep, &kept[1]));
    [
        ("4KiB", 4 << 10, poll),
        ("2MiB", 2 << 20, poll),
        ("1GiB", 1 << 30, poll),
        ("4KiB-sleeping", 4 << 10, sleep),
    ]
    .map(|(name, piece, (wait, kept))| -> Box<dyn Arm<Migration>> {
        Box::new(Quire { name, piece, wait, kept: kept.clone() })
    })
    .into()
}

struct Quire {
    name: &'static str,
    piece: u64,
    wait: Wait,
    kept: Kept,
}

impl Arm<Migration> for Quire {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.piece {
            0x1000 if self.wait == Wait::Sleep => "as `4KiB`; a virtual CPU sleeps at once.",
            0x1000 => {
                "pieces of 4 KiB: minor faults of a userfault range over huge pages in parts, \
                 Mm::userfault_continue for each piece, Mm::collapse at the end. No trap; the only system \
                 call is the sleep of a virtual CPU that has polled for 200 us."
            }
            0x20_0000 => "as `4KiB`, in pieces of 2 MiB.",
            _ => "as `4KiB`, in pieces of 1 GiB, as Linux does without high-granularity mapping.",
        }
    }

    fn setup(&mut self, case: &Migration) -> Result<Box<dyn Prepared + '_>, Skip> {
        if self.piece > case.page.bytes() {
            return Err(Skip("the guest's pages are smaller than that: leave --smoke out".to_owned()));
        }
        let machine = self.machine(case)?;
        Ok(Box::new(Ready { case: case.clone(), piece: self.piece, machine }))
    }
}

impl Quire {
    fn machine(&self, case: &Migration) -> Result<Rc<Hosted>, Skip> {
        // One page more, so that enough are aligned wherever the tables are.
        let bytes = case.bytes + case.page.bytes() + SLACK;
        let mut kept = self.kept.borrow_mut();
        if let Some(machine) = kept.as_ref().filter(|machine| machine.ranges()[0].bytes >= bytes) {
            return Ok(machine.clone());
        }
        *kept = None;
        let halt_poll = if self.wait == Wait::Poll { HALT_POLL } else { Duration::ZERO };
        let config = HostedConfig { halt_poll, ..HostedConfig::bench(bytes) };
        let built = config.with_cpus(case.cpus + 2).build();
        let machine = Rc::new(built.map_err(|error| Skip(error.to_string()))?);
        ours::keep_from_children(&machine)?;
        *kept = Some(machine.clone());
        Ok(machine)
    }
}

struct Ready {
    case: Migration,
    piece: u64,
    machine: Rc<Hosted>,
}

struct Scene<'a> {
    case: &'a Migration,
    piece: u64,
    machine: &'a Hosted,
    guest: &'a Mm<'a, Bare>,
    /// The whole file, mapped for the receiver's writes.
    host: &'a Mm<'a, Bare>,
    handler: &'a Userfault<'a, Bare>,
    nested: &'a Nested<'a>,
    fetched: Vec<AtomicBool>,
    over: AtomicBool,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let machine = &*self.machine;
        // SAFETY: H3: threads inside `run_on` of this machine alone use it, and so is the manager.
        let bare = unsafe { machine.bare() };
        let ranges = ours::ranges(machine, false);
        machine.run_on(CpuId(0), || {
            let manager = hosted::raw::memory_manager(bare, &ranges, &Config::default());
            let manager = manager.map_err(|error| Skip(error.to_string()))?;
            let pages = self.case.bytes / self.case.page.bytes();
            let resized = manager.resize_huge(self.case.page, NodeSet::ALL, pages);
            if resized.after < pages {
                return Err(Skip(format!("the pool has {} pages of {pages}", resized.after)));
            }
            self.migrate(machine, &manager)
        })
    }
}

impl Ready {
    fn migrate(&self, machine: &Hosted, manager: &MemoryManager<'_, Bare>) -> Result<Sample, Skip> {
        let case = &self.case;
        let said = |error: &dyn std::fmt::Display| Skip(error.to_string());
        let file = manager.huge_file(case.page, case.bytes).map_err(|error| said(&error))?;
        file.allocate(0..case.bytes).map_err(|error| said(&error))?;
        let host = map(manager, &file, case, true)?;
        let guest = map(manager, &file, case, false)?;
        if self.piece < case.page.bytes() {
            guest.madvise(START, case.bytes, Advice::Split).map_err(|error| said(&error))?;
        }
        let handler = manager.userfault(UserfaultChanges::NONE).map_err(|error| said(&error))?;
        let registered = guest.userfault_register(&handler, START, case.bytes, UserfaultModes::MINOR);
        registered.map_err(|error| said(&error))?;
        let secondary = guest.register_secondary();
        let nested = Nested::new(machine, &guest, START, case.bytes, case.cpus);
        let scene = Scene {
            case,
            piece: self.piece,
            machine,
            guest: &guest,
            host: &host,
            handler: &handler,
            nested: &nested,
            fetched: (0..case.bytes / self.piece).map(|_| AtomicBool::new(false)).collect(),
            over: AtomicBool::new(false),
        };
        let parts = scene.play().into_iter().collect::<Result<Vec<_>, _>>();
        let sample = parts.and_then(|parts| {
            let cpu = scene.nested.cpu(0);
            outcome::sample(parts, scene.fetched.len(), case.bytes, |at| cpu.load(scene.guest, at).ok())
        });
        drop(nested);
        drop(secondary);
        sample
    }
}

impl Scene<'_> {
    /// Runs the virtual CPUs and the receiver, each on its thread.
    fn play(&self) -> Vec<Result<Part, Skip>> {
        let case = self.case;
        let mut threads: Vec<usize> = (0..=case.cpus).collect();
        together(&mut threads, &case.placed(), |&mut number, meeting| {
            // The main thread is CPU 0.
            self.machine.run_on(CpuId(number as u32 + 1), || {
                if number < case.cpus {
                    let cpu = self.nested.cpu(number);
                    meeting.wait();
                    let shape = (case.bytes / PAGE as u64, self.piece);
                    let seed = case.seed + number as u64;
                    let load = |at| cpu.load(self.guest, at).ok();
                    Ok(Part::GuestWaits(guest::run(load, shape, &self.fetched, seed, &self.over)))
                } else {
                    meeting.wait();
                    let part = self.receive();
                    // Wakes virtual CPUs that wait for pieces, none of which will arrive any more.
                    self.over.store(true, Ordering::Relaxed);
                    if part.is_err() {
                        self.handler.close();
                    }
                    part
                }
            })
        })
    }

    fn receive(&self) -> Result<Part, Skip> {
        let case = self.case;
        let pieces = self.fetched.len();
        let mut link = Link::new(case.wire, self.piece, pieces);
        self.host.switch_in();
        let start = Instant::now();
        let received = receiver::run(&mut Userfaulted(self), &mut link, &self.fetched)?;
        if self.piece < case.page.bytes() {
            let collapsed =
                self.guest.collapse(START, case.bytes).map_err(|error| Skip(error.to_string()))?;
            if let Some(why) = collapsed.last {
                return Err(Skip(format!("{} parts stay small: {}", collapsed.all_refused(), why.text())));
            }
        }
        let large = start.elapsed().as_nanos() as u64;
        self.host.switch_out();
        Ok(Part::Received { received, busy: link.busy(), large })
    }
}

/// Answers by Quire's userfault handler.
struct Userfaulted<'a>(&'a Scene<'a>);

impl Answers for Userfaulted<'_> {
    fn next_fault(&mut self) -> Result<Option<usize>, Skip> {
        while let Some(event) = self.0.handler.next_event() {
            if let UserfaultEvent::Fault(fault) = event.keep() {
                return Ok(Some(((fault.addr.0 - START.0) / self.0.piece) as usize));
            }
        }
        Ok(None)
    }

    fn write(&mut self, piece: usize) {
        let pages = self.0.piece / PAGE as u64;
        for page in piece as u64 * pages..(piece as u64 + 1) * pages {
            let addr = START.add(page * PAGE as u64);
            let contents = [tag(page).to_le_bytes(); WORDS as usize];
            let written = self.0.machine.write(addr, contents.as_flattened());
            debug_assert!(written.is_ok(), "the file is mapped whole");
        }
    }

    fn map(&mut self, piece: usize) -> Result<(), Skip> {
        let addr = START.add(piece as u64 * self.0.piece);
        let mapped = self.0.guest.userfault_continue(addr, self.0.piece, AnswerMode::WAKE);
        mapped.all().map(drop).map_err(|error| Skip(format!("mapping a piece that arrived failed: {error}")))
    }
}

/// An address space with the file at [`START`].
fn map<'m>(
    manager: &'m MemoryManager<'_, Bare>,
    file: &File<'_, Bare>,
    case: &Migration,
    populate: bool,
) -> Result<Mm<'m, Bare>, Skip> {
    let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
    let request = MapRequest {
        addr: START,
        len: case.bytes,
        prot: Protection::READ | Protection::WRITE,
        placement: Placement::Fixed,
        sharing: Sharing::Shared,
        backing: Backing::File { file, page_offset: 0 },
        populate,
        ..MapRequest::default()
    };
    mm.mmap(&request).map_err(|error| Skip(error.to_string()))?;
    Ok(mm)
}

const _: () = assert!(HugeSize::Size1G.bytes() == 1 << 30 && START.0.is_multiple_of(1 << 30));
