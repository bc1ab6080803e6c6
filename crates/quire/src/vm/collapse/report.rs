//! What became of ranges that were to be collapsed, and why not.
#![forbid(unsafe_code)]

use crate::error::MmError;

/// How 2 MiB became one leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// Their pages were copied to a new folio.
    Copied,
    /// They stood in one folio in order: no page was touched.
    Reshaped,
    /// The same with 1 GiB.
    Gigantic,
    /// They were one before.
    Large,
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $variant:ident => $error:ident, $text:literal;)*) => {
        /// Why 2 MiB were not collapsed. Nothing that a program could see has changed then.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Refusal { $($(#[$doc])* $variant),* }

        impl Refusal {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// In words, with the cure.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// What `madvise` reports for it.
            pub const fn error(self) -> MmError {
                match self { $(Self::$variant => MmError::$error),* }
            }
        }
    };
}

refusals! {
    /// The memory is neither private and anonymous, nor of a file.
    NotAnonymous => Invalid, "neither private anonymous memory nor pages of a file: only these are collapsed";
    /// The mapping is shared, and can store to a file with a backing store: which pages are newer is known of
    /// each page.
    SharedStores => Invalid, "a shared mapping can store to the file: map it for reading alone, or privately";
    /// The mapping shows the file off its alignment.
    Offset => Invalid, "the mapping begins at another multiple of 4 KiB than the file's pages: map it at its alignment";
    /// The file ends within the 2 MiB.
    Beyond => Invalid, "the file ends within these 2 MiB: make it longer";
    /// A part is private copies of the file's pages.
    Copies => Invalid, "some pages were copied for this mapping alone: they stay small";
    /// More pages of the file are on its backing store alone than the limits allow.
    Swapped => Invalid, "too many pages must be read: raise max_ptes_swap";
    /// A page of the file could not be read.
    Io => Io, "a page of the file could not be read: see to the backing store";
    /// The mapping is of huge pages, which are mapped whole.
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
    /// No page was used since the last look.
    Cold => Invalid, "no page was used lately";
    /// The contents of some page may be dropped (`MADV_FREE`).
    Lazy => Invalid, "some pages were freed lazily: they may go at any time";
    /// A page is marked for a userfaultfd handler.
    Marked => Invalid, "a page is marked for a handler: take the mark off first";
    /// A page is missing, and a userfaultfd handler wants to hear of that.
    Watched => Invalid, "a handler brings in what is missing here: let it bring all, or unregister the range";
    /// The memory of a page went bad.
    Lost => Invalid, "the memory of a page went bad: unmap it first";
    /// A page has an owner besides leaves: it is pinned, or on its way elsewhere.
    Held => Busy, "a page is held: try again";
    /// Another task was faster.
    Busy => Busy, "the mapping changed meanwhile: try again";
    /// There is no folio of 2 MiB, or no memory for page tables.
    NoMemory => NoMemory, "no free folio of 2 MiB: free some memory";
}

/// What became of the aligned ranges of 2 MiB that one call looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collapsed {
    /// How many were copied to a new folio.
    pub copied: u64,
    /// How many mapped one folio in order by small leaves, and are mapped by one leaf now.
    pub reshaped: u64,
    /// How many ranges of 1 GiB, in mappings of such pages, became one leaf.
    pub gigantic: u64,
    /// How many were mapped by one leaf before.
    pub large: u64,
    /// Why the last that was refused was.
    pub last: Option<Refusal>,
    refused: [u64; Refusal::ALL.len()],
}

impl Collapsed {
    /// How many were refused for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }

    /// How many were refused.
    pub fn all_refused(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// How many became large.
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
