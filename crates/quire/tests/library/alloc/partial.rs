//! Any number of frames, frames by number, parts of allocated memory; memory that is added and removed.

use fastrand::Rng;
use hosted::raw::RawPages;
use hosted::{FailurePlan, Hosted, HostedConfig, MemoryRange as Range};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::cpu::CpuId;
use quire::error::{AllocError, FreeError, HotplugError};
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, PageAllocator};
use testkit::{order, ranges_of, seed, with_allocator};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 512;

fn at_rest(pages: &PageAllocator<'_, Hosted>, used: u64) {
    pages.lists().drain_all();
    assert_eq!(pages.memory_info().used, used);
    pages.validate().unwrap();
}

#[test]
fn exactly_as_many_frames_as_were_asked_for_are_in_use() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let before = pages.memory_info().used;
        for frames in [1, 2, 3, 5, 255, 256, 257, 511, 512, 513, 1000, 1536, 2047] {
            let run = pages.alloc_exact(Gfp::USER, frames).unwrap();
            assert_eq!(run.frames().count, frames);
            // A split block keeps the descriptors of its frames elsewhere.
            let area = if frames > 256 && frames % BLOCK != 0 { 8 } else { 0 };
            assert!(pages.memory_info().used - before <= frames + area, "{frames}");
            pages.validate().unwrap();
            let (front, back) = run.split_at(frames / 3);
            pages.free_range(back).unwrap();
            pages.validate().unwrap();
            pages.free_range(front).unwrap();
            at_rest(pages, before);
        }
        assert_eq!(pages.alloc_exact(Gfp::USER, 0), Err(AllocError::BadOrder));
        for frames in [1 << 40, u64::MAX] {
            assert_eq!(pages.alloc_exact(Gfp::USER, frames), Err(AllocError::OutOfMemory));
        }
    });
}

#[test]
fn frames_are_had_by_number_all_or_none() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let before = pages.memory_info().used;
        // A part of one block, two whole blocks, and a part of the next.
        let range = FrameRange::new(Frame(20 * BLOCK + 100), 412 + 2 * BLOCK + 7);
        let run = pages.alloc_at(range).unwrap();
        assert_eq!(run.frames(), range);
        pages.validate().unwrap();
        assert_eq!(pages.alloc_at(FrameRange::new(range.start.add(3), 1)), Err(AllocError::NotFree));
        // The frames around the range are free, and a freed part can be allocated again.
        let around = pages.alloc_at(FrameRange::new(Frame(20 * BLOCK), 60)).unwrap();
        let (first, rest) = run.split_at(40);
        pages.free_range(first).unwrap();
        let again = pages.alloc_at(FrameRange::new(range.start, 40)).unwrap();
        for part in [around, again, rest] {
            pages.free_range(part).unwrap();
            pages.validate().unwrap();
        }
        at_rest(pages, before);
        // A range with one frame in use stays as it is; a frame on a list is not in use.
        let used = pages.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        let about = FrameRange::folio(used.block().first_frame(), Order::BLOCK);
        assert_eq!(pages.alloc_at(about), Err(AllocError::NotFree));
        assert_eq!(pages.alloc_at(FrameRange::new(Frame(1 << 30), 1)), Err(AllocError::NotFree));
        pages.validate().unwrap();
        pages.free_raw(used, Order::FRAME).unwrap();
        let one = pages.alloc_at(FrameRange::new(used, 1)).unwrap();
        pages.free_range(one).unwrap();
        at_rest(pages, before);
    });
}

#[test]
fn parts_of_folios_of_any_order_come_back() {
    with_allocator(HostedConfig::new(128 * MIB), |_, pages| {
        let (before, mut rng) = (pages.memory_info().used, Rng::with_seed(seed(1)));
        for _ in 0..200 {
            let order = order(rng.u8(0..=11));
            let mut open = vec![pages.alloc(Gfp::USER, order).unwrap().into_run()];
            while let Some(run) = open.pop() {
                let count = run.frames().count;
                if count > 1 && rng.u8(..3) > 0 {
                    let (front, back) = run.split_at(rng.u64(1..count));
                    open.extend([back, front]);
                    let by = rng.usize(..open.len());
                    open.rotate_right(by);
                    if open.len() < 12 {
                        continue;
                    }
                } else {
                    open.push(run);
                }
                let run = open.swap_remove(rng.usize(..open.len()));
                pages.free_range(run).unwrap();
            }
            pages.validate().unwrap();
        }
        at_rest(pages, before);
    });
}

#[test]
fn a_part_is_split_off_without_memory() {
    with_allocator(HostedConfig::new(64 * MIB), |machine, pages| {
        let before = pages.memory_info().used;
        let (front, back) = pages.alloc(Gfp::USER, Order::BLOCK).unwrap().into_run().split_at(100);
        machine.set_failures(FailurePlan::From(0));
        pages.free_range(front).unwrap();
        pages.validate().unwrap();
        pages.free_range(back).unwrap();
        machine.set_failures(FailurePlan::Off);
        at_rest(pages, before);
    });
}

fn with_later(mib: u64, later: u64, test: impl FnOnce(&Hosted, &PageAllocator<'_, Hosted>, FrameRange)) {
    let machine = HostedConfig::new(mib * MIB).with_cpus(3).build().unwrap();
    let all = ranges_of(&machine);
    let [range] = all.as_slice() else { panic!("one range") };
    let count = range.frames.count - later * 256;
    let here = MemoryRange { frames: FrameRange::new(range.frames.start, count), ..*range };
    let late = MemoryRange { frames: FrameRange::new(here.frames.end(), later * 256), ..*range };
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig::default();
        let pages = hosted::raw::page_allocator_with_later(&machine, &[here], &[late], config).unwrap();
        test(&machine, &pages, late.frames);
        pages.validate().unwrap();
    });
}

#[test]
fn announced_memory_is_used_once_it_is_added() {
    with_later(64, 32, |_, pages, late| {
        let (total, free) = (pages.memory_info().total, pages.memory_info().free);
        assert_eq!(pages.free_raw(late.start, Order::BLOCK), Err(FreeError::NotMemory));
        assert_eq!(pages.alloc_at(late), Err(AllocError::NotFree));
        assert_eq!(pages.alloc_contig_raw(Gfp::USER, 16, 1), Err(AllocError::OutOfMemory));
        let beyond = FrameRange::new(late.end(), BLOCK);
        for (range, why) in [
            (FrameRange::new(late.start.add(1), BLOCK), HotplugError::Unaligned),
            (FrameRange::new(late.start, 0), HotplugError::Unaligned),
            (beyond, HotplugError::NotExpected),
            (FrameRange::new(Frame(late.start.0 - BLOCK), 2 * BLOCK), HotplugError::Present),
        ] {
            assert_eq!(pages.add_memory_raw(range, false), Err(why), "{range:?}");
        }
        let half = FrameRange::new(late.start, late.count / 2);
        pages.add_memory_raw(half, true).unwrap();
        assert_eq!(pages.add_memory_raw(late, false), Err(HotplugError::Present));
        assert_eq!(pages.memory_info().total, total + half.count);
        assert_eq!(pages.memory_info().free, free + half.count);
        pages.validate().unwrap();
        pages.add_memory_raw(FrameRange::new(half.end(), half.count), false).unwrap();
        let run = pages.alloc_contig(Gfp::USER, 16, 1).unwrap();
        pages.free_range(run).unwrap();
        pages.verify_zeroes().unwrap();
    });
}

#[test]
fn memory_is_removed_when_what_is_in_it_can_be_moved() {
    with_later(64, 32, |_, pages, late| {
        pages.add_memory_raw(late, false).unwrap();
        let total = pages.memory_info().total;
        // Free memory is removed at once, and can be added again.
        pages.remove_memory(late, |_| ()).unwrap();
        assert_eq!(pages.memory_info().total, total - late.count);
        assert_eq!(pages.remove_memory(late, |_| ()), Err(HotplugError::Absent));
        pages.validate().unwrap();
        pages.add_memory_raw(late, false).unwrap();
        // Memory in use is shown to the caller, which moves it.
        let mut held = Some(pages.alloc_at(FrameRange::new(late.start.add(700), 30)).unwrap());
        assert_eq!(pages.remove_memory(late, |_| ()), Err(HotplugError::InUse));
        pages.validate().unwrap();
        // A leaf maps the frames now, so that they count as movable.
        let frames = held.take().unwrap().into_raw();
        pages.counts().counter().map(frames).unwrap();
        let mut moved = 0;
        let removed = pages.remove_memory(late, |range| {
            assert_eq!(range, late);
            moved += 1;
            if moved == 1 {
                hosted::raw::RawCounts::unmap_raw(&mut pages.counts().counter(), frames);
            }
        });
        assert_eq!((removed, moved), (Ok(()), 1));
        assert_eq!(pages.alloc_at(frames), Err(AllocError::NotFree));
        pages.validate().unwrap();
    });
}

#[test]
fn what_cannot_go_is_refused_by_name() {
    let two = vec![Range::new(0, 32 * MIB), Range::new(64 * MIB, 32 * MIB)];
    with_allocator(HostedConfig::new(MIB).with_ranges(two), |_, pages| {
        let info = pages.memory_info();
        // Tables stand at the start of the last of the largest ranges.
        let tables = FrameRange::new(Frame(64 * 256), BLOCK);
        assert_eq!(pages.remove_memory(tables, |_| ()), Err(HotplugError::HoldsTables));
        let hole = FrameRange::new(Frame(40 * 256), BLOCK);
        assert_eq!(pages.remove_memory(hole, |_| ()), Err(HotplugError::Absent));
        let folio = pages.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        pages.counts().counter().map_large(folio, PageSize::Size2M);
        pages.frames().hold(FrameRange::folio(folio, Order::FRAME));
        let around = FrameRange::folio(folio, Order::BLOCK);
        assert_eq!(pages.remove_memory(around, |_| ()), Err(HotplugError::InUse));
        assert_eq!(pages.memory_info().total, info.total);
        pages.validate().unwrap();
    });
}

#[test]
fn memory_comes_and_goes_while_others_allocate() {
    with_later(64, 16, |machine, pages, late| {
        let workers = 1..3;
        std::thread::scope(|scope| {
            for cpu in workers {
                scope.spawn(move || {
                    machine.run_on(CpuId(cpu), || {
                        let mut rng = Rng::with_seed(cpu.into());
                        let mut live = Vec::new();
                        for _ in 0..3000 {
                            live.extend(pages.alloc(Gfp::USER, order(rng.u8(0..=9))).ok());
                            if live.len() > 8 {
                                pages.free(live.swap_remove(rng.usize(..live.len()))).unwrap();
                            }
                        }
                        live.into_iter().for_each(|folio| pages.free(folio).unwrap());
                    });
                });
            }
            let mut removed = 0;
            for _ in 0..40 {
                pages.add_memory_raw(late, false).unwrap();
                while pages.remove_memory(late, |_| ()).is_err() {
                    std::thread::yield_now();
                }
                removed += 1;
            }
            assert_eq!(removed, 40);
        });
    });
}
