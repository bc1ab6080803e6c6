//! The folio sizes of this machine: what the baseline is, and the commands that change them and change them back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::host::thp::{selected, sizes};
use crate::replay::FolioSet;
use crate::settings::shmem_sizes;

/// The settings of a machine, as they were found: of anonymous memory, or of shared memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// The setting of all sizes; `None` without transparent huge pages.
    pub(super) overall: Option<String>,
    /// What gives all memory folios of a size.
    always: &'static str,
    /// The file of `overall`.
    path: PathBuf,
    /// The setting of each order, and its file.
    by_order: BTreeMap<u8, (PathBuf, String)>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) run: String,
    pub(super) undo: String,
}

impl Settings {
    /// Those of the kernel whose settings are in `root`.
    pub(super) fn read(root: &Path) -> Self {
        Self::of_kind(root, "enabled", "always", sizes(root))
    }

    /// Those of shared memory. `within_size` saves as many faults as `always`, since a fault's folio lies in its mapping, and
    /// writes nothing beyond the end of a file.
    pub(super) fn of_shmem(root: &Path) -> Self {
        Self::of_kind(root, "shmem_enabled", "within_size", shmem_sizes(root))
    }

    fn of_kind(root: &Path, name: &str, always: &'static str, sizes: BTreeMap<usize, PathBuf>) -> Self {
        let path = root.join(name);
        let overall = selected(&path);
        let order = |kib: usize| u8::try_from((kib / 4).ilog2()).ok().filter(|_| kib >= 8);
        let mut by_order: BTreeMap<u8, (PathBuf, String)> = sizes
            .into_iter()
            .filter_map(|(kib, path)| Some((order(kib)?, (path.clone(), selected(&path)?))))
            .collect();
        if by_order.is_empty()
            && let Some(value) = &overall
        {
            // Before Linux 6.8 the one setting is that of 2 MiB.
            by_order.insert(9, (path.clone(), value.clone()));
        }
        Self { overall, always, path, by_order }
    }

    /// The sizes that this kernel has.
    pub(super) fn known(&self) -> FolioSet {
        self.by_order.keys().fold(FolioSet::FRAMES, |set, order| set.and(*order))
    }

    /// The sizes that a program gets.
    pub(super) fn set(&self) -> FolioSet {
        self.set_under(self.overall.as_deref())
    }

    /// The same with another setting of all sizes. `deny` and `force` are of shared memory alone.
    fn set_under(&self, overall: Option<&str>) -> FolioSet {
        let with = |wanted: [&str; 2]| {
            let is = |value: &str| wanted.contains(&value);
            let has = |value: &str| is(value) || value == "inherit" && overall.is_some_and(is);
            let orders = self.by_order.iter().filter(|(_, (_, value))| has(value));
            orders.fold(FolioSet::FRAMES, |set, (order, _)| set.and(*order))
        };
        match overall {
            Some("deny") => FolioSet::FRAMES,
            Some("force") => with(["inherit"; 2]),
            _ => with(["always", "within_size"]).on_request(with(["madvise", "advise"])),
        }
    }

    /// The commands that give all memory the orders of `set`, and memory that asks those on request, and
    /// their inverses. What memory gets that asks stays if the set has none of it. The error is an order that
    /// this kernel lacks.
    pub(super) fn changes(&self, set: FolioSet) -> Result<Vec<Change>, u8> {
        let (wants, asking): (Vec<u8>, Vec<u8>) =
            (set.orders().collect(), set.requested().orders().collect());
        if let Some(missing) = wants.iter().chain(&asking).find(|order| !self.by_order.contains_key(order)) {
            return Err(*missing);
        }
        // With these Linux does not look at what the sizes say, whatever that is.
        let overall = self.overall.as_deref().filter(|value| ["deny", "force"].contains(value));
        let hides = overall.filter(|_| !self.set().orders().eq(wants.iter().copied()));
        let first = hides.map(|value| Self::set_to(&self.path, "never", value));
        let now = if first.is_some() { self.set_under(Some("never")) } else { self.set() };
        let (has, asked): (Vec<u8>, Vec<u8>) = (now.orders().collect(), now.requested().orders().collect());
        let on = wants.iter().filter(|order| !has.contains(order)).map(|order| (order, self.always));
        let on_request = asking.iter().filter(|order| !asked.contains(order)).map(|order| (order, "madvise"));
        let of_those_that_ask = asked.iter().filter(|_| !asking.is_empty());
        let off = has.iter().chain(of_those_that_ask);
        let off = off
            .filter(|order| !wants.contains(order) && !asking.contains(order))
            .map(|order| (order, "never"));
        let sizes = on.chain(on_request).chain(off).map(|(order, value)| self.change(*order, value));
        Ok(first.into_iter().chain(sizes).collect())
    }

    /// The commands that give memory that asks the orders of `set` and no others, which contains what all memory gets: of
    /// the sizes that it may have, the kernel takes the largest that fits.
    pub(super) fn requests(&self, set: FolioSet) -> Vec<Change> {
        let has = self.set();
        let asked: Vec<u8> = has.orders().chain(has.requested().orders()).collect();
        let wants: Vec<u8> = set.orders().filter(|order| self.by_order.contains_key(order)).collect();
        let on = wants.iter().filter(|order| !asked.contains(order)).map(|order| (*order, "madvise"));
        let off =
            has.requested().orders().filter(|order| !wants.contains(order)).map(|order| (order, "never"));
        on.chain(off).map(|(order, value)| self.change(order, value)).collect()
    }

    fn change(&self, order: u8, value: &str) -> Change {
        let (path, before) = &self.by_order[&order];
        Self::set_to(path, value, before)
    }

    fn set_to(path: &Path, value: &str, before: &str) -> Change {
        let echo = |value: &str| format!("echo {value} > {}", path.display());
        Change { run: echo(value), undo: echo(before) }
    }
}

#[cfg(test)]
mod tests;
