//! The texts and words by which programs look at memory, exactly as Linux writes them: columns, names, units.
//!
//! A kernel has the files: it opens them, knows which process is meant, and passes the text on. What stands in them
//! is here, as far as the library knows it. The rest, such as the names of files, comes from the kernel.
//!
//! | file | function |
//! |---|---|
//! | `/proc/meminfo`, `/proc/vmstat` | [`meminfo()`], [`vmstat()`] |
//! | `/proc/zoneinfo`, `/proc/buddyinfo`, `/proc/pagetypeinfo` | [`zoneinfo()`], [`buddyinfo()`], [`pagetypeinfo()`] |
//! | `/sys/devices/system/node/node*/{meminfo,vmstat}` | [`node_meminfo`], [`node_vmstat`] |
//! | `/proc/PID/{maps,smaps,smaps_rollup,numa_maps}` | [`maps()`], [`smaps()`], [`smaps_rollup()`], [`numa_maps()`] |
//! | `/proc/PID/{statm,status}` | [`Sizes`] |
//! | `/proc/PID/pagemap`, `/proc/kpage{count,flags}` | [`read_pagemap`], [`read_kpagecount`], [`read_kpageflags`] |
//! | `/sys/kernel/mm/transparent_hugepage` | [`TransparentHuge`] |
//!
//! The files of pools of huge pages are in the library itself
//! ([`HugePools::read_file`](quire::hugetlb::HugePools::read_file)). Beside it are [`write_pool_file`], and the files of
//! control groups ([`GroupFile`]).
//!
//! A text is as of its writing, line by line: no lock is held while one is written, so a kernel may allocate for it.
//! All functions may sleep, as the methods of [`Mm`](quire::vm::Mm) that they call.
//!
//! Source: the files of Linux 6.18, proc(5), and Linux's `Documentation/filesystems/proc.rst`.
#![forbid(unsafe_code)]

mod columns;
mod huge;
mod maps;
mod meminfo;
mod node;
mod pools;
mod sizes;
mod smaps;
mod vmstat;
mod words;
mod zones;

pub use huge::{InvalidChoice, TransparentHuge};
pub use maps::{MappedFile, Names, is_charged, maps, numa_maps};
pub use meminfo::{KernelMemory, Kib, meminfo};
pub use node::{node_meminfo, node_vmstat};
pub use pools::{GroupFile, write_pool_file};
pub use sizes::Sizes;
pub use smaps::{smaps, smaps_rollup};
pub use vmstat::vmstat;
pub use words::{Unaligned, read_kpagecount, read_kpageflags, read_pagemap};
pub use zones::{buddyinfo, pagetypeinfo, zoneinfo};
