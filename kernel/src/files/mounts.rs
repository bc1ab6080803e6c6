//! What is mounted where, and the file systems that programs mount (`mount(2)`, `umount2(2)`).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use quire::hugetlb::{HugeFsLimits, HugeSize};
use spin::Mutex;

use super::dentry::Dentry;
use super::node::Node;
use super::tmpfs::{self, TmpFs};
use crate::errno::Errno;
use crate::memory::manager::manager;

/// A mounted file system.
pub struct Mounted {
    /// What was mounted, in the words of its program.
    pub source: String,
    /// The type.
    pub kind: &'static str,
    /// The options that differ from the usual ones, with a comma before each.
    pub options: String,
    /// Its root, above the directory that it covers.
    pub root: Arc<Dentry>,
    /// The directory that it covers; none for the root of everything.
    below: Option<Arc<Dentry>>,
}

static TABLE: Mutex<Vec<Arc<Mounted>>> = Mutex::new(Vec::new());
/// The number for the next file system that a program mounts.
static NEXT: AtomicU64 = AtomicU64::new(super::mount::FIRST_FREE_FS);

/// All of them, in the order in which they were mounted.
pub fn all() -> Vec<Arc<Mounted>> {
    TABLE.lock().clone()
}

/// Adds the root of everything.
pub fn add_root(root: &Arc<Dentry>) {
    add("tmpfs", "tmpfs", String::new(), root.clone(), None);
}

/// Puts a file system over a directory.
pub fn put(kind: &'static str, below: &Arc<Dentry>, root: Arc<dyn Node>) -> Arc<Dentry> {
    put_from(kind, kind, String::new(), below, root)
}

fn put_from(
    source: &str,
    kind: &'static str,
    options: String,
    below: &Arc<Dentry>,
    root: Arc<dyn Node>,
) -> Arc<Dentry> {
    let root = below.mount(root);
    add(source, kind, options, root.clone(), Some(below.clone()));
    root
}

fn add(source: &str, kind: &'static str, options: String, root: Arc<Dentry>, below: Option<Arc<Dentry>>) {
    TABLE.lock().push(Arc::new(Mounted { source: source.into(), kind, options, root, below }));
}

/// Mounts a file system of a type over a directory.
///
/// # Errors
/// As `mount(2)`: [`Errno::ENODEV`] for an unknown type, [`Errno::EINVAL`] for an unknown option.
pub fn mount(source: &str, at: &Arc<Dentry>, kind: &str, options: &str) -> Result<(), Errno> {
    if !at.node().is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let options = Options::parse(options)?;
    let number = || NEXT.fetch_add(1, Ordering::Relaxed);
    let (kind, shown, root): (_, _, Arc<dyn Node>) = match kind {
        "tmpfs" | "ramfs" => {
            options.check_of_tmpfs()?;
            ("tmpfs", String::new(), TmpFs::with_root(number(), options.mode.unwrap_or(0o1777)))
        }
        "hugetlbfs" => {
            let fs = manager()
                .huge_fs(options.page, options.limits()?)
                .map_err(|error| Errno::of(error.errno()))?;
            let shown = format!(",pagesize={}M", options.page.bytes() >> 20);
            let root = TmpFs::of_huge_pages(number(), options.mode.unwrap_or(0o755), options.page, fs);
            root.restore_owner(options.uid, options.gid);
            ("hugetlbfs", shown, root)
        }
        // There is one of each.
        "proc" | "sysfs" => {
            let first =
                TABLE.lock().iter().find(|mounted| mounted.kind == kind).cloned().ok_or(Errno::ENODEV)?;
            (first.kind, String::new(), first.root.node().clone())
        }
        _ => return Err(Errno::ENODEV),
    };
    put_from(source, kind, shown, at, root);
    Ok(())
}

/// Unmounts the file system that has its root at a place, which the caller refers to once. With `lazy`, files of it
/// may still be open.
///
/// # Errors
/// [`Errno::EINVAL`] for another place, [`Errno::EBUSY`] while anything in it is used.
pub fn unmount(place: &Arc<Dentry>, lazy: bool) -> Result<(), Errno> {
    let found = TABLE.lock().iter().find(|mounted| Arc::ptr_eq(&mounted.root, place)).cloned();
    let found = found.ok_or(Errno::EINVAL)?;
    let below = found.below.clone().ok_or(Errno::EBUSY)?;
    // The table, the directory below and the caller refer to the root.
    if place.is_mount_point() || !lazy && tmpfs::is_used(place, 3) {
        return Err(Errno::EBUSY);
    }
    TABLE.lock().retain(|mounted| !Arc::ptr_eq(mounted, &found));
    below.unmount();
    if found.kind != "proc" && found.kind != "sysfs" {
        tmpfs::dismantle(place);
    }
    Ok(())
}

/// Unmounts everything. No program runs.
pub fn end() {
    let all = core::mem::take(&mut *TABLE.lock());
    for mounted in all.iter().rev() {
        tmpfs::dismantle(&mounted.root);
        if let Some(below) = &mounted.below {
            below.unmount();
        }
    }
}

/// The options of a file system in memory.
struct Options {
    mode: Option<u32>,
    uid: u32,
    gid: u32,
    page: HugeSize,
    most: Option<Amount>,
    least: Option<Amount>,
}

/// An amount of memory.
enum Amount {
    Bytes(u64),
    /// Of the pool of huge pages.
    Percent(u64),
}

impl Options {
    fn parse(text: &str) -> Result<Self, Errno> {
        let mut all = Self { mode: None, uid: 0, gid: 0, page: HugeSize::Size2M, most: None, least: None };
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let number = || value.parse().map_err(|_| Errno::EINVAL);
            match name {
                "mode" => all.mode = Some(u32::from_str_radix(value, 8).map_err(|_| Errno::EINVAL)? & 0o7777),
                "uid" => all.uid = number()?,
                "gid" => all.gid = number()?,
                "pagesize" => {
                    let bytes = bytes(value)?;
                    let of_size = HugeSize::ALL.into_iter().find(|size| size.bytes() == bytes);
                    all.page = of_size.ok_or(Errno::EINVAL)?;
                }
                "size" => all.most = Some(amount(value)?),
                "min_size" => all.least = Some(amount(value)?),
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(all)
    }

    /// The files of a tmpfs take what memory there is: a limit would have to be kept by each page fault.
    fn check_of_tmpfs(&self) -> Result<(), Errno> {
        if self.most.is_some() || self.least.is_some() { Err(Errno::EINVAL) } else { Ok(()) }
    }

    fn limits(&self) -> Result<HugeFsLimits, Errno> {
        let pool = manager().huge_pools().info(manager().pages(), self.page).persistent();
        let pages = |amount: &Amount| match amount {
            Amount::Bytes(bytes) => bytes / self.page.bytes(),
            Amount::Percent(percent) => pool * percent / 100,
        };
        let (max, min) = (self.most.as_ref().map(pages), self.least.as_ref().map(pages));
        Ok(HugeFsLimits { max: max.unwrap_or(u64::MAX), min: min.unwrap_or(0) })
    }
}

fn amount(text: &str) -> Result<Amount, Errno> {
    match text.strip_suffix('%') {
        Some(percent) => Ok(Amount::Percent(percent.parse().map_err(|_| Errno::EINVAL)?)),
        None => Ok(Amount::Bytes(bytes(text)?)),
    }
}

/// A number with a letter for its unit.
fn bytes(text: &str) -> Result<u64, Errno> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        _ => return Err(Errno::EINVAL),
    };
    let number: u64 = digits.parse().map_err(|_| Errno::EINVAL)?;
    number.checked_shl(shift).filter(|bytes| bytes >> shift == number).ok_or(Errno::EINVAL)
}
