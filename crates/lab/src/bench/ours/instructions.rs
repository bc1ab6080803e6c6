//! Watches a verb instruction by instruction: counts locked ones and the page descriptors that they touch.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hosted::{Access, Hosted};
use quire::limits::BLOCK_FRAMES;
use quire::memmap::{BlockState, Descriptor, MemMap};

use crate::bench::experiment::Skip;

/// Rows of a block: one for each frame, and one for a folio of the whole block.
const ROWS: usize = BLOCK_FRAMES + 1;

/// The counts so far.
pub struct Instructions {
    limit: u64,
    executed: AtomicU64,
    locked: AtomicU64,
    /// A bit for each row of each block.
    touched: Mutex<Vec<u64>>,
}

impl Instructions {
    /// Counts from zero; watches at most `limit` instructions.
    pub fn at_most(limit: u64) -> Self {
        let [executed, locked] = [0, 0].map(AtomicU64::new);
        Self { limit, executed, locked, touched: Mutex::default() }
    }

    /// Runs `verb` one instruction at a time and records what it touches. `map` describes the memory of
    /// `machine`.
    ///
    /// # Errors
    /// [`Skip`] when the host does not allow it.
    pub fn follow<R>(&self, machine: &Hosted, map: &MemMap, verb: impl FnOnce() -> R) -> Result<R, Skip> {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.resize((map.blocks().count() * ROWS).div_ceil(64), 0);
        let bits = touched.as_mut_slice();
        let memory = memory(machine);
        let note = |access: Access| {
            let bytes = access.at..access.at + access.bytes;
            if overlap(&bytes, &memory) {
                rows(map, &bytes, |row| bits[row / 64] |= 1 << (row % 64));
            }
        };
        // SAFETY: H6: the note is taken in memory that exists already, by plain reads of records that are all
        // atomics; the map has a bit for each of its rows.
        let steps = unsafe { machine.watch_steps(self.limit - self.executed(), note, verb) };
        let steps = steps.map_err(|error| Skip(error.to_string()))?;
        self.executed.fetch_add(steps.instructions, Ordering::Relaxed);
        self.locked.fetch_add(steps.locked, Ordering::Relaxed);
        Ok(steps.result)
    }

    /// Whether all instructions were watched.
    pub fn are_all(&self) -> bool {
        self.executed() < self.limit
    }

    /// Instructions executed, with those of the counting platform.
    pub fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    /// Locked instructions executed.
    pub fn locked(&self) -> u64 {
        self.locked.load(Ordering::Relaxed)
    }

    /// Different page descriptors read or written: rows of frames, and folios of whole blocks. Map counts,
    /// states and origins are columns, and do not count.
    pub fn descriptors(&self) -> u64 {
        let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The addresses of the machine's memory.
fn memory(machine: &Hosted) -> Range<usize> {
    let (first, last) = (machine.ranges()[0], machine.ranges()[machine.ranges().len() - 1]);
    let start = machine.arena().direct_map(first.start).addr();
    start..start + (last.end().0 - first.start.0) as usize
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Calls `tell` with the row of each descriptor that one of `bytes` belongs to.
fn rows(map: &MemMap, bytes: &Range<usize>, mut tell: impl FnMut(usize)) {
    for (nth, (_, block)) in map.blocks().enumerate() {
        if let Some(columns) = block.columns() {
            for (group, descriptors) in columns.rows() {
                let start = descriptors.as_ptr().addr();
                let rows = start..start + size_of_val(descriptors);
                if overlap(bytes, &rows) {
                    let first = bytes.start.saturating_sub(start) / size_of::<Descriptor>();
                    let last = (bytes.end.min(rows.end) - 1 - start) / size_of::<Descriptor>();
                    (first..=last).for_each(|row| tell(nth * ROWS + group + row));
                }
            }
        } else if matches!(block.state(), BlockState::Folio | BlockState::Listed) {
            let start = std::ptr::from_ref(block.folio()).addr();
            if overlap(bytes, &(start..start + size_of::<Descriptor>())) {
                tell(nth * ROWS + BLOCK_FRAMES);
            }
        }
    }
}
