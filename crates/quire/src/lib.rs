//! Quire: a memory manager.
#![no_std]
