//! Settings of the running kernel: changed while a measurement needs them, and put back afterwards.
//!
//! ```text
//! places    where the settings, the journal and the lock are
//! journal   the values found and the values set, on disk before each change
//! guard     the right to change settings; dropping it, a signal, or the next start puts them back
//! left      puts back what a killed run left, at the start of every command
//! kdamonds  the threads of DAMON, which watches accesses
//! folios    the sizes of folios for anonymous memory
//! ```

mod folios;
mod guard;
mod journal;
mod kdamonds;
mod left;
mod places;

pub use folios::Sizes;
pub(crate) use folios::shmem_sizes;
pub use guard::{Settings, SettingsError};
pub use left::{Left, put_back_left};
pub use places::Places;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::one_at_a_time;
