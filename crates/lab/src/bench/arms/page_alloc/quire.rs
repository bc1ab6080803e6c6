//! Quire's page allocator on a hosted machine, with each of the ways to guard its per-CPU lists.

use hosted::raw::RawPages;
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator, Urgency};

use super::case::{Crowded, Frames, Operation, PageAlloc};
use super::loops::prepare;
use crate::bench::experiment::{Arm, Prepared, Skip};
use crate::bench::ours::guarding::{OnBare, with_guard};
use crate::bench::ours::guards;

/// A machine that several cases use one after the other.
pub(super) type Shared = Rc<OnceCell<Hosted>>;

/// `PageAllocator`, one list and one shard per thread.
pub(super) struct Quire {
    config: AllocatorConfig,
    /// The machine of the last case; the next case reuses it if it has as many threads.
    machine: Option<Hosted>,
    /// The machine of the cases that fill all memory, shared by all arms, since each of them touches all of
    /// it.
    crowded: Shared,
}

impl Quire {
    /// The configurations of the arms.
    pub(super) fn arms() -> [AllocatorConfig; 3] {
        guards::ALL.map(|lists| AllocatorConfig { lists, ..AllocatorConfig::default() })
    }

    pub(super) fn new(config: AllocatorConfig, crowded: &Shared) -> Self {
        Self { config, machine: None, crowded: Rc::clone(crowded) }
    }
}

impl Arm<PageAlloc> for Quire {
    fn name(&self) -> &'static str {
        guards::name_of(self.config.lists)
    }

    fn about(&self) -> &'static str {
        guards::about(self.config.lists)
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let (config, threads) = (self.config, case.threads);
        if matches!(case.operation, Operation::Crowded(_)) {
            let machine = match self.crowded.get() {
                Some(machine) => machine,
                None => {
                    let machine = build(case, true)?;
                    self.crowded.get_or_init(|| machine)
                }
            };
            return match case.operation {
                Operation::Crowded(Crowded::Scarce) => with_guard!(config.lists, P => {
                    prepare(case, move || cpus::<P, true>(machine, config, threads))
                }),
                _ => with_guard!(config.lists, P => {
                    prepare(case, move || cpus::<P, false>(machine, config, threads))
                }),
            };
        }
        let machine = match self.machine.take().filter(|machine| machine.config().cpus == threads) {
            Some(machine) => machine,
            None => build(case, false)?,
        };
        let machine = &*self.machine.insert(machine);
        with_guard!(config.lists, P => prepare(case, move || cpus::<P, false>(machine, config, threads)))
    }
}

/// A machine for `case`, all of its memory touched or none.
fn build(case: &PageAlloc, prefault: bool) -> Result<Hosted, Skip> {
    let bytes = case.frames as u64 * 4096;
    HostedConfig { prefault, real_ipis: false, ..HostedConfig::bench(bytes) }
        .with_cpus(case.threads)
        .build()
        .map_err(|error| Skip(error.to_string()))
}

/// An allocator over all memory of a machine, and each of its CPUs.
fn cpus<P: OnBare, const ALL: bool>(
    machine: &Hosted,
    config: AllocatorConfig,
    threads: usize,
) -> Result<Vec<Cpu<'_, P, ALL>>, Skip> {
    // SAFETY: H3: the loops use the allocator in `Cpu::as_cpu` alone, which runs them as a CPU of this machine.
    let allocator = Arc::new(unsafe { guards::allocator(machine, config, false) }?);
    let cpu = |cpu| Cpu { machine, allocator: allocator.clone(), cpu: CpuId(cpu as u32) };
    Ok((0..threads).map(cpu).collect())
}

/// One thread as a CPU of the machine. Ordinary requests stop at their watermark; with `ALL`, requests take
/// every frame.
struct Cpu<'m, P: OnBare, const ALL: bool> {
    machine: &'m Hosted,
    allocator: Arc<PageAllocator<'m, P>>,
    cpu: CpuId,
}

impl<P: OnBare, const ALL: bool> Cpu<'_, P, ALL> {
    const GFP: Gfp = if ALL { Gfp { urgency: Urgency::Reserve, ..Gfp::USER } } else { Gfp::USER };

    #[inline(always)]
    fn order<const ORDER: u8>() -> Order {
        Order::new(ORDER).unwrap_or(Order::FRAME)
    }
}

impl<P: OnBare, const ALL: bool> Frames for Cpu<'_, P, ALL> {
    type Frame = Frame;

    fn as_cpu<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        self.machine.run_on(self.cpu, || body(self))
    }

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<Frame> {
        self.allocator.alloc_raw(Self::GFP, Self::order::<ORDER>()).ok()
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: Frame) {
        let freed = self.allocator.free_raw(frame, Self::order::<ORDER>());
        debug_assert_eq!(freed, Ok(()));
    }

    fn take_bulk(&mut self, frames: &mut [Frame]) -> usize {
        self.allocator.alloc_bulk_raw(Self::GFP, Order::FRAME, frames)
    }

    fn give_bulk(&mut self, frames: &[Frame]) {
        let freed = self.allocator.free_bulk_raw(Order::FRAME, frames);
        assert_eq!(freed, Ok(()), "a frame was refused");
    }

    fn free_frames(&self) -> Option<u64> {
        let info = self.allocator.memory_info();
        Some(info.free + info.cached)
    }
}
