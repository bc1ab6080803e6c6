//! The background collapser visits all address spaces, a part in each call (Linux: `khugepaged`).
#![forbid(unsafe_code)]

use super::cursor::Cursor;
use super::limits::{CollapseLimits, Terms};
use super::report::{Collapsed, Refusal};
use crate::addr::{VirtAddr, VirtRange};
use crate::limits::{BLOCK_SIZE, COLLAPSE_SCAN_PAGES, TABLE_ENTRIES};
use crate::pgtable::{Copied, Survey};
use crate::platform::Platform;
use crate::vm::collapse::Collapse;
use crate::vm::collapse::next_space::next_space;
use crate::vm::space::body::MmBody;

/// The settings, progress and results of a background collapser. Names and defaults of settings are Linux's,
/// as files of `/sys/kernel/mm/transparent_hugepage/khugepaged/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collapser {
    /// Which ranges it collapses.
    pub limits: CollapseLimits,
    /// Pages that one call scans. 2 MiB with one leaf, or none, count as one page, as does a skipped mapping.
    pub pages_to_scan: u64,
    /// Milliseconds from one call to the next.
    pub scan_sleep_millisecs: u64,
    /// Milliseconds to the next call after there was no folio to collapse into.
    pub alloc_sleep_millisecs: u64,
    /// Ranges of 2 MiB collapsed so far.
    pub pages_collapsed: u64,
    /// How often it has visited all address spaces.
    pub full_scans: u64,
    cursor: Cursor,
}

impl Default for Collapser {
    fn default() -> Self {
        Self {
            limits: CollapseLimits::default(),
            pages_to_scan: COLLAPSE_SCAN_PAGES,
            scan_sleep_millisecs: 10_000,
            alloc_sleep_millisecs: 60_000,
            pages_collapsed: 0,
            full_scans: 0,
            cursor: Cursor::default(),
        }
    }
}

impl Collapser {
    /// A collapser with other limits than Linux's.
    pub fn within(limits: CollapseLimits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// The outcome of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scanned {
    /// Pages scanned, as [`Collapser::pages_to_scan`] counts them.
    pub pages: u64,
    /// The outcome for the ranges of 2 MiB in suitable mappings.
    pub collapsed: Collapsed,
    /// Whether it came to the end of all address spaces.
    pub full_scan: bool,
    /// Milliseconds after which it should be called again.
    pub sleep_millisecs: u64,
}

enum Next {
    End,
    /// Nothing to collapse before this address.
    Skip(VirtAddr),
    /// A range of small pages.
    Extent(VirtRange),
}

impl<P: Platform> Collapse<'_, '_, P> {
    /// Scans from where the last call stopped, and collapses within the limits. The caller holds no lock.
    pub(crate) fn collapse_ahead(self, collapser: &mut Collapser) -> Scanned {
        let mut done = Scanned { sleep_millisecs: collapser.scan_sleep_millisecs, ..Scanned::default() };
        let terms = Terms::Within(collapser.limits);
        while done.pages < collapser.pages_to_scan && !self.platform().is_dying() {
            let Some(body) = next_space(&mut collapser.cursor, self.0) else {
                collapser.cursor = Cursor::default();
                collapser.full_scans += 1;
                done.full_scan = true;
                break;
            };
            match self.next_small(&body, collapser.cursor.at, &terms) {
                Next::End => collapser.cursor.next_space(),
                Next::Skip(to) => {
                    collapser.cursor.at = to;
                    done.pages += 1;
                }
                Next::Extent(extent) => {
                    let outcome = self.collapse_extent(&body, extent, &terms);
                    done.collapsed.note(outcome);
                    done.pages += TABLE_ENTRIES as u64;
                    collapser.cursor.at = extent.end;
                    if outcome == Err(Refusal::NoMemory) {
                        done.sleep_millisecs = collapser.alloc_sleep_millisecs;
                        break;
                    }
                }
            }
            drop(body);
            self.platform().reschedule_point();
        }
        collapser.pages_collapsed += done.collapsed.collapsed();
        done
    }

    /// The next range of small pages from `at` on in a suitable mapping.
    fn next_small(self, body: &MmBody, at: VirtAddr, terms: &Terms) -> Next {
        let space = body.space.read(self.platform());
        let user = space.layout.user;
        if at >= user.end {
            return Next::End;
        }
        let Some(vma) = space.tree.first_in(VirtRange::new(at, user.end)) else { return Next::End };
        let extent = match at.max(vma.range.start).align_up(BLOCK_SIZE) {
            Some(start) if start < vma.range.end => VirtRange::from_len(start, BLOCK_SIZE),
            _ => return Next::Skip(vma.range.end),
        };
        let suits = if terms.is_of_file(&space, extent) {
            terms.file(&space, extent, self.policy()).map(|_| ())
        } else {
            terms.mapping(&space, extent, self.policy()).map(|_| ())
        };
        if suits.is_err() {
            return Next::Skip(vma.range.end);
        }
        let tables = body.tables(self.pages());
        match tables.survey(extent.start, &Copied::NOTHING) {
            Survey::Table(_) => Next::Extent(extent),
            Survey::Nothing(bytes) => Next::Skip(extent.start.add(bytes)),
            Survey::Large | Survey::Lost | Survey::Busy => Next::Skip(extent.end),
        }
    }
}
