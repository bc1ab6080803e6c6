//! Pools of huge pages that the kernel's command line asks for.
//!
//! | option | meaning |
//! |---|---|
//! | `hugepagesz=2M` | the next `hugepages` is about this size, `2M` or `1G` |
//! | `hugepages=8` | so many pages; of the default size, if no size stands before it |
//! | `hugepages=0:4,1:8` | so many on each of these nodes |
//! | `default_hugepagesz=1G` | the default size, which is 2 MiB otherwise, and the size of the next `hugepages` |
//!
//! A kernel fills the pools between [`MemoryManager::new`] and its own first allocation. Then memory is in the
//! largest pieces, and a page of 1 GiB is found wherever the machine has one.
//!
//! Source: Linux's `Documentation/admin-guide/mm/hugetlbpage.rst`, also for what is ignored.

use quire::hugetlb::{HugeSize, parse_bytes};
use quire::limits::MAX_NODES;
use quire::manager::MemoryManager;
use quire::page_alloc::NodeSet;
use quire::platform::Platform;

/// How many pages of one size are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedPages {
    /// So many, evenly on all nodes.
    All(u64),
    /// So many on each node.
    OnNodes([u64; MAX_NODES]),
}

/// The options of a command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HugeOptions {
    /// The size that is meant where none is named, if it was chosen.
    pub default_size: Option<HugeSize>,
    /// The pages of each size, in the order of [`HugeSize::ALL`].
    pub wanted: [Option<WantedPages>; HugeSize::ALL.len()],
}

/// A pool that did not get all its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// The size of its pages.
    pub size: HugeSize,
    /// How many were asked for.
    pub wanted: u64,
    /// How many there are.
    pub got: u64,
}

/// What the words so far have said.
struct Words {
    options: HugeOptions,
    /// Sizes that were named.
    known: [bool; HugeSize::ALL.len()],
    /// The size of the next `hugepages`, once one was named.
    size: Option<HugeSize>,
    /// The last size was one.
    is_valid: bool,
    /// Pages of the default size, asked for before any size was named.
    unnamed: Option<WantedPages>,
    /// The size of the last `hugepages`.
    last: Option<Option<HugeSize>>,
}

impl HugeOptions {
    /// Reads the options for a machine with so many nodes, and calls `ignored` with each that has no effect.
    pub fn parse(line: &str, nodes: usize, mut ignored: impl FnMut(&str)) -> Self {
        let mut words = Words {
            options: Self::default(),
            known: [false; HugeSize::ALL.len()],
            size: None,
            is_valid: true,
            unnamed: None,
            last: None,
        };
        for word in line.split_ascii_whitespace() {
            let used = match word.split_once('=') {
                Some(("hugepagesz", size)) => words.name_size(size),
                Some(("default_hugepagesz", size)) => words.name_default(size),
                Some(("hugepages", pages)) => words.want(pages, nodes),
                _ => Some(()),
            };
            if used.is_none() {
                ignored(word);
            }
        }
        words.finish(ignored)
    }

    /// Grows the pools, that of the larger pages first, and calls `short` with each that did not get all its pages.
    pub fn fill<P: Platform>(&self, manager: &MemoryManager<'_, P>, mut short: impl FnMut(Shortage)) {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        self.default_size.inspect(|&size| pools.set_default_size(size));
        for size in HugeSize::ALL.into_iter().rev() {
            let (wanted, got) = match self.wanted[size as usize] {
                None => continue,
                Some(WantedPages::All(wanted)) => {
                    (wanted, pools.resize(pages, size, NodeSet::ALL, wanted).after)
                }
                Some(WantedPages::OnNodes(nodes)) => {
                    let grown = (0..).zip(nodes).filter(|&(_, wanted)| wanted > 0);
                    let grown =
                        grown.map(|(node, wanted)| pools.resize_node(pages, size, node, wanted).after);
                    let got = grown.sum();
                    (nodes.into_iter().fold(0, u64::saturating_add), got)
                }
            };
            if got < wanted {
                short(Shortage { size, wanted, got });
            }
        }
    }
}

impl Words {
    fn name_size(&mut self, text: &str) -> Option<()> {
        self.is_valid = false;
        let size = size(text)?;
        // The default size may be named again, to say how many pages of it there should be.
        let again = self.options.default_size == Some(size) && self.options.wanted[size as usize].is_none();
        if self.known[size as usize] && !again {
            return None;
        }
        self.known[size as usize] = true;
        (self.size, self.is_valid) = (Some(size), true);
        Some(())
    }

    fn name_default(&mut self, text: &str) -> Option<()> {
        self.is_valid = false;
        let size = size(text).filter(|_| self.options.default_size.is_none())?;
        self.options.default_size = Some(size);
        self.known[size as usize] = true;
        (self.size, self.is_valid) = (Some(size), true);
        if let Some(wanted) = self.unnamed.take() {
            self.options.wanted[size as usize] = Some(wanted);
        }
        Some(())
    }

    fn want(&mut self, text: &str, nodes: usize) -> Option<()> {
        if !core::mem::replace(&mut self.is_valid, true) || self.last == Some(self.size) {
            return None;
        }
        let wanted = Some(wanted(text, nodes)?);
        match self.size {
            Some(size) => self.options.wanted[size as usize] = wanted,
            None => self.unnamed = wanted,
        }
        self.last = Some(self.size);
        Some(())
    }

    /// What was asked for before any size was named wins over what its size says.
    fn finish(mut self, mut ignored: impl FnMut(&str)) -> HugeOptions {
        if let Some(wanted) = self.unnamed
            && self.options.wanted[HugeSize::Size2M as usize].replace(wanted).is_some()
        {
            ignored("hugepagesz=2M");
        }
        self.options
    }
}

fn size(text: &str) -> Option<HugeSize> {
    let (bytes, _) = parse_bytes(text)?;
    HugeSize::ALL.into_iter().find(|size| size.bytes() == bytes)
}

fn wanted(text: &str, nodes: usize) -> Option<WantedPages> {
    if !text.contains(':') {
        return text.parse().ok().map(WantedPages::All);
    }
    let mut on = [0; MAX_NODES];
    for part in text.split(',') {
        let (node, pages) = part.split_once(':')?;
        let node = node.parse().ok().filter(|&node: &usize| node < nodes)?;
        *on.get_mut(node)? = pages.parse().ok()?;
    }
    Some(WantedPages::OnNodes(on))
}
