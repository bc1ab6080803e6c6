//! Which places mapped files have in the tree of files. Quire knows a file by a number alone.
//!
//! A call that maps a file notes its place here. A number may be given to another file once the file is neither
//! mapped nor open; the call that maps that file overwrites the entry. So the entry of a file that is mapped is right.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use quire::addr::VirtAddr;
use quire_interop::proc::MappedFile;

use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::memory::list;
use crate::sync::Mutex;
use crate::task::table;

/// More entries than this are looked through for files that are not mapped any more.
const MANY: usize = 256;

/// Where a file is.
struct Place {
    dentry: Weak<Dentry>,
    /// Its path when it was mapped, for one that has no place any more.
    path: Vec<u8>,
    file: MappedFile,
}

struct Places {
    by_number: BTreeMap<u64, Place>,
    /// Look through them when there are more.
    limit: usize,
}

static PLACES: Mutex<Places> = Mutex::new(Places { by_number: BTreeMap::new(), limit: MANY });

/// A program maps, or is about to map, the file with this number.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn note_mapped(number: u64, dentry: &Arc<Dentry>) -> Result<(), Errno> {
    let known = |place: &Place| core::ptr::eq(place.dentry.as_ptr(), Arc::as_ptr(dentry));
    if PLACES.lock().by_number.get(&number).is_some_and(known) {
        return Ok(());
    }
    let attributes = dentry.node().attributes();
    let device = ((attributes.fs >> 8) as u32, (attributes.fs & 0xff) as u32);
    let file = MappedFile { device, inode: attributes.number };
    let place = Place { dentry: Arc::downgrade(dentry), path: dentry.path()?, file };
    let (old, many) = {
        let mut places = PLACES.lock();
        let old = places.by_number.insert(number, place);
        (old, places.by_number.len() > places.limit)
    };
    drop(old);
    if many {
        forget_unmapped()?;
    }
    Ok(())
}

/// The place of the file with this number, if it still has one.
pub fn place_of(number: u64) -> Option<Arc<Dentry>> {
    PLACES.lock().by_number.get(&number)?.dentry.upgrade()
}

/// The device and the inode of the file with this number.
pub(super) fn file_of(number: u64) -> Option<MappedFile> {
    PLACES.lock().by_number.get(&number).map(|place| place.file)
}

/// The path of the file with this number, as it is now.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub(super) fn path_of(number: u64) -> Result<Option<Vec<u8>>, Errno> {
    let (dentry, path) = {
        let places = PLACES.lock();
        let Some(place) = places.by_number.get(&number) else { return Ok(None) };
        (place.dentry.upgrade(), list::concat([place.path.as_slice()].into_iter())?)
    };
    match dentry {
        Some(dentry) => dentry.path().map(Some),
        None if path.ends_with(DELETED) => Ok(Some(path)),
        None => list::concat([path.as_slice(), DELETED].into_iter()).map(Some),
    }
}

/// What follows the path of a file that was removed.
const DELETED: &[u8] = b" (deleted)";

/// Forgets all places, at the end.
pub fn forget() {
    let gone = core::mem::take(&mut PLACES.lock().by_number);
    drop(gone);
}

fn forget_unmapped() -> Result<(), Errno> {
    let mapped = mapped_numbers()?;
    let gone = {
        let mut places = PLACES.lock();
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            core::mem::take(&mut places.by_number).into_iter().partition(|(number, place)| {
                place.dentry.strong_count() > 0 || mapped.binary_search(number).is_ok()
            });
        places.limit = (2 * kept.len()).max(MANY);
        places.by_number = kept;
        gone
    };
    drop(gone);
    Ok(())
}

/// The files that any process maps, in ascending order.
fn mapped_numbers() -> Result<Vec<u64>, Errno> {
    let mut numbers = Vec::new();
    for process in table::processes() {
        let Some(space) = process.space_handle() else { continue };
        let mut at = VirtAddr(0);
        while let Some(vma) = space.next_vma(at) {
            at = vma.range.end;
            if vma.file_number != 0 {
                list::append(&mut numbers, [vma.file_number])?;
            }
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}
