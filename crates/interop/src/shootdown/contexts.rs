//! Process-context identifiers (PCID): under which one a CPU has the translations of which root (Intel SDM
//! volume 3A, section 4.10.1).

use quire::addr::Frame;
use quire::cpu::CpuId;

use crate::atomic::{AtomicU64, Ordering};

/// Set in CR3: the translations of the identifier stay.
const KEEP: u64 = 1 << 63;
/// The highest identifier.
const LAST: usize = 0xfff;

/// A value of CR3: a root, the identifier under which the CPU has its translations, and whether those stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cr3(u64);

impl Cr3 {
    /// The root, with identifier 0 and without translations.
    pub const fn new(root: Frame) -> Self {
        Self(root.addr().0)
    }

    /// The register's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    const fn with_id(self, id: u64, keeps: bool) -> Self {
        Self(self.0 | id | if keeps { KEEP } else { 0 })
    }
}

/// The roots of one CPU, by identifier less one. No root has the number 0, in which the machine's first page
/// is.
#[repr(align(64))]
struct OfCpu<const IDS: usize> {
    roots: [AtomicU64; IDS],
    next: AtomicU64,
}

/// The identifiers of a machine with at most `CPUS` CPUs, numbered from 0. Each CPU uses those from 1 to
/// `IDS` for the roots that it has loaded last, and 0 for the kernel's own.
pub struct ContextIds<const CPUS: usize, const IDS: usize>([OfCpu<IDS>; CPUS]);

impl<const CPUS: usize, const IDS: usize> ContextIds<CPUS, IDS> {
    /// No CPU has translations.
    pub const fn new() -> Self {
        const { assert!(0 < IDS && IDS <= LAST, "a processor has 4095 identifiers besides 0") };
        Self([const { OfCpu { roots: [const { AtomicU64::new(0) }; IDS], next: AtomicU64::new(0) } }; CPUS])
    }

    /// How the CPU loads a root without any translation of it: for
    /// [`load_root`](quire::platform::TablePlatform::load_root).
    ///
    /// Precondition: `cpu` is the running CPU, pinned, and nothing that interrupts it loads a root.
    pub fn fresh(&self, cpu: CpuId, root: Frame) -> Cr3 {
        let (id, _) = self.id_of(cpu, root);
        Cr3::new(root).with_id(id, false)
    }

    /// How the CPU loads a root with what it has of it: for
    /// [`load_kept_root`](quire::platform::TablePlatform::load_kept_root). Preconditions as for [`Self::fresh`].
    pub fn kept(&self, cpu: CpuId, root: Frame) -> Cr3 {
        let (id, is_known) = self.id_of(cpu, root);
        Cr3::new(root).with_id(id, is_known)
    }

    /// The identifier of a root, and whether it was its own before. Otherwise it was that of the root that
    /// got one first.
    fn id_of(&self, cpu: CpuId, root: Frame) -> (u64, bool) {
        let OfCpu { roots, next } = &self.0[cpu.index()];
        if let Some(at) = roots.iter().position(|known| known.load(Ordering::Relaxed) == root.0) {
            return (at as u64 + 1, true);
        }
        let at = next.load(Ordering::Relaxed);
        next.store((at + 1) % IDS as u64, Ordering::Relaxed);
        roots[at as usize].store(root.0, Ordering::Relaxed);
        (at + 1, false)
    }
}

impl<const CPUS: usize, const IDS: usize> Default for ContextIds<CPUS, IDS> {
    fn default() -> Self {
        Self::new()
    }
}
