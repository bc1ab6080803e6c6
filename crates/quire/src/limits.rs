//! The named bounds that callers or several files of the library use, and the relations between them.

/// The base-two logarithm of a frame's size in bytes.
pub const FRAME_SHIFT: u32 = 12;
/// A frame's size in bytes.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;
/// The order of a block: 2 MiB.
pub const BLOCK_ORDER: u8 = 9;
/// Frames in a block.
pub const BLOCK_FRAMES: usize = 1 << BLOCK_ORDER;
/// A block's size in bytes.
pub const BLOCK_SIZE: u64 = FRAME_SIZE << BLOCK_ORDER;
/// The largest order that the allocator serves: 1 GiB.
pub const MAX_ORDER: u8 = 18;

/// Entries in one page-table page.
pub const TABLE_ENTRIES: usize = 512;

/// Ranges that one request for consecutive blocks tries to empty in each zone, those with the fewest frames to
/// move first. A pool that grows tries all.
pub const CONTIG_TRIES: usize = 4;
/// Times that a request scans one of them, since frames in use at one moment may be movable at the next.
pub const CONTIG_ROUNDS: usize = 8;
/// Leaves that one flush moves to other frames, at most, and frames of the folios that move together.
pub const MOVE_LEAVES: usize = 32;

/// Rounds in which a collapse by copy recopies pages stored to meanwhile, before it does so under the lock.
pub const COLLAPSE_ROUNDS: usize = 4;
/// Pages that it copies while no CPU can reach them, unless a program stores faster than the rounds before
/// could copy: under 20 us at 10 GB/s.
pub const COLLAPSE_RECOPIED: usize = 32;
/// Pages of a file that a collapse moves together. A task that needs one waits under 40 us at 10 GB/s.
pub const COLLAPSE_FILE_PAGES: usize = 64;
/// Times that a collapse tries to use a file that another task has closed, or to close one in use.
pub const COLLAPSE_FILE_TRIES: usize = 1024;
/// Pages that one call of the background collapser scans, as Linux's `khugepaged/pages_to_scan`.
pub const COLLAPSE_SCAN_PAGES: u64 = 4096;

/// Huge pages that a resize moves between two reschedule points and under one hold of the pool's lock.
pub const HUGE_BATCH: usize = 128;

/// Page descriptors in a frame of the window.
#[cfg(feature = "published")]
pub const WINDOW_DESCRIPTORS: u64 = FRAME_SIZE / DESCRIPTOR_SIZE as u64;
/// Huge pages of 2 MiB whose part of the window a batch changes between two reschedule points.
#[cfg(feature = "published")]
pub const WINDOW_STRIDE: u64 = 64;

/// Bytes of a page descriptor.
pub const DESCRIPTOR_SIZE: usize = 64;
/// Frames, a power of two, whose descriptors fill one frame.
pub const ROWS_FRAMES: usize = FRAME_SIZE as usize / DESCRIPTOR_SIZE;

/// A region is short of whole blocks when at most one in so many is whole and free. From then on a request
/// takes from partly used blocks of other CPUs before it breaks another whole one.
pub const WHOLE_BLOCKS_SHORT: u32 = 32;

/// Tainted areas of 1 GiB in which one search for frames that cannot move looks at the blocks.
pub const AREAS_TRIED: usize = 4;
/// Areas that it passes over to find them: 4 TiB.
pub const AREAS_PASSED: usize = 4096;
/// Searches that do not look for the emptiest block, after one that found none a quarter free.
pub const AREA_REST: u32 = 32;
/// Free frames of a block of movable frames in a tainted area from which on it changes over to other frames.
pub const LEAST_FREE: u16 = 16;

/// Blocks of a range that is added, removed or emptied that are changed between two reschedule points, at most.
pub const RANGE_BLOCKS: u32 = 64;

/// Blocks in a section, the unit in which block records are looked up: 1 GiB.
pub const SECTION_BLOCKS: usize = 512;
/// The largest physical address that a machine may name: 64 TiB.
pub const MAX_PHYS_BYTES: u64 = 64 << 40;
/// Physical ranges that one machine may be given.
pub const MAX_RANGES: usize = 64;
/// Memory nodes that one machine may have.
pub const MAX_NODES: usize = 16;
/// CPUs that one machine may have.
pub const MAX_CPUS: usize = 512;
/// Reader slots of a reader-writer lock. More CPUs share them, which only costs speed.
pub const READER_SLOTS: usize = 16;
/// Turns of a spin loop before a task that waits for an address space's lock sleeps.
pub const LOCK_TURNS: u32 = 32;

/// Frames moved between a per-CPU list and the store under one hold of a lock, at most.
pub const PCP_BATCH: usize = 128;
/// Blocks that a request visits to fill a list or to make room on one, at most: in fragmented memory each
/// folio may be of another block, whose record is in no cache.
pub const VISIT_BLOCKS: usize = 16;
/// Folios of a magazine: as many as 4 KiB have room to name, including the folio that contains the names.
pub const MAGAZINE_FRAMES: usize = 256;
/// Folios of one array of a per-CPU list, at most; a list has two.
pub const PCP_CAPACITY: usize = MAGAZINE_FRAMES - 1;
/// Slots of the lists of contexts that interrupt a list's user, at most, the array's head included.
pub const NESTED_SLOTS: usize = 32;
/// Frames that such a list fetches at once, at most.
pub const NESTED_BATCH: usize = 16;
/// Magazines that one [`age_lists`](crate::page_alloc::Lists::age_lists) gives back of each list, at most.
pub const PCP_AGE_MAGAZINES: u32 = 4;
/// Magazines that one call of [`drain_cpu`](crate::page_alloc::Lists::drain_cpu) gives back, at most.
pub const DRAIN_MAGAZINES: u32 = 64;
/// Frames that a failed request gives back from its CPU's lists before it retries (of a list of blocks, one).
pub const SCRAPE_FRAMES: u64 = 32;
/// Refused requests of a CPU for which its lists stay as they are, at most, once giving frames back did not help.
pub const SCRAPE_REST: u32 = 15;
/// Blocks of a shard that one search for an entirely free one examines, for each mobility group.
pub const FREE_BLOCKS_LOOKED_AT: usize = 32;
/// Frames of each piece cleared ahead in small blocks: 64 KiB; users clear smaller ones in their caches.
pub const ZERO_AHEAD_FRAMES: usize = 16;
/// Words of 64 blocks in which a pool looks for a block with the requested contents, before it takes any.
pub const POOL_WORDS_LOOKED_AT: usize = 16;
/// Blocks by which the sorter sorts folios on their way into the store before it gives any of them back.
pub const SORTER_BLOCKS: usize = 64;
/// Frames handled under one hold of a block's or a page table's lock, at most.
pub const LOCK_HOLD_FRAMES: usize = BLOCK_FRAMES;

/// Page tables that one gather detaches before it flushes: 128 MiB of 4 KiB mappings.
pub const GATHER_TABLES: usize = 64;
/// Spans that one gather keeps without memory of its own.
pub const GATHER_SPANS: usize = 32;
/// Pages of 512 more spans that one gather allocates before it flushes.
pub const GATHER_PAGES: usize = 8;
/// Runs, tables and large leaves that one gather counts down between two reschedule points, at most.
pub const DRAIN_RUNS: usize = TABLE_ENTRIES;
/// Frames that it counts down between two, at most; a larger leaf counts alone.
pub const DRAIN_FRAMES: u64 = (GATHER_TABLES * BLOCK_FRAMES) as u64;
/// Detached tables whose entries a drain sorts together, at most.
pub const SCATTER_TABLES: usize = 127;
/// Leaves of 2 MiB that are split with one flush, at most: their tables are filled between two reschedule
/// points, and the flush names the leaves one by one.
pub const SPLIT_BATCH: usize = 32;
/// Tables of 4 KiB leaves that one step of a collapse replaces by large leaves, with one flush: 128 MiB.
pub const COLLAPSE_TABLES: usize = 64;
/// Pages beyond which a range flush becomes a flush of the whole address space. Linux uses the same ceiling.
pub const FLUSH_PAGES_CEILING: u64 = 33;

/// Frames that one round of reclaim asks for.
pub const RECLAIM_FRAMES: u64 = 512;
/// Runs of file pages that reclaim unmaps together: one flush for each address space that maps some of them.
pub const RECLAIM_RUNS: usize = 32;
/// Folios of 1 GiB cleared piece by piece at a time, in all address spaces; more are cleared as a whole.
pub const GIGANTIC_CLEARS: usize = 8;
/// Waiting folios of order 9 that one call splits, at most.
pub const DEFERRED_SPLITS: usize = 32;

/// Bytes cleared or copied between two reschedule points where the stretch was not measured, and in calls
/// without reschedule points: under 100 us at 5.5 GB/s, the slowest speed of the published systems. Kernels
/// are measured with this stretch, since string stores choose by the length of one instruction.
pub const CLEAR_STRETCH_BYTES: u64 = 512 << 10;
/// The largest stretch of a policy, in bytes, unless it has none. The published sweep goes to 32768 pages.
pub const CLEAR_STRETCH_MOST: u64 = 128 << 20;
/// Nanoseconds that a task should wait for a reschedule point, at most.
pub const CLEAR_POINT_NS: u64 = 100_000;
/// An undisturbed measured stretch may take one in so many of them: in use, other CPUs share the memory.
pub const CLEAR_POINT_SHARE: u64 = 3;
/// Pages populated between two reschedule points, at most, and [`CLEAR_STRETCH_BYTES`] of larger folios.
pub const POPULATE_FAULTS: u32 = 64;
/// Bytes around a faulting address that are cleared last and stay cached, at most.
pub const CLEAR_NEAR_BYTES: u64 = 64 << 10;
/// This neighbourhood is at most one in so many of the extent's bytes.
pub const CLEAR_NEAR_SHARE: u64 = 128;
/// Extents up to this stay cached whatever the hint: one core's own caches hold them easily.
pub const CLEAR_CACHED_BYTES: u64 = 64 << 10;
/// An extent that may be used soon stays cached up to one in so many of the bytes of the shared last cache.
pub const CLEAR_CACHED_SHARE: u64 = 8;
/// Above [`CLEAR_CACHED_BYTES`] a kernel through the caches must cost less by one in so many to be chosen
/// over one past them, use included. Its evictions cost other programs, and the program itself where the
/// caches are shared, as with other guests (measured: a tenth at 1 and 2 MiB that calibration does not see).
pub const CLEAR_CACHED_GAIN: u64 = 8;
/// Up to [`CLEAR_OWN_BYTES`] of memory used soon, a kernel past the caches must cost less by one in so many,
/// since its zeroes are not cached when they are used.
pub const CLEAR_OWN_GAIN: u64 = 16;
/// An extent up to this that is used soon stays in the caches of the core that cleared it.
pub const CLEAR_OWN_BYTES: u64 = 256 << 10;
/// Extents from this size on count towards the number of CPUs that clear at once.
pub const CLEAR_COUNTED_BYTES: u64 = 256 << 10;

/// Bytes of stack that must be left where the manager starts, if the platform knows how many are: what start-up
/// needs in an optimised build, or without any optimisation (45 KB) in one with checks, as `cargo build` makes it.
pub const START_STACK_BYTES: usize = if cfg!(debug_assertions) { 48 << 10 } else { 8 << 10 };

/// Pages that one file fault may map around the faulting one: 64 KiB, as Linux's `fault_around_bytes`.
pub const FAULT_AROUND_PAGES: u64 = 16;

/// Bytes kept free below a mapping that grows down: 256 pages, as Linux's `stack_guard_gap`.
pub const STACK_GUARD_BYTES: u64 = 256 * FRAME_SIZE;
/// Times that an access is retried after a reclaim, which may free just what it needs, before memory is out.
pub const RECLAIM_ROUNDS: usize = 4;
/// The default limit of mappings of one address space, as Linux's `vm.max_map_count`.
pub const MAX_MAPPINGS: usize = 65_530;

const _: () = assert!(ROWS_FRAMES.is_power_of_two() && BLOCK_FRAMES.is_multiple_of(ROWS_FRAMES));
const _: () = assert!(PCP_BATCH <= LOCK_HOLD_FRAMES && PCP_BATCH <= PCP_CAPACITY);
const _: () = assert!(CLEAR_NEAR_BYTES.is_power_of_two() && CLEAR_NEAR_BYTES <= CLEAR_STRETCH_BYTES);
const _: () = assert!(CLEAR_STRETCH_BYTES.is_multiple_of(FRAME_SIZE) && CLEAR_NEAR_BYTES >= FRAME_SIZE);
const _: () =
    assert!(CLEAR_STRETCH_BYTES <= CLEAR_STRETCH_MOST && CLEAR_STRETCH_MOST.is_multiple_of(FRAME_SIZE));
const _: () = assert!(SPLIT_BATCH as u64 <= FLUSH_PAGES_CEILING);
const _: () = assert!(MOVE_LEAVES as u64 <= FLUSH_PAGES_CEILING && MOVE_LEAVES <= GATHER_SPANS);
const _: () = assert!(MOVE_LEAVES as u64 * FRAME_SIZE <= CLEAR_STRETCH_BYTES);
const _: () = assert!(MAX_PHYS_BYTES / BLOCK_SIZE <= u32::MAX as u64);
/// Groups of processes with limits on huge pages, at most.
pub const MAX_HUGE_GROUPS: usize = HUGE_GROUPS_AT_START * ((1 << HUGE_GROUP_TABLES) - 1);
/// Groups for which there is memory from the start.
pub const HUGE_GROUPS_AT_START: usize = 64;
/// Tables of groups, at most. Each has room for twice as many as the one before it.
pub const HUGE_GROUP_TABLES: usize = 6;
/// File systems of huge pages, at most.
pub const MAX_HUGE_FS: usize = 32;
/// Faults on huge pages served at once, at most; those whose pages hash to the same place take turns.
pub const HUGE_FAULTS: usize = 64;

/// Fault handlers ([`Userfault`](crate::vm::Userfault)), at most.
pub const MAX_USERFAULTS: usize = 8;
/// Faults that wait for one handler, at most; more threads wait for a place. Each is a bit of one word.
pub const USERFAULT_SLOTS: usize = 64;
/// Changes to address spaces that one handler has not read yet, at most; more verbs wait for a place.
pub const USERFAULT_CHANGES: usize = 8;
const _: () = assert!(USERFAULT_SLOTS <= u64::BITS as usize && MAX_USERFAULTS < u8::MAX as usize);
