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
//! Process-context identifiers (PCID) are not used: loading a root flushes all that is not global. The library
//! makes no flush for an address space that no CPU runs, so a CPU could not know whether translations that it
//! kept across a switch are still good.

mod local;
mod mailbox;
mod ring0;

pub use local::LocalTlb;
pub use mailbox::Shootdown;
pub use ring0::Ring0;
