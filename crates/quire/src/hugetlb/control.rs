//! Linux's control files for pools, as paths and text, so that a kernel can export them unchanged.
//!
//! | path | read | write |
//! |---|---|---|
//! | `hugepages-2048kB/nr_hugepages` | persistent and surplus pages | resizes the pool |
//! | `.../nr_hugepages_mempolicy` | the same | the same on the nodes of the writer's policy |
//! | `.../nr_overcommit_hugepages` | surplus pages that there may be | changes it |
//! | `.../free_hugepages`, `resv_hugepages`, `surplus_hugepages` | numbers | |
//! | `hugepages-1048576kB/demote` | | pages to demote |
//! | `.../demote_size` | what they become, `2048kB` | the same in any unit |
//! | `.../promote` | | pages to make of 512 smaller ones; not in Linux |
//! | `vm/nr_hugepages` and its two kin | as the files of the default size | the same |
//! | `vm/hugetlb_shm_group` | the group of users that may have segments of huge pages | changes it |
//! | `vm/hugetlb_optimize_vmemmap` | 1: descriptors of pages that join a pool are saved | switches that, if the policy leaves the choice |
//!
//! With `node0/` in front, `nr_hugepages`, `free_hugepages`, `surplus_hugepages`, `demote`, `demote_size` and
//! `promote` are one node's. (Linux: `/sys/kernel/mm/hugepages`, `/sys/devices/system/node/node0/hugepages`,
//! `/proc/sys/vm`.)
//!
//! Numbers are read as Linux reads them: in `vm/` with spaces around them, in base 8 or 16 if they start with
//! `0` or `0x`, and further numbers are ignored; elsewhere as digits and at most one line feed. Linux has no
//! surplus pages of 1 GiB, and refuses a write to their `nr_overcommit_hugepages`.
#![forbid(unsafe_code)]

use core::fmt::Write;
use core::sync::atomic::Ordering;

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
    /// `ERANGE`: the number has more than 64 bits.
    TooLarge,
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
            Self::TooLarge | Self::NoRoom => ERANGE,
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
    ShmGroup,
    Saving,
}

struct File {
    node: Option<u8>,
    size: HugeSize,
    name: Name,
    number: fn(&str) -> Result<i128, ControlError>,
}

impl File {
    fn parse(path: &str, nodes: usize, default: HugeSize) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let mut part = parts.next()?;
        if part == "vm" {
            let name = match parts.next()? {
                "nr_hugepages" => Name::Nr,
                "nr_hugepages_mempolicy" => Name::NrMempolicy,
                "nr_overcommit_hugepages" => Name::Overcommit,
                "hugetlb_shm_group" => Name::ShmGroup,
                "hugetlb_optimize_vmemmap" => Name::Saving,
                _ => return None,
            };
            let file = Self { node: None, size: default, name, number: sysctl_number };
            return parts.next().is_none().then_some(file);
        }
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
            ("demote_size", HugeSize::Size1G) => Name::DemoteSize,
            ("promote", HugeSize::Size1G) => Name::Promote,
            _ => return None,
        };
        parts.next().is_none().then_some(Self { node, size, name, number: sysfs_number })
    }

    /// The nodes on which a write of a task with this policy changes pages.
    fn nodes<P: Platform>(&self, pages: &PageAllocator<'_, P>, policy: NodeSet) -> NodeSet {
        let all = NodeSet::first(pages.requests().node_count().min(MAX_NODES));
        match (self.node, self.name) {
            (Some(node), _) => NodeSet::one(node),
            (None, Name::NrMempolicy) => policy.intersection(all),
            (None, _) => all,
        }
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
        let file = self.file(pages, path)?;
        let info = match file.node {
            Some(node) => self.node_info(pages, file.size, node),
            None => self.info(pages, file.size),
        };
        let number: i128 = match file.name {
            Name::Nr | Name::NrMempolicy => info.total.into(),
            Name::Overcommit => self.overcommit(pages, file.size).into(),
            Name::Free => info.free.into(),
            Name::Reserved => info.reserved.into(),
            Name::Surplus => info.surplus.into(),
            Name::ShmGroup => self.shm_group().into(),
            Name::Saving => self.is_saving().into(),
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
        let file = self.file(pages, path)?;
        let signed = (file.number)(text);
        let number = signed.and_then(|number| u64::try_from(number).map_err(|_| ControlError::NotANumber));
        let (size, nodes) = (file.size, file.nodes(pages, nodes));
        Ok(match file.name {
            Name::Nr => Outcome::Resized(match file.node {
                Some(node) => self.resize_node(pages, size, node, number?),
                None => self.resize(pages, size, nodes, number?),
            }),
            Name::NrMempolicy => Outcome::Resized(self.resize(pages, size, nodes, number?)),
            Name::Overcommit => {
                self.set_overcommit(pages, size, number?);
                Outcome::Set
            }
            Name::Demote => Outcome::Demoted(self.demote(pages, nodes, number?)),
            Name::Promote => Outcome::Demoted(self.promote(pages, nodes, number?)),
            // The only size that there is below 1 GiB.
            Name::DemoteSize => match parse_bytes(text) {
                Some((bytes, _)) if bytes == HugeSize::Size2M.bytes() => Outcome::Set,
                _ => return Err(ControlError::NotANumber),
            },
            Name::ShmGroup => {
                let group = i32::try_from(signed?).map_err(|_| ControlError::NotANumber)?;
                self.shm_group.store(group, Ordering::Relaxed);
                Outcome::Set
            }
            Name::Saving => {
                let saving = signed? != 0;
                if !self.set_saving(saving) && saving != self.is_saving() {
                    return Err(ControlError::NotPermitted);
                }
                Outcome::Set
            }
            Name::Free | Name::Reserved | Name::Surplus => return Err(ControlError::NotPermitted),
        })
    }

    /// The pool that a control file is about, and the nodes on which a write changes it.
    pub fn file_pool<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        nodes: NodeSet,
        path: &str,
    ) -> Option<(HugeSize, NodeSet)> {
        self.file(pages, path).ok().map(|file| (file.size, file.nodes(pages, nodes)))
    }

    fn file<P: Platform>(&self, pages: &PageAllocator<'_, P>, path: &str) -> Result<File, ControlError> {
        let nodes = pages.requests().node_count();
        File::parse(path, nodes, self.default_size()).ok_or(ControlError::NoSuchFile)
    }

    /// The group of users that may make segments of huge pages without further rights
    /// (`vm.hugetlb_shm_group`). For the kernel's `shmget`: the library does not use it.
    pub fn shm_group(&self) -> i32 {
        self.shm_group.load(Ordering::Relaxed)
    }

    /// The size that a caller means that names none: 2 MiB at first.
    pub fn default_size(&self) -> HugeSize {
        if self.default_is_gigantic.load(Ordering::Relaxed) { HugeSize::Size1G } else { HugeSize::Size2M }
    }

    /// Sets it (`default_hugepagesz=`).
    pub fn set_default_size(&self, size: HugeSize) {
        self.default_is_gigantic.store(size == HugeSize::Size1G, Ordering::Relaxed);
    }
}

/// An amount of memory as Linux reads it (`memparse`), a number and perhaps a letter for its unit; and what
/// follows in the text.
pub fn parse_bytes(text: &str) -> Option<(u64, &str)> {
    let (number, rest) = leading_number(text)?;
    let letter = rest.bytes().next().map(|letter| letter.to_ascii_lowercase());
    let unit = b"kmgtpe".iter().position(|&unit| Some(unit) == letter);
    let (shift, rest) = unit.map_or((0, rest), |unit| (10 * (unit + 1), &rest[1..]));
    Some((number.checked_mul(1 << shift)?, rest))
}

/// The digits at the start of a text, in the base that they name, and what follows them.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let (base, digits) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None => (if text.starts_with('0') { 8 } else { 10 }, text),
    };
    let end = digits.find(|letter: char| !letter.is_digit(base)).unwrap_or(digits.len());
    let number = u64::from_str_radix(&digits[..end], base).ok()?;
    Some((number, &digits[end..]))
}

fn sysfs_number(text: &str) -> Result<i128, ControlError> {
    let digits = text.strip_suffix('\n').unwrap_or(text);
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    if digits.is_empty() || !digits.bytes().all(|letter| letter.is_ascii_digit()) {
        return Err(ControlError::NotANumber);
    }
    digits.parse::<u64>().map(i128::from).map_err(|_| ControlError::TooLarge)
}

fn sysctl_number(text: &str) -> Result<i128, ControlError> {
    let text = text.trim_start();
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let found =
        leading_number(digits).filter(|(_, rest)| rest.is_empty() || rest.starts_with([' ', '\t', '\n']));
    found.map(|(number, _)| sign * i128::from(number)).ok_or(ControlError::NotANumber)
}
