//! The library on machines of the hosted crate, folder by folder as the library's own. One program: each would compile the
//! library for itself once more.

mod alloc;
mod clear;
mod collapse;
mod counts;
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
