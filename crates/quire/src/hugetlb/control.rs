//! Linux's control files for pools, as paths and text, so that a kernel can export them unchanged.
//!
//! | path | read | write |
//! |---|---|---|
//! | `hugepages-2048kB/nr_hugepages` | persistent and surplus pages | resizes the pool |
//! | `.../nr_hugepages_mempolicy` | the same | the same on the nodes of the writer's policy |
//! | `.../nr_overcommit_hugepages` | surplus pages that there may be | changes it |
//! | `.../free_hugepages`, `resv_hugepages`, `surplus_hugepages` | numbers | |
//! | `hugepages-1048576kB/demote` | | pages to demote |
//! | `.../demote_size` | what they become, `2048kB` | |
//! | `.../promote` | | pages to make of 512 smaller ones; not in Linux |
//! | `vm/hugetlb_optimize_vmemmap` | 1: descriptors of pages that join a pool are saved | switches that, if the policy leaves the choice |
//!
//! With `node0/` in front, `nr_hugepages`, `free_hugepages`, `surplus_hugepages`, `demote` and `promote` are
//! one node's. (Linux: `/sys/kernel/mm/hugepages`, `/sys/devices/system/node/node0/hugepages`,
//! `/proc/sys/vm`.)
#![forbid(unsafe_code)]

use core::fmt::Write;

use super::{Demoted, HugePools, HugeSize, Resized};
use crate::error::errno::{EACCES, EINVAL, ENOENT, ERANGE};
use crate::limits::MAX_NODES;
use crate::page_alloc::{NodeSet, PageAllocator};
use crate::platform::Platform;

/// Why a control file could not be read or written. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlError {
    /// `ENOENT`: there is no such file, or the machine has no such node.
    NoSuchFile,
    /// `EACCES`: it can only be written, or only be read.
    NotPermitted,
    /// `EINVAL`: the text is no number, or none that the file accepts.
    NotANumber,
    /// `ERANGE`: the output has no room for the text.
    NoRoom,
}

impl ControlError {
    /// The errno that the variant's description names.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoSuchFile => ENOENT,
            Self::NotPermitted => EACCES,
            Self::NotANumber => EINVAL,
            Self::NoRoom => ERANGE,
        }
    }
}

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a resize may do less than was asked for"]
pub enum Outcome {
    /// It resized a pool.
    Resized(Resized),
    /// It demoted or promoted pages.
    Demoted(Demoted),
    /// It changed a limit, or switched something.
    Set,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Nr,
    NrMempolicy,
    Overcommit,
    Free,
    Reserved,
    Surplus,
    Demote,
    DemoteSize,
    Promote,
}

struct File {
    node: Option<u8>,
    size: HugeSize,
    name: Name,
}

impl File {
    fn parse(path: &str, nodes: usize) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let mut part = parts.next()?;
        let mut node = None;
        if let Some(number) = part.strip_prefix("node") {
            node = Some(number.parse::<u8>().ok().filter(|&node| usize::from(node) < nodes)?);
            part = parts.next()?;
        }
        let size = match part {
            "hugepages-2048kB" => HugeSize::Size2M,
            "hugepages-1048576kB" => HugeSize::Size1G,
            _ => return None,
        };
        let name = match (parts.next()?, size) {
            ("nr_hugepages", _) => Name::Nr,
            ("free_hugepages", _) => Name::Free,
            ("surplus_hugepages", _) => Name::Surplus,
            ("nr_hugepages_mempolicy", _) if node.is_none() => Name::NrMempolicy,
            ("nr_overcommit_hugepages", _) if node.is_none() => Name::Overcommit,
            ("resv_hugepages", _) if node.is_none() => Name::Reserved,
            ("demote", HugeSize::Size1G) => Name::Demote,
            ("demote_size", HugeSize::Size1G) if node.is_none() => Name::DemoteSize,
            ("promote", HugeSize::Size1G) => Name::Promote,
            _ => return None,
        };
        parts.next().is_none().then_some(Self { node, size, name })
    }
}

impl HugePools<'_> {
    /// Reads a control file: a number and a line feed.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn read_file<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        path: &str,
        out: &mut impl Write,
    ) -> Result<(), ControlError> {
        if is_saving_file(path) {
            return writeln!(out, "{}", u8::from(self.is_saving())).map_err(|_| ControlError::NoRoom);
        }
        let file = File::parse(path, pages.requests().node_count()).ok_or(ControlError::NoSuchFile)?;
        let info = match file.node {
            Some(node) => self.node_info(pages, file.size, node),
            None => self.info(pages, file.size),
        };
        let number = match file.name {
            Name::Nr | Name::NrMempolicy => info.total,
            Name::Overcommit => self.overcommit(pages, file.size),
            Name::Free => info.free,
            Name::Reserved => info.reserved,
            Name::Surplus => info.surplus,
            Name::DemoteSize => return writeln!(out, "2048kB").map_err(|_| ControlError::NoRoom),
            Name::Demote | Name::Promote => return Err(ControlError::NotPermitted),
        };
        writeln!(out, "{number}").map_err(|_| ControlError::NoRoom)
    }

    /// Writes a number to a control file. `nr_hugepages_mempolicy` takes the writer's policy from `nodes`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn write_file<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        nodes: NodeSet,
        path: &str,
        text: &str,
    ) -> Result<Outcome, ControlError> {
        if is_saving_file(path) {
            return self.write_saving(text);
        }
        let file = File::parse(path, pages.requests().node_count()).ok_or(ControlError::NoSuchFile)?;
        let number = text.trim().parse::<u64>().map_err(|_| ControlError::NotANumber);
        let all = NodeSet::first(pages.requests().node_count().min(MAX_NODES));
        let (size, here) = (file.size, file.node.map_or(all, NodeSet::one));
        Ok(match file.name {
            Name::Nr => Outcome::Resized(match file.node {
                Some(node) => self.resize_node(pages, size, node, number?),
                None => self.resize(pages, size, all, number?),
            }),
            Name::NrMempolicy => Outcome::Resized(self.resize(pages, size, nodes.intersection(all), number?)),
            Name::Overcommit => {
                self.set_overcommit(pages, size, number?);
                Outcome::Set
            }
            Name::Demote => Outcome::Demoted(self.demote(pages, here, number?)),
            Name::Promote => Outcome::Demoted(self.promote(pages, here, number?)),
            Name::Free | Name::Reserved | Name::Surplus | Name::DemoteSize => {
                return Err(ControlError::NotPermitted);
            }
        })
    }

    fn write_saving(&self, text: &str) -> Result<Outcome, ControlError> {
        let saving = match text.trim() {
            "0" => false,
            "1" => true,
            _ => return Err(ControlError::NotANumber),
        };
        if self.set_saving(saving) { Ok(Outcome::Set) } else { Err(ControlError::NotPermitted) }
    }
}

fn is_saving_file(path: &str) -> bool {
    path.trim_matches('/') == "vm/hugetlb_optimize_vmemmap"
}
