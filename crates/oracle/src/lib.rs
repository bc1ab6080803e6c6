//! Naive models of the memory manager.
