//! The outcome of a collapse, and the reasons to refuse one.
#![forbid(unsafe_code)]

use crate::error::MmError;

/// How 2 MiB became one leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// Their pages were copied to a new folio.
    Copied,
    /// They stood in one folio in order: no page was touched.
    Reshaped,
    /// As `Reshaped`, but 1 GiB.
    Gigantic,
    /// One leaf mapped them before.
    Large,
}

pub(super) fn refuse_if(refused: bool, why: Refusal) -> Result<(), Refusal> {
    if refused { Err(why) } else { Ok(()) }
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $variant:ident => $error:ident, $text:literal;)*) => {
        /// Why 2 MiB were not collapsed. A program sees no change then.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Refusal { $($(#[$doc])* $variant),* }

        impl Refusal {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The reason in words, and how to remove it.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The error that `madvise` reports.
            pub const fn error(self) -> MmError {
                match self { $(Self::$variant => MmError::$error),* }
            }
        }
    };
}

refusals! {
    /// The memory is neither private and anonymous, nor of a file.
    NotAnonymous => Invalid, "neither private anonymous memory nor pages of a file: only these are collapsed";
    /// The mapping is shared, and can store to a paged file, which must know of each page whether it is
    /// dirty.
    SharedStores => Invalid, "a shared mapping can store to the file: map it for reading alone, or privately";
    /// The mapping's address and its offset in the file differ modulo 2 MiB.
    Offset => Invalid, "the mapping begins at another multiple of 4 KiB than the file's pages: map it at its alignment";
    /// The file ends within the 2 MiB.
    Beyond => Invalid, "the file ends within these 2 MiB: make it longer";
    /// Some pages are private copies of the file's.
    Copies => Invalid, "some pages were copied for this mapping alone: they stay small";
    /// More pages of the file than the limits allow are on its backing store alone.
    Swapped => Invalid, "too many pages must be read: raise max_ptes_swap";
    /// A page of the file could not be read.
    Io => Io, "a page of the file could not be read: see to the backing store";
    /// The mapping maps huge pages whole.
    HugePages => Invalid, "a mapping of huge pages is large already: advise Split if parts are to be mapped by themselves";
    /// A part of a huge page is not mapped.
    Missing => Invalid, "a part of the huge page is not mapped: touch it first";
    /// Parts differ in their rights, or in whether they are marked for a handler.
    Rights => Invalid, "parts differ in their rights or marks: make them alike first";
    /// The parts do not stand in one folio.
    Apart => Invalid, "the parts do not stand in one folio";
    /// One mapping does not cover all of it.
    TooSmall => Invalid, "no mapping covers these 2 MiB: map more, at a multiple of 2 MiB";
    /// The program, or the folio policy, wants no folios of 2 MiB here.
    NotAllowed => Invalid, "folios of 2 MiB are not allowed here: advise HugePage, or choose another policy";
    /// Nothing is mapped.
    Empty => Invalid, "nothing is mapped here yet: touch it first";
    /// More pages are missing, or are zeroes that were never stored to, than the limits allow.
    Holes => Invalid, "too many pages are missing: raise max_ptes_none";
    /// More pages are shared with other address spaces than the limits allow.
    Shared => Invalid, "too many pages are shared: raise max_ptes_shared";
    /// No page was accessed since the last look.
    Cold => Invalid, "no page was used lately";
    /// The contents of some page may be dropped (`MADV_FREE`).
    Lazy => Invalid, "some pages were freed lazily: they may go at any time";
    /// A page is marked for a userfaultfd handler.
    Marked => Invalid, "a page is marked for a handler: take the mark off first";
    /// A page is missing, and a userfaultfd handler must be told of that.
    Watched => Invalid, "a handler brings in what is missing here: let it bring all, or unregister the range";
    /// The memory of a page went bad.
    Lost => Invalid, "the memory of a page went bad: unmap it first";
    /// A page has an owner besides leaves: it is pinned, or being moved.
    Held => Busy, "a page is held: try again";
    /// Another task changed the mapping meanwhile.
    Busy => Busy, "the mapping changed meanwhile: try again";
    /// There is no folio of 2 MiB, or no memory for page tables.
    NoMemory => NoMemory, "no free folio of 2 MiB: free some memory";
}

/// The outcome for the aligned ranges of 2 MiB that one call looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collapsed {
    /// Ranges copied to a new folio.
    pub copied: u64,
    /// Ranges that mapped one folio in order by small leaves, and became one leaf.
    pub reshaped: u64,
    /// Ranges of 1 GiB, in mappings of such pages, that became one leaf.
    pub gigantic: u64,
    /// Ranges that one leaf mapped before.
    pub large: u64,
    /// Why the last refused range was refused.
    pub last: Option<Refusal>,
    refused: [u64; Refusal::ALL.len()],
}

impl Collapsed {
    /// Ranges refused for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }

    /// Ranges refused for any reason.
    pub fn all_refused(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Ranges that became one leaf.
    pub fn collapsed(&self) -> u64 {
        self.copied + self.reshaped + self.gigantic
    }

    pub(super) fn note(&mut self, done: Result<Done, Refusal>) {
        match done {
            Ok(Done::Copied) => self.copied += 1,
            Ok(Done::Reshaped) => self.reshaped += 1,
            Ok(Done::Gigantic) => self.gigantic += 1,
            Ok(Done::Large) => self.large += 1,
            Err(why) => {
                self.refused[why as usize] += 1;
                self.last = Some(why);
            }
        }
    }
}
