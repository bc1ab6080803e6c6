//! Flushes of other CPUs' translations, with a mailbox for each CPU.
//!
//! The four methods of [`TablePlatform`](quire::platform::TablePlatform) without a default become one line
//! each. A kernel provides its interrupt between processors, and keeps one [`Shootdown`] in a static.
//!
//! ```
//! use quire::addr::Frame;
//! use quire::cpu::{CpuId, CpuSet};
//! use quire::platform::FlushRequest;
//! use quire_interop::shootdown::{LocalTlb, Ring0, Shootdown};
//!
//! static SHOOTDOWN: Shootdown<64> = Shootdown::new();
//!
//! struct Kernel {
//!     tlb: Ring0,
//!     /// Maps the kernel, and no user memory.
//!     own_root: Frame,
//! }
//!
//! # fn running_cpu() -> CpuId { CpuId(0) }
//! # fn send_interrupts(_: &CpuSet) {}
//! # #[expect(dead_code)]
//! impl Kernel {
//!     fn load_root(&self, root: Option<Frame>) {
//!         // SAFETY: each root maps the kernel at the same addresses.
//!         unsafe { self.tlb.load_root(root.unwrap_or(self.own_root)) }
//!     }
//!
//!     fn flush_local(&self, request: &FlushRequest) {
//!         self.tlb.flush(request);
//!     }
//!
//!     fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
//!         SHOOTDOWN.start(running_cpu(), targets, request, send_interrupts);
//!     }
//!
//!     fn flush_remote_wait(&self, _targets: &CpuSet, _request: &FlushRequest) {
//!         SHOOTDOWN.wait(running_cpu(), &self.tlb);
//!     }
//!
//!     /// The handler of the interrupt that `send_interrupts` sends.
//!     fn interrupt(&self) {
//!         SHOOTDOWN.handle(running_cpu(), &self.tlb);
//!         // Then tell the local APIC that the interrupt is over.
//!     }
//! }
//! ```
//!
//! `send_interrupts` can be [`LocalApic::send`]. A flush starts with interrupts on, and a command to
//! registers in memory (xAPIC) needs them off:
//!
//! ```
//! # use quire::cpu::CpuSet;
//! # use quire_interop::shootdown::{Delivery, LocalApic};
//! # const FLUSH: u8 = 0xf1;
//! # fn apic_id(cpu: quire::cpu::CpuId) -> u32 { cpu.0 }
//! # fn without_interrupts<R>(act: impl FnOnce() -> R) -> R { act() }
//! # #[expect(dead_code)]
//! fn send_interrupts(apic: LocalApic, cpus: &CpuSet) {
//!     without_interrupts(|| apic.send(cpus.iter().map(apic_id), Delivery::Vector(FLUSH)));
//! }
//! ```
//!
//! A kernel that has its own driver for the APIC leaves `LocalApic` out.
//!
//! # Process-context identifiers
//!
//! Without them (`CR4.PCIDE` is clear) loading a root flushes all that is not global. With them a CPU keeps
//! the translations of the address spaces that it ran last, under an identifier each. [`ContextIds`] knows
//! which, and the library whether they are good when the CPU returns. Flushes stay as above: they concern the
//! loaded root alone.
//!
//! ```
//! # use quire::addr::Frame;
//! # use quire::cpu::CpuId;
//! # use quire_interop::shootdown::{ContextIds, Cr3, Ring0};
//! # fn running_cpu() -> CpuId { CpuId(0) }
//! # fn without_interrupts<R>(act: impl FnOnce() -> R) -> R { act() }
//! static CONTEXTS: ContextIds<64, 6> = ContextIds::new();
//!
//! # struct Kernel { tlb: Ring0, own_root: Frame }
//! # #[expect(dead_code)]
//! impl Kernel {
//!     fn keeps_translations(&self) -> bool {
//!         true // Where CPUID says that the processor has them, and CR4.PCIDE is set on all CPUs.
//!     }
//!
//!     fn load_root(&self, root: Option<Frame>) {
//!         let value = root.map_or(Cr3::new(self.own_root), |root| CONTEXTS.fresh(running_cpu(), root));
//!         // SAFETY: each root maps the kernel at the same addresses.
//!         unsafe { self.tlb.load_context(value) }
//!     }
//!
//!     fn load_kept_root(&self, root: Frame, is_good: impl FnOnce() -> bool) {
//!         // A flush that comes after the answer must find the root loaded.
//!         without_interrupts(|| {
//!             let cpu = running_cpu();
//!             let value = if is_good() { CONTEXTS.kept(cpu, root) } else { CONTEXTS.fresh(cpu, root) };
//!             // SAFETY: each root maps the kernel at the same addresses.
//!             unsafe { self.tlb.load_context(value) }
//!         });
//!     }
//! }
//! ```

mod apic;
mod contexts;
mod local;
mod mailbox;
mod ring0;

pub use apic::{Delivery, LocalApic};
pub use contexts::{ContextIds, Cr3};
pub use local::LocalTlb;
pub use mailbox::Shootdown;
pub use ring0::Ring0;
