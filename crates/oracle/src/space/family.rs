//! All address spaces of a machine, the files and the shared memory that they map.

use std::collections::{BTreeMap, HashMap};

use quire::error::FaultError;

use super::page::{PROBE_OFFSETS, Words, file_word, take_out};
use super::vma::{Backing, Locked, PAGE, Vma};
use super::{Page, Space};

/// The number of an address space within its family.
pub type SpaceId = usize;

/// The rules of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The lowest address that can be mapped.
    pub user_start: u64,
    /// The address after the last that can be mapped (Linux's `TASK_SIZE`: 2^47 less a page with 4 levels).
    pub user_end: u64,
    /// Bytes that stay free below a mapping that grows down.
    pub stack_gap: u64,
    /// Bytes that a mapping which grows down can reach; Linux's `RLIMIT_STACK`.
    pub stack_limit: u64,
    /// Whether the model keeps words of pages. If not, a store only makes a page private, which takes less
    /// memory and time.
    pub contents: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            user_start: 0x1_0000,
            user_end: (1 << 47) - PAGE,
            stack_gap: 256 * PAGE,
            stack_limit: u64::MAX,
            contents: true,
        }
    }
}

/// Address spaces with their shared objects.
#[derive(Clone, Debug)]
pub struct Family {
    pub(super) rules: Rules,
    pub(super) spaces: Vec<Option<Space>>,
    /// Words that shared mappings wrote, by object and page.
    pub(super) written: HashMap<(Backing, u64), Words>,
    /// Bytes of each object.
    pub(super) sizes: BTreeMap<Backing, u64>,
    /// The end of files' first contents, if they were truncated since.
    pristine: BTreeMap<Backing, u64>,
    next_shared: u64,
    /// The hosted machine's number for a file of the model.
    file_name: HashMap<u64, u64>,
}

impl Family {
    /// A family without address spaces and files.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            spaces: Vec::new(),
            written: HashMap::new(),
            sizes: BTreeMap::new(),
            pristine: BTreeMap::new(),
            next_shared: 0,
            file_name: HashMap::new(),
        }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Adds a file, or changes its size in bytes. Its words are [`file_word`]'s.
    pub fn set_file(&mut self, file: u64, bytes: u64) {
        self.sizes.insert(Backing::File(file), bytes);
    }

    /// `ftruncate`: another size in bytes, a multiple of eight. A smaller size drops the contents after it,
    /// and private copies of whole pages there.
    pub fn truncate(&mut self, file: u64, bytes: u64) {
        let backing = Backing::File(file);
        let pristine = self.pristine.get(&backing).or(self.sizes.get(&backing)).copied().unwrap_or(0);
        self.pristine.insert(backing, pristine.min(bytes));
        self.sizes.insert(backing, bytes);
        let end = bytes.div_ceil(PAGE);
        self.written.retain(|&(object, page), words| {
            let gone = |offset: u64| page * PAGE + offset + 8 > bytes;
            if object == backing {
                PROBE_OFFSETS
                    .iter()
                    .zip(words)
                    .filter(|(offset, _)| gone(**offset))
                    .for_each(|(_, word)| *word = 0);
            }
            object != backing || page < end
        });
        for space in self.spaces.iter_mut().flatten() {
            let Space { vmas, pages, .. } = space;
            for vma in vmas.iter().filter(|vma| vma.backing == backing) {
                let cut = vma.start.max(vma.start.saturating_add(end.saturating_sub(vma.page_offset) * PAGE));
                take_out(pages, cut.min(vma.end) / PAGE..vma.end / PAGE);
            }
        }
    }

    /// Sets the hosted machine's number of each file, for subjects that share a machine. Without it they are
    /// the same.
    pub fn name_files(&mut self, name: impl Fn(u64) -> u64) {
        for backing in self.sizes.keys() {
            if let Backing::File(file) = *backing {
                self.file_name.insert(file, name(file));
            }
        }
    }

    /// A new, empty address space.
    pub fn create(&mut self) -> SpaceId {
        self.spaces.push(Some(Space::new()));
        self.spaces.len() - 1
    }

    /// Whether the address space exists and has not exited.
    pub fn is_live(&self, id: SpaceId) -> bool {
        self.spaces.get(id).is_some_and(Option::is_some)
    }

    /// The numbers of the live address spaces.
    pub fn live(&self) -> impl Iterator<Item = SpaceId> + '_ {
        self.spaces.iter().enumerate().filter(|(_, space)| space.is_some()).map(|(id, _)| id)
    }

    /// A live address space.
    ///
    /// # Panics
    /// When it has exited or never was.
    pub fn space(&self, id: SpaceId) -> &Space {
        self.spaces[id].as_ref().expect("address space has exited")
    }

    pub(super) fn space_mut(&mut self, id: SpaceId) -> &mut Space {
        self.spaces[id].as_mut().expect("address space has exited")
    }

    /// `fork`: the child has the parent's mappings, not locked, and a copy by value of its private pages.
    pub fn fork(&mut self, id: SpaceId) -> SpaceId {
        let mut child = self.space(id).clone();
        child.lock_future = Locked::No;
        child.vmas.iter_mut().for_each(|vma| vma.locked = Locked::No);
        child.pages.retain(|_, page| page.own.is_some());
        self.spaces.push(Some(child));
        self.spaces.len() - 1
    }

    /// `exit`: unmaps everything. Shared objects keep the words written to them.
    pub fn exit(&mut self, id: SpaceId) {
        self.spaces[id] = None;
    }

    /// A new object for a shared anonymous mapping of this size.
    pub(super) fn new_shared(&mut self, bytes: u64) -> Backing {
        let object = Backing::Shared(self.next_shared);
        self.next_shared += 1;
        self.sizes.insert(object, bytes);
        object
    }

    /// Whether the object has any byte in page `page`.
    pub(super) fn has_page(&self, backing: Backing, page: u64) -> bool {
        match backing {
            Backing::Anonymous => true,
            _ => self.sizes.get(&backing).is_some_and(|bytes| page < bytes.div_ceil(PAGE)),
        }
    }

    /// Pages of objects that shared mappings wrote, with their current words.
    pub fn written_pages(&self) -> impl Iterator<Item = (Backing, u64, Words)> + '_ {
        self.written.iter().map(|(&(backing, page), &words)| (backing, page, words))
    }

    /// The bytes of an object.
    pub fn size_of(&self, backing: Backing) -> u64 {
        self.sizes.get(&backing).copied().unwrap_or(0)
    }

    /// The words of an object's page.
    pub(crate) fn object_words(&self, backing: Backing, page: u64) -> Words {
        if let Some(words) = self.written.get(&(backing, page)) {
            return *words;
        }
        match backing {
            Backing::File(file) => PROBE_OFFSETS.map(|offset| {
                let pristine = self.pristine.get(&backing).or(self.sizes.get(&backing));
                let inside = pristine.is_some_and(|&bytes| page * PAGE + offset + 8 <= bytes);
                let name = self.file_name.get(&file).copied().unwrap_or(file);
                if inside { file_word(name, page, offset) } else { 0 }
            }),
            Backing::Anonymous | Backing::Shared(_) => Words::default(),
        }
    }

    /// Makes the page at `addr`, which `vma` maps, present; for `write` in a private mapping, makes it
    /// private.
    ///
    /// # Errors
    /// [`FaultError::BeyondEnd`] when the backing has no such page.
    pub(super) fn bring_in(
        &mut self,
        id: SpaceId,
        vma: &Vma,
        addr: u64,
        write: bool,
    ) -> Result<(), FaultError> {
        let (number, behind) = (addr / PAGE, vma.backing_page(addr));
        let known = self.space(id).pages.get(&number).copied();
        if known.is_some_and(|page| page.own.is_some()) {
            return Ok(());
        }
        if !self.has_page(vma.backing, behind) {
            return Err(FaultError::BeyondEnd);
        }
        let page = match write && vma.is_private() {
            true if self.rules.contents => Page::owned(self.object_words(vma.backing, behind)),
            true => Page::owned(Words::default()),
            false => Page::TOUCHED,
        };
        if known != Some(page) {
            self.space_mut(id).pages.insert(number, page);
        }
        Ok(())
    }
}
