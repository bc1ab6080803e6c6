//! Allocators and managers on memory that their caller owns as a whole.
#![allow(unsafe_code)]

use quire::error::InitError;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, MemoryRange, PageAllocator};
use quire::platform::Platform;

use super::IsolatedMemory;

/// A page allocator on memory that the test or the measurement owns as a whole.
///
/// # Errors
/// [`InitError`].
pub fn page_allocator<'p, P: IsolatedMemory>(
    platform: &'p P,
    ranges: &[MemoryRange],
    config: AllocatorConfig,
) -> Result<PageAllocator<'p, P>, InitError> {
    // SAFETY: invariant 1: the test owns the machine's memory, and uses one allocator at a time.
    unsafe { PageAllocator::new(platform, ranges, config) }
}

/// The same, where memory in `later` may be added after start-up.
///
/// # Errors
/// [`InitError`].
pub fn page_allocator_with_later<'p, P: IsolatedMemory>(
    platform: &'p P,
    ranges: &[MemoryRange],
    later: &[MemoryRange],
    config: AllocatorConfig,
) -> Result<PageAllocator<'p, P>, InitError> {
    // SAFETY: invariant 1: the test owns the machine's memory, and uses one allocator at a time.
    unsafe { PageAllocator::with_later(platform, ranges, later, config) }
}

/// A manager on memory that the test or the measurement owns as a whole.
///
/// # Errors
/// [`InitError`].
pub fn memory_manager<'p, P: Platform + IsolatedMemory>(
    platform: &'p P,
    ranges: &[MemoryRange],
    config: &Config,
) -> Result<MemoryManager<'p, P>, InitError> {
    // SAFETY: invariant 1: the test owns the machine's memory, and uses one manager at a time.
    unsafe { MemoryManager::new(platform, ranges, config) }
}

/// The same, where memory in `later` may be added after start-up.
///
/// # Errors
/// [`InitError`].
pub fn memory_manager_with_later<'p, P: Platform + IsolatedMemory>(
    platform: &'p P,
    ranges: &[MemoryRange],
    later: &[MemoryRange],
    config: &Config,
) -> Result<MemoryManager<'p, P>, InitError> {
    // SAFETY: invariant 1: the test owns the machine's memory, and uses one manager at a time.
    unsafe { MemoryManager::with_later(platform, ranges, later, config) }
}
