//! The running kernel's pools, with its saving of descriptors (HVO) off or on.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use quire::hugetlb::HugeSize;

use crate::bench::arms::clear::huge::Chooser;
use crate::bench::experiment::Skip;
use crate::host::thp::compact;

const SAVING: &str = "/proc/sys/vm/hugetlb_optimize_vmemmap";
/// Requests to the kernel for pages that it cannot find contiguous at first.
const ATTEMPTS: usize = 3;
/// Bytes that stay free beside a pool.
const LEFT_FREE: u64 = 1 << 30;

/// Writes the kernel's settings and puts them back at the end.
pub(super) struct Kernel {
    chooser: Chooser,
    saving: bool,
}

impl Kernel {
    pub(super) fn new(chooser: Chooser, saving: bool) -> Self {
        Self { chooser, saving }
    }

    pub(super) fn name(&self) -> &'static str {
        if self.saving { "linux-saving" } else { "linux" }
    }

    /// The text of the arm: with the saving, how it differs from the other.
    pub(super) fn about(&self, without: &'static str) -> &'static str {
        if self.saving { "as `linux`, with hugetlb_optimize_vmemmap on." } else { without }
    }

    /// Empties the pools of these sizes if memory for `count` pages of `size` is available; the end puts them
    /// back.
    ///
    /// # Errors
    /// [`Skip`] when there is not, when the kernel has no such pages, or when this user may not change them.
    pub(super) fn clear_for(&self, sizes: &[HugeSize], size: HugeSize, count: u64) -> Result<(), Skip> {
        for &one in sizes {
            if !Path::new(&file(one, "nr_hugepages")).exists() {
                return Err(Skip(format!(
                    "this kernel has no pool of {}: its processor cannot map them",
                    words(one)
                )));
            }
            let path = file(one, "nr_hugepages");
            self.set(&path, "0")?;
            let most = (count * size.bytes() / one.bytes()).to_string();
            self.chooser.borrow_mut().settings()?.expect(Path::new(&path), &["0", &most])?;
        }
        let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"));
        if free.is_none_or(|kib| kib * 1024 < count * size.bytes() + LEFT_FREE) {
            return Err(Skip(format!("{count} pages of {} are more memory than is available", words(size))));
        }
        Ok(())
    }

    /// Turns the saving off or on, for pages that join from then on.
    ///
    /// # Errors
    /// [`Skip`] when the kernel cannot.
    pub(super) fn choose_saving(&self) -> Result<(), Skip> {
        self.set(SAVING, if self.saving { "1" } else { "0" })
    }

    /// Empties a pool. A failure here is reported when the settings are restored, which tries again.
    pub(super) fn empty(&self, size: HugeSize) {
        let _ = self.set(&file(size, "nr_hugepages"), "0");
    }

    fn set(&self, path: &str, value: &str) -> Result<(), Skip> {
        let got = self.chooser.borrow_mut().settings()?.set(Path::new(path), value)?;
        if got == value { Ok(()) } else { Err(Skip(format!("{path} is {got}, where {value} was written"))) }
    }
}

/// One of the files of a pool.
fn file(size: HugeSize, name: &str) -> String {
    format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", size.bytes() >> 10)
}

fn words(size: HugeSize) -> &'static str {
    match size {
        HugeSize::Size2M => "2 MiB",
        HugeSize::Size1G => "1 GiB",
    }
}

/// Writes to a file of a pool; the kernel may do less than was requested.
///
/// # Errors
/// [`Skip`] when the kernel refuses.
pub(super) fn write(size: HugeSize, name: &str, value: u64) -> Result<(), Skip> {
    fs::write(file(size, name), value.to_string()).map_err(|error| Skip::because(name, error))
}

pub(super) fn total(size: HugeSize) -> u64 {
    let text = fs::read_to_string(file(size, "nr_hugepages")).ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Sets the size of a pool.
///
/// # Errors
/// [`Skip`] when the kernel does less, even after compacting memory.
pub(super) fn resize(size: HugeSize, wanted: u64) -> Result<(), Skip> {
    for _ in 0..ATTEMPTS {
        write(size, "nr_hugepages", wanted)?;
        if total(size) == wanted {
            return Ok(());
        }
        compact();
    }
    check(size, wanted)
}

/// Checks that the pool has the requested size.
///
/// # Errors
/// [`Skip`] when it is not.
pub(super) fn check(size: HugeSize, wanted: u64) -> Result<(), Skip> {
    let got = total(size);
    if got == wanted {
        return Ok(());
    }
    Err(Skip(format!(
        "the kernel has {got} pages of {} instead of {wanted}: free or compact memory (/proc/sys/vm/compact_memory)",
        words(size)
    )))
}

/// Pages that the kernel has moved since its start.
pub(super) fn pages_moved() -> Option<u64> {
    field(&fs::read_to_string("/proc/vmstat").ok()?, "pgmigrate_success ")
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The running kernel, with the saving off and on.
pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
    let chooser = Chooser::default();
    [false, true].into_iter().map(move |saving| Kernel::new(Rc::clone(&chooser), saving))
}
