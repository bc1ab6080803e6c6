//! The library on its hosted machine, as a subject beside the model. Programs run through the software MMU, so a
//! flush that is missing shows as a wrong word, and a frame freed too early as a violation of the machine.

use hosted::{FailurePlan, Hosted};
use oracle::space::{Advice, Backing, Huge, Kind, Locked, Map, Placement, Prot, Remap, SpaceId, Vma};
use oracle::subject::{Resident, Subject, Who};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::filemap::FileKind;
use quire::manager::MemoryManager;
use quire::platform::FileId;
use quire::vm::vma::VmaFlags;
use quire::vm::{Access, Backing as Behind, File, HugeAdvice, MapRequest, Mm, Sharing, VmaInfo};

/// Without a limit a stray access could make a stack of terabytes, which `mlockall` would then fill.
pub(crate) const STACK_LIMIT: u64 = 64 << 20;

/// Faults in a row after which an access counts as stuck.
const PATIENCE: usize = 64;

pub(crate) struct Library<'m> {
    machine: &'m Hosted,
    manager: &'m MemoryManager<'m, Hosted>,
    spaces: Vec<Option<Mm<'m, Hosted>>>,
    files: Vec<(u64, File<'m, Hosted>)>,
    /// The address space that each CPU runs.
    running: Vec<Option<SpaceId>>,
    single_pages: bool,
    scarce: bool,
}

impl<'m> Library<'m> {
    /// With one empty address space. `scarce` says that memory may run out.
    pub(crate) fn new(
        machine: &'m Hosted,
        manager: &'m MemoryManager<'m, Hosted>,
        files: &[(u64, u64)],
        single_pages: bool,
        scarce: bool,
    ) -> Self {
        let cpus = machine.config().cpus;
        let mut library = Self {
            machine,
            manager,
            spaces: Vec::new(),
            files: Vec::new(),
            running: vec![None; cpus],
            single_pages,
            scarce,
        };
        machine.run_on(CpuId(0), || {
            for &(number, bytes) in files {
                machine.files().set_size(FileId(number), bytes);
                library.files.push((number, manager.open(FileId(number)).expect("memory")));
            }
            let mm = manager.new_mm().expect("memory");
            mm.set_brk_start(VirtAddr(oracle::ops::HEAP));
            mm.set_stack_limit(STACK_LIMIT);
            library.spaces.push(Some(mm));
        });
        library
    }

    /// Decides which allocations fail from now on.
    pub(crate) fn set_failures(&self, plan: FailurePlan) {
        self.machine.set_failures(plan);
    }

    fn mm(&self, space: SpaceId) -> &Mm<'m, Hosted> {
        self.spaces[space].as_ref().expect("a live address space")
    }

    /// Does something as a CPU that runs the address space.
    fn act<R>(&mut self, who: Who, action: impl FnOnce(&Self) -> R) -> R {
        let (machine, before) = (self.machine, self.running[who.cpu]);
        self.running[who.cpu] = Some(who.space);
        let this = &*self;
        machine.run_on(CpuId(who.cpu as u32), || {
            if before != Some(who.space) {
                if let Some(before) = before {
                    this.mm(before).switch_out();
                }
                this.mm(who.space).switch_in();
            }
            action(this)
        })
    }

    fn access(
        &self,
        space: SpaceId,
        addr: u64,
        kind: Access,
        mut attempt: impl FnMut(&Hosted) -> bool,
    ) -> Result<(), FaultError> {
        for _ in 0..PATIENCE {
            if attempt(self.machine) {
                return Ok(());
            }
            self.mm(space).fault(VirtAddr(addr), kind)?;
        }
        panic!("{kind:?} at {addr:#x} faults for ever");
    }

    fn show(&self, info: &VmaInfo) -> Vma {
        let backing = match info.file {
            None => Backing::Anonymous,
            Some((FileKind::Paged(file), _)) => Backing::File(file.0),
            Some((FileKind::Nameless { .. }, _)) => Backing::Shared(0),
        };
        let has = |flag| info.flags.contains(flag);
        Vma {
            start: info.range.start.0,
            end: info.range.end.0,
            prot: prot_of(info.protection),
            shared: has(VmaFlags::SHARED),
            backing,
            page_offset: info.file.map_or(0, |(_, page)| page),
            grows_down: has(VmaFlags::GROWS_DOWN),
            locked: match (has(VmaFlags::LOCKED), has(VmaFlags::LOCK_ON_FAULT)) {
                (false, _) => Locked::No,
                (true, false) => Locked::Now,
                (true, true) => Locked::OnFault,
            },
            huge: match info.advice {
                HugeAdvice::None => Huge::Default,
                HugeAdvice::Huge => Huge::Yes,
                HugeAdvice::NoHuge => Huge::No,
            },
        }
    }
}

fn protection(prot: Prot) -> Protection {
    Protection::from_bits(match prot {
        Prot::None => 0,
        Prot::R => 1,
        Prot::W => 2,
        Prot::Rw => 3,
        Prot::Rx => 5,
        Prot::Rwx => 7,
    })
}

fn prot_of(protection: Protection) -> Prot {
    match protection.bits() {
        0 => Prot::None,
        1 => Prot::R,
        2 => Prot::W,
        3 => Prot::Rw,
        5 => Prot::Rx,
        _ => Prot::Rwx,
    }
}

impl Subject for Library<'_> {
    fn mmap(&mut self, who: Who, map: &Map) -> Result<u64, MmError> {
        self.act(who, |this| {
            let find = |file| &this.files.iter().find(|(number, _)| *number == file).expect("known").1;
            let backing = match map.file {
                None => Behind::Anonymous,
                Some((file, page_offset)) => Behind::File { file: find(file), page_offset },
            };
            let request = MapRequest {
                addr: VirtAddr(map.addr),
                len: map.len,
                prot: protection(map.prot),
                placement: match map.placement {
                    Placement::Hint => quire::vm::Placement::Hint,
                    Placement::Fixed => quire::vm::Placement::Fixed,
                    Placement::FixedNoReplace => quire::vm::Placement::FixedNoReplace,
                },
                sharing: if map.shared { Sharing::Shared } else { Sharing::Private },
                backing,
                grows_down: map.grows_down,
                populate: map.populate,
                locked: map.locked,
                noreserve: false,
            };
            this.mm(who.space).mmap(&request).map(|addr| addr.0)
        })
    }

    fn munmap(&mut self, who: Who, addr: u64, len: u64) -> Result<(), MmError> {
        self.act(who, |this| this.mm(who.space).munmap(VirtAddr(addr), len))
    }

    fn mprotect(&mut self, who: Who, addr: u64, len: u64, prot: Prot) -> Result<(), MmError> {
        self.act(who, |this| this.mm(who.space).mprotect(VirtAddr(addr), len, protection(prot)))
    }

    fn mremap(&mut self, who: Who, addr: u64, old: u64, new: u64, to: Remap) -> Result<u64, MmError> {
        let to = match to {
            Remap::InPlace => quire::vm::Remap::InPlace,
            Remap::MayMove => quire::vm::Remap::MayMove,
            Remap::Fixed(to) => quire::vm::Remap::Fixed(VirtAddr(to)),
            Remap::DontUnmap => quire::vm::Remap::DontUnmap,
            Remap::FixedDontUnmap(to) => quire::vm::Remap::FixedDontUnmap(VirtAddr(to)),
        };
        self.act(who, |this| this.mm(who.space).mremap(VirtAddr(addr), old, new, to).map(|addr| addr.0))
    }

    fn madvise(&mut self, who: Who, addr: u64, len: u64, advice: Advice) -> Result<(), MmError> {
        let advice = match advice {
            Advice::DontNeed => quire::vm::Advice::DontNeed,
            Advice::Free => quire::vm::Advice::Free,
            Advice::WillNeed => quire::vm::Advice::WillNeed,
            Advice::HugePage => quire::vm::Advice::HugePage,
            Advice::NoHugePage => quire::vm::Advice::NoHugePage,
            Advice::PopulateRead => quire::vm::Advice::PopulateRead,
            Advice::PopulateWrite => quire::vm::Advice::PopulateWrite,
        };
        self.act(who, |this| this.mm(who.space).madvise(VirtAddr(addr), len, advice))
    }

    fn brk(&mut self, who: Who, addr: u64) -> u64 {
        self.act(who, |this| this.mm(who.space).brk(VirtAddr(addr)).0)
    }

    fn mlock(&mut self, who: Who, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError> {
        self.act(who, |this| this.mm(who.space).mlock(VirtAddr(addr), len, on_fault))
    }

    fn munlock(&mut self, who: Who, addr: u64, len: u64) -> Result<(), MmError> {
        self.act(who, |this| this.mm(who.space).munlock(VirtAddr(addr), len))
    }

    fn mlockall(&mut self, who: Who, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
        self.act(who, |this| this.mm(who.space).mlockall(current, future, on_fault))
    }

    fn munlockall(&mut self, who: Who) -> Result<(), MmError> {
        self.act(who, |this| this.mm(who.space).munlockall())
    }

    fn fork(&mut self, who: Who) -> Result<(), MmError> {
        let child = self.act(who, |this| this.mm(who.space).fork())?;
        self.spaces.push(Some(child));
        Ok(())
    }

    fn exit(&mut self, who: Who) {
        let machine = self.machine;
        for cpu in 0..self.running.len() {
            if self.running[cpu] == Some(who.space) {
                self.running[cpu] = None;
                machine.run_on(CpuId(cpu as u32), || self.mm(who.space).switch_out());
            }
        }
        let mm = self.spaces[who.space].take().expect("a live address space");
        machine.run_on(CpuId(who.cpu as u32), || mm.exit());
    }

    fn store(&mut self, who: Who, addr: u64, word: u64) -> Result<(), FaultError> {
        self.act(who, |this| {
            let bytes = word.to_le_bytes();
            this.access(who.space, addr, Access::Write, |machine| {
                machine.write(VirtAddr(addr), &bytes).is_ok()
            })
        })
    }

    fn load(&mut self, who: Who, addr: u64) -> Result<u64, FaultError> {
        self.act(who, |this| {
            let mut bytes = [0; 8];
            this.access(who.space, addr, Access::Read, |machine| {
                machine.read(VirtAddr(addr), &mut bytes).is_ok()
            })?;
            Ok(u64::from_le_bytes(bytes))
        })
    }

    fn fault(&mut self, who: Who, addr: u64, kind: Kind) -> Result<(), FaultError> {
        let access = match kind {
            Kind::Read => Access::Read,
            Kind::Write => Access::Write,
            Kind::Exec => Access::Exec,
        };
        self.act(who, |this| this.mm(who.space).fault(VirtAddr(addr), access).map(drop))
    }

    fn vmas(&mut self, space: SpaceId) -> Vec<Vma> {
        let mut vmas = Vec::new();
        self.machine.run_on(CpuId(0), || self.mm(space).vmas(|info| vmas.push(self.show(info))));
        vmas
    }

    fn resident(&mut self, space: SpaceId) -> Option<Resident> {
        if self.scarce {
            // Pages that a populating verb could not bring in are no error, and the model does not know of them.
            return None;
        }
        let rss = self.machine.run_on(CpuId(0), || self.mm(space).rss());
        Some(Resident { anon: rss.anon, locked: rss.locked * 4096 })
    }

    fn single_pages(&self) -> bool {
        self.single_pages
    }

    fn may_lack_memory(&mut self) -> bool {
        self.scarce
    }

    fn check(&mut self, deep: bool) -> Result<(), String> {
        self.machine.run_on(CpuId(0), || {
            for mm in self.spaces.iter().flatten() {
                mm.validate().map_err(|fault| fault.to_string())?;
            }
            if deep {
                self.manager.validate().map_err(|violation| format!("{violation:?}"))?;
            }
            Ok(())
        })
    }
}

impl Drop for Library<'_> {
    fn drop(&mut self) {
        let (spaces, files) = (std::mem::take(&mut self.spaces), std::mem::take(&mut self.files));
        if std::thread::panicking() {
            // The library may be in any state: taking it apart would hide what went wrong first.
            std::mem::forget((spaces, files));
            return;
        }
        for cpu in 0..self.running.len() {
            if let Some(space) = self.running[cpu].take() {
                self.machine.run_on(CpuId(cpu as u32), || spaces[space].as_ref().expect("live").switch_out());
            }
        }
        self.machine.run_on(CpuId(0), || drop((spaces, files)));
    }
}
