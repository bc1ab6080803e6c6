//! What is mounted where, and the file systems that programs mount (`mount(2)`, `umount2(2)`).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sync::Mutex;
use linux_raw_sys::general as abi;
use quire::hugetlb::{HugeFsLimits, HugeSize};

use super::dentry::Dentry;
use super::ext2::Ext2;
use super::generated;
use super::mounted;
use super::node::Node;
use super::tmpfs::{self, TmpFs};
use crate::device::serial::log;
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::manager::manager;
use crate::task::sleep_lock::SleepLock;

/// A mounted file system.
pub struct Mounted {
    /// Its number, which no other one has had. The root of everything has the first.
    pub number: u64,
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
    /// What is on a disk.
    pub disk: Option<Arc<Ext2>>,
    /// What its files cannot be used for: `MS_NOSUID`, `MS_NODEV`, `MS_NOEXEC`.
    limits: u32,
}

/// The flags of [`Mounted::limits`] with their options.
const LIMITS: [(u32, &str); 3] =
    [(abi::MS_NOSUID, ",nosuid"), (abi::MS_NODEV, ",nodev"), (abi::MS_NOEXEC, ",noexec")];

impl Mounted {
    /// Whether it cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.disk.as_ref().is_some_and(|fs| fs.read_only)
    }

    /// Whether it can be written, in the words of an option.
    pub fn rights(&self) -> &'static str {
        if self.is_read_only() { "ro" } else { "rw" }
    }

    /// Its flags, whose numbers `mount` and `statfs` share.
    pub fn flags(&self) -> u32 {
        self.limits | if self.is_read_only() { abi::MS_RDONLY } else { 0 }
    }
}

/// The file system that a place is in, unless it was unmounted.
pub fn of(place: &Arc<Dentry>) -> Option<Arc<Mounted>> {
    let mut at = Some(place.clone());
    while let Some(here) = at {
        let found = TABLE.lock().iter().find(|mounted| Arc::ptr_eq(&mounted.root, &here)).cloned();
        if found.is_some() {
            return found;
        }
        at = here.parent();
    }
    None
}

/// The flags that any file system has had: mostly none, so that nothing is searched.
static FLAGS: AtomicU32 = AtomicU32::new(0);

/// Whether the file system that a place is in has a flag (`MS_RDONLY` …).
pub fn has_flag(place: &Arc<Dentry>, flag: u32) -> bool {
    FLAGS.load(Ordering::Relaxed) & flag != 0 && of(place).is_some_and(|mounted| mounted.flags() & flag != 0)
}

/// Held while anything is mounted or unmounted, or a disk is opened to be written.
pub static CHANGES: SleepLock<()> = SleepLock::new(());
static TABLE: Mutex<Vec<Arc<Mounted>>> = Mutex::new(Vec::new());
/// The number for the next file system that a program mounts.
static NEXT: AtomicU64 = AtomicU64::new(super::mount::FIRST_FREE_FS);
/// The last number of a mount.
static LAST_MOUNT: AtomicU64 = AtomicU64::new(0);

/// All of them, in the order in which they were mounted. Needs no memory, and misses none that is there all the time.
pub fn all() -> impl Iterator<Item = Arc<Mounted>> {
    let mut after = 0;
    core::iter::from_fn(move || {
        let table = TABLE.lock();
        // The table is in the order of the numbers.
        let next = table.partition_point(|mounted| mounted.number <= after);
        let mounted = table.get(next)?.clone();
        after = mounted.number;
        Some(mounted)
    })
}

/// Adds the root of everything.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn add_root(root: &Arc<Dentry>) -> Result<(), Errno> {
    reserve()?;
    add(
        "tmpfs",
        None,
        root,
        New { kind: "tmpfs", options: String::new(), root: root.node().clone(), disk: None, limits: 0 },
    );
    Ok(())
}

/// Puts a file system over a directory.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn put(kind: &'static str, below: &Arc<Dentry>, root: Arc<dyn Node>) -> Result<Arc<Dentry>, Errno> {
    reserve()?;
    Ok(put_new(kind, below, New { kind, options: String::new(), root, disk: None, limits: 0 }))
}

/// Makes the table large enough for one more, which nothing but its caller adds.
fn reserve() -> Result<(), Errno> {
    list::reserve(&mut TABLE.lock(), 1)
}

/// A file system that is about to be mounted.
struct New {
    kind: &'static str,
    options: String,
    root: Arc<dyn Node>,
    disk: Option<Arc<Ext2>>,
    limits: u32,
}

fn put_new(source: &str, below: &Arc<Dentry>, new: New) -> Arc<Dentry> {
    let root = below.mount(new.root.clone());
    add(source, Some(below.clone()), &root, new);
    root
}

/// Adds an entry, for which the caller has reserved memory.
fn add(source: &str, below: Option<Arc<Dentry>>, root: &Arc<Dentry>, new: New) {
    let New { kind, options, disk, limits, .. } = new;
    let (number, source, root) =
        (LAST_MOUNT.fetch_add(1, Ordering::Relaxed) + 1, source.into(), root.clone());
    let mounted = Mounted { number, source, kind, options, root, below, disk, limits };
    FLAGS.fetch_or(mounted.flags(), Ordering::Relaxed);
    TABLE.lock().push(Arc::new(mounted));
}

/// Mounts a file system of a type over a directory: one on a disk, whose file the caller gives, or another one.
///
/// # Errors
/// As `mount(2)`: [`Errno::ENODEV`] for an unknown type, [`Errno::EINVAL`] for an unknown option, [`Errno::ENOMEM`].
pub fn mount(
    (source, disk): (&str, Option<Arc<Dentry>>),
    at: &Arc<Dentry>,
    kind: &str,
    options: &str,
    flags: u32,
) -> Result<(), Errno> {
    if !at.node().is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let _one_at_a_time = CHANGES.lock();
    // First: what is loaded has to be mounted.
    reserve()?;
    // Another task may have mounted over the place, or removed it.
    let at = &at.clone().covered();
    if at.is_removed() {
        return Err(Errno::ENOENT);
    }
    let read_only = flags & abi::MS_RDONLY != 0;
    let mut new = match disk {
        Some(disk) => {
            let fs = mounted::load(&disk, read_only)?;
            New { kind: "ext2", options: String::new(), root: fs.root()?, disk: Some(fs), limits: 0 }
        }
        // Those in memory can be written.
        None if read_only => return Err(Errno::EINVAL),
        None => in_memory(kind, &Options::parse(options)?)?,
    };
    for (limit, name) in LIMITS.into_iter().filter(|(limit, _)| flags & limit != 0) {
        new.limits |= limit;
        new.options.push_str(name);
    }
    put_new(source, at, new);
    Ok(())
}

fn in_memory(kind: &str, options: &Options) -> Result<New, Errno> {
    let number = || NEXT.fetch_add(1, Ordering::Relaxed);
    let (kind, shown, root): (_, _, Arc<dyn Node>) = match kind {
        "tmpfs" | "ramfs" => {
            options.check_of_tmpfs()?;
            let root = TmpFs::with_root(number(), options.mode.unwrap_or(0o1777));
            root.restore_owner(options.uid, options.gid);
            ("tmpfs", String::new(), root)
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
        "cgroup2" => ("cgroup2", String::new(), generated::group_root(number())),
        // There is one of each.
        "proc" | "sysfs" => {
            let first =
                TABLE.lock().iter().find(|mounted| mounted.kind == kind).cloned().ok_or(Errno::ENODEV)?;
            (first.kind, String::new(), first.root.node().clone())
        }
        _ => return Err(Errno::ENODEV),
    };
    Ok(New { kind, options: shown, root, disk: None, limits: 0 })
}

/// Unmounts the file system that has its root at a place, which the caller refers to once. With `lazy`, files of one
/// in memory may still be open.
///
/// # Errors
/// [`Errno::EINVAL`] for another place, [`Errno::EBUSY`] while anything in it is used; [`Errno::EIO`].
pub fn unmount(place: &Arc<Dentry>, lazy: bool) -> Result<(), Errno> {
    let _one_at_a_time = CHANGES.lock();
    let found = TABLE.lock().iter().find(|mounted| Arc::ptr_eq(&mounted.root, place)).cloned();
    let found = found.ok_or(Errno::EINVAL)?;
    let below = found.below.clone().ok_or(Errno::EBUSY)?;
    if place.is_mount_point() {
        return Err(Errno::EBUSY);
    }
    // The table, the caller and the directory below, or later this function, refer to the root.
    let check = || match &found.disk {
        Some(_) if Arc::strong_count(place) > 3 => Err(Errno::EBUSY),
        None if !lazy => tmpfs::check_unused(place, 3),
        _ => Ok(()),
    };
    // Other tasks do not see a call that fails so far.
    check()?;
    if let Some(fs) = &found.disk {
        fs.prepare_unmount()?;
    }
    // From here on no walk finds it.
    let root = below.take_mounted().ok_or(Errno::EINVAL)?;
    let outcome = check().and_then(|()| found.disk.as_ref().map_or(Ok(()), |fs| fs.unmount()));
    if outcome.is_err() {
        below.put_mounted(root);
        return outcome;
    }
    TABLE.lock().retain(|mounted| !Arc::ptr_eq(mounted, &found));
    if found.kind != "proc" && found.kind != "sysfs" {
        tmpfs::dismantle(place);
    }
    Ok(())
}

/// Unmounts everything. No program runs.
pub fn end() {
    loop {
        let Some(mounted) = TABLE.lock().last().cloned() else { break };
        if let Some(fs) = &mounted.disk
            && let Err(errno) = fs.unmount()
        {
            let path = mounted.root.path().unwrap_or_default();
            log!("{} cannot be unmounted: {errno}", path.escape_ascii());
            fs.forget_all();
        }
        tmpfs::dismantle(&mounted.root);
        if let Some(below) = &mounted.below {
            drop(below.take_mounted());
        }
        let removed = TABLE.lock().pop();
        drop(removed);
    }
    // Its memory too, which is no slab when there were many.
    let table = core::mem::take(&mut *TABLE.lock());
    drop(table);
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
        let mut all = Self {
            mode: None,
            uid: 0,
            gid: 0,
            page: manager().huge_pools().default_size(),
            most: None,
            least: None,
        };
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
