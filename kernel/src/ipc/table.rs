//! All segments, by number and by key.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};

use quire::hugetlb::HugeSize;
use quire::limits::FRAME_SIZE;

use super::segment::Segment;
use crate::errno::Errno;
use crate::observe::SETTINGS;
use crate::sync::Mutex;

/// The low bits of a number are a slot of the table; the others count how often it was used.
pub const SLOT_BITS: u32 = 15;
/// One more than the largest slot, as in Linux.
const MOST: usize = 1 << SLOT_BITS;
/// One more than the largest count.
const SEQUENCES: u32 = 1 << (31 - SLOT_BITS);

struct Table {
    slots: Vec<Option<Arc<Segment>>>,
    sequence: u32,
}

static TABLE: Mutex<Table> = Mutex::new(Table { slots: Vec::new(), sequence: 0 });
/// How many segments go with their last attachment.
static REMOVED: AtomicUsize = AtomicUsize::new(0);

/// What all segments take.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    /// How many there are.
    pub segments: u32,
    /// Their pages.
    pub pages: u64,
    /// Those that are in memory.
    pub resident: u64,
    /// The largest slot in use; 0 if none is.
    pub last_slot: u64,
}

/// What a new segment is to be.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// The key by which it is found; 0 for none.
    pub key: u32,
    /// The process that makes it.
    pub creator: u32,
    /// Its size.
    pub bytes: u64,
    /// Its permissions.
    pub mode: u32,
    /// The size of its pages, if they are huge.
    pub huge: Option<HugeSize>,
    /// Reserve huge pages at once.
    pub reserve: bool,
}

/// What [`create`] has found or made.
pub enum Created {
    /// A new segment.
    New(Arc<Segment>),
    /// Another caller's, which got the key in the meantime.
    Other(Arc<Segment>),
}

/// Makes a segment, unless another one has the key.
///
/// # Errors
/// [`Errno::ENOSPC`] when there are too many, [`Errno::ENOMEM`].
pub fn create(new: New) -> Result<Created, Errno> {
    let id = {
        let mut table = TABLE.lock();
        let count = table.slots.iter().flatten().count() as u64;
        if count >= SETTINGS.shmmni.load(Ordering::Relaxed) {
            return Err(Errno::ENOSPC);
        }
        let wanted = u32::try_from(SETTINGS.shm_next_id.swap(u64::MAX, Ordering::Relaxed)).ok();
        let is_free = |id: &u32| table.slots.get(index(*id)).is_none_or(Option::is_none);
        match wanted.filter(|id| index(*id) < MOST).filter(is_free) {
            Some(id) => id,
            None => {
                let free = table.slots.iter().position(Option::is_none).unwrap_or(table.slots.len());
                let sequence = table.sequence;
                table.sequence = (sequence + 1) % SEQUENCES;
                sequence << SLOT_BITS | free as u32
            }
        }
    };
    // Making it may sleep, so its slot may be taken meanwhile.
    let segment = Segment::new((id, new.key, new.creator), new.bytes, new.mode, new.huge, new.reserve)?;
    insert(Arc::new(segment), new)
}

/// The segment whose memory is the file with this number.
pub fn of_file(number: u64) -> Option<Arc<Segment>> {
    TABLE.lock().slots.iter().flatten().find(|segment| segment.file.number() == number).cloned()
}

fn insert(segment: Arc<Segment>, new: New) -> Result<Created, Errno> {
    let slot = index(segment.id);
    let mut table = TABLE.lock();
    if let Some(other) = table.find(new.key) {
        drop(table);
        drop(segment);
        return Ok(Created::Other(other));
    }
    if slot >= table.slots.len() {
        let more = slot + 1 - table.slots.len();
        table.slots.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        table.slots.resize(slot + 1, None);
    }
    if table.slots[slot].is_some() {
        drop(table);
        drop(segment);
        return create(new);
    }
    table.slots[slot] = Some(segment.clone());
    Ok(Created::New(segment))
}

impl Table {
    fn get(&self, id: u32) -> Result<Arc<Segment>, Errno> {
        let segment = self.slots.get(index(id)).cloned().flatten().filter(|segment| segment.id == id);
        segment.ok_or(Errno::EINVAL)
    }

    fn find(&self, key: u32) -> Option<Arc<Segment>> {
        if key == 0 {
            return None;
        }
        self.slots.iter().flatten().find(|segment| segment.key() == key).cloned()
    }
}

/// The segment with this key.
pub fn find(key: u32) -> Option<Arc<Segment>> {
    TABLE.lock().find(key)
}

/// The segment whose file has this number ([`quire::vm::File::number`]).
pub fn with_file(number: u64) -> Option<Arc<Segment>> {
    TABLE.lock().slots.iter().flatten().find(|segment| segment.file.number() == number).cloned()
}

/// The segment with this number.
///
/// # Errors
/// [`Errno::EINVAL`].
pub fn get(id: u32) -> Result<Arc<Segment>, Errno> {
    collect();
    TABLE.lock().get(id)
}

/// A segment that a task is about to attach: it stays in the table, removed or not.
pub struct Attaching(Arc<Segment>);

impl Attaching {
    /// That with this number.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn begin(id: u32) -> Result<Self, Errno> {
        collect();
        let table = TABLE.lock();
        let segment = table.get(id)?;
        // Under the lock, under which removed segments are collected.
        segment.attaching.fetch_add(1, Ordering::Relaxed);
        Ok(Self(segment))
    }
}

impl Deref for Attaching {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        self.0.attaching.fetch_sub(1, Ordering::Release);
        collect();
    }
}

/// The segment in this slot. As on Linux, the number of a segment, whichever, names its slot too.
///
/// # Errors
/// [`Errno::EINVAL`].
pub fn slot(slot: u64) -> Result<Arc<Segment>, Errno> {
    collect();
    TABLE.lock().slots.get(index(slot as u32)).cloned().flatten().ok_or(Errno::EINVAL)
}

/// Removes a segment, once it is attached nowhere.
pub fn remove(segment: &Segment) {
    if !segment.is_removed() {
        segment.mark_removed();
        REMOVED.fetch_add(1, Ordering::Relaxed);
    }
    collect();
}

/// Frees removed segments that are attached nowhere. Called where mappings go.
pub fn collect() {
    if REMOVED.load(Ordering::Relaxed) == 0 {
        return;
    }
    let is_gone = |slot: &Option<Arc<Segment>>| slot.as_ref().is_some_and(|segment| segment.is_gone());
    loop {
        let mut table = TABLE.lock();
        let Some(at) = table.slots.iter().position(is_gone) else { return };
        let gone = table.slots[at].take();
        drop(table);
        REMOVED.fetch_sub(1, Ordering::Relaxed);
        // Its memory may take long to free, and goes without the lock.
        drop(gone);
    }
}

/// Removes all segments, at the end of the machine's work.
pub fn remove_all() {
    let slots = core::mem::take(&mut TABLE.lock().slots);
    REMOVED.store(0, Ordering::Relaxed);
    drop(slots);
}

/// All segments. Programs make so many that a list of them may not fit into memory.
pub fn all() -> impl Iterator<Item = Arc<Segment>> {
    collect();
    let mut next = 0;
    core::iter::from_fn(move || {
        let table = TABLE.lock();
        let at = next + table.slots.get(next..)?.iter().position(Option::is_some)?;
        next = at + 1;
        table.slots[at].clone()
    })
}

/// The pages that all segments may have. [`totals`] would visit their files too.
pub fn pages() -> u64 {
    collect();
    TABLE.lock().slots.iter().flatten().map(|segment| segment.bytes.div_ceil(FRAME_SIZE)).sum()
}

/// What all segments take.
pub fn totals() -> Totals {
    let mut totals = Totals::default();
    for segment in all() {
        totals.segments += 1;
        totals.pages += segment.bytes.div_ceil(FRAME_SIZE);
        totals.resident += segment.file.resident();
        totals.last_slot = totals.last_slot.max(index(segment.id) as u64);
    }
    totals
}

fn index(id: u32) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}
