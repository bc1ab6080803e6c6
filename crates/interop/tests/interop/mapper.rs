//! Page tables of the crate `x86_64` in frames of Quire.

use quire::addr::{Frame, FrameRange};
use quire::page_alloc::Gfp;
use quire::platform::FramePlatform;
use quire_interop::x86_64::{Frames, frame_range, phys_frame};
use x86_64::VirtAddr;
use x86_64::structures::paging::mapper::{CleanUp, TranslateResult};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame,
    Size1GiB, Size2MiB, Size4KiB, Translate,
};

use crate::with_pages;

#[test]
fn a_mapper_takes_tables_and_pages_from_the_allocator() {
    with_pages(1, |machine, pages| {
        let mut frames = Frames::new(pages, Gfp::KERNEL);
        let offset = VirtAddr::from_ptr(machine.direct_map(Frame(0).addr()));
        let root: PhysFrame<Size4KiB> = frames.allocate_frame().unwrap();
        let table = machine.direct_map(frame_range(root).start.addr()).cast::<PageTable>();
        // SAFETY: invariant 1: the frame was just handed out, and all of memory stands at one offset in the arena (H1).
        let mut mapper = unsafe {
            table.write(PageTable::new());
            OffsetPageTable::new(&mut *table, offset)
        };
        let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE;
        let small: Page<Size4KiB> = Page::containing_address(VirtAddr::new(0x4000_0000));
        let large: Page<Size2MiB> = Page::containing_address(VirtAddr::new(0x8000_0000));
        let mut users = Frames::new(pages, Gfp::USER);
        let small_frame: PhysFrame<Size4KiB> = users.allocate_frame().unwrap();
        let large_frame: PhysFrame<Size2MiB> = users.allocate_frame().unwrap();
        assert_eq!(frame_range(large_frame).count, 512);
        // SAFETY: invariant 1: the frames were just handed out; no CPU uses the page table.
        unsafe {
            mapper.map_to(small, small_frame, flags, &mut frames).unwrap().ignore();
            mapper.map_to(large, large_frame, flags, &mut frames).unwrap().ignore();
        }
        assert_eq!(
            mapper.translate_addr(small.start_address() + 5).unwrap(),
            small_frame.start_address() + 5
        );
        assert!(matches!(mapper.translate(large.start_address() + 0x1234), TranslateResult::Mapped { .. }));

        mapper.unmap(small).unwrap().1.ignore();
        mapper.unmap(large).unwrap().1.ignore();
        // SAFETY: invariant 1: nothing maps the frames any more, and no CPU uses the page table.
        unsafe {
            users.deallocate_frame(small_frame);
            users.deallocate_frame(large_frame);
            mapper.clean_up(&mut frames);
            frames.deallocate_frame(root);
        }
    });
}

#[test]
fn frames_of_the_two_crates_are_the_same() {
    let frame: PhysFrame<Size2MiB> = phys_frame(Frame(512)).unwrap();
    assert_eq!(frame.start_address().as_u64(), 2 << 20);
    assert_eq!(frame_range(frame), FrameRange::new(Frame(512), 512));
    assert!(phys_frame::<Size2MiB>(Frame(511)).is_none());
    assert!(phys_frame::<Size4KiB>(Frame(1 << 41)).is_none(), "beyond 52 bits");
    assert!(phys_frame::<Size1GiB>(Frame(1 << 18)).is_some());
}

#[test]
fn out_of_memory_is_none() {
    with_pages(1, |_, pages| {
        let mut frames = Frames::new(pages, Gfp::KERNEL);
        let none: Option<PhysFrame<Size1GiB>> = frames.allocate_frame();
        assert!(none.is_none(), "the machine is smaller");
    });
}
