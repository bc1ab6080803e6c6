//! The library on machines of the hosted crate, with the library's folders. One program, since each would
//! compile the library again.

// Has most of the library for the hosted machine, compiled.
use oracle as _;

mod alloc;
mod clear;
mod cleared;
mod collapse;
mod costs;
mod counts;
mod errors;
mod filethp;
mod hugetlb;
mod migrate;
mod nested;
mod pgtable;
mod sync;
mod usage;
mod userfault;
mod vm;
mod watched;
