//! Texts about memory, against texts that Linux 6.18 wrote.

use std::collections::HashSet;
use std::fmt::{self, Write};

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{MemoryRange, NodeNames, NodePolicy, NodeSet};
use quire::vm::{Access, Backing, FolioPolicy, MapRequest, Mm, OrderPolicy, Placement, Sharing, VmaInfo};
use quire_interop::proc::{
    self, InvalidChoice, KernelMemory, MappedFile, Names, Sizes, TransparentHuge, Unaligned,
};

const PAGE: u64 = 4096;
const BYTES: u64 = 64 << 20;
const BASE: u64 = 0x5625_a2dd_a000;
const STACK: u64 = 0x7fff_5743_5000;

/// One file, and a stack.
struct Known;

impl Names for Known {
    fn file(&self, _: &VmaInfo) -> MappedFile {
        MappedFile { device: (0xfe, 0), inode: 247_278 }
    }

    fn path(&self, _: &VmaInfo, out: &mut dyn Write) -> fmt::Result {
        out.write_str("/usr/bin/head")
    }

    fn stack(&self) -> VirtAddr {
        VirtAddr(STACK)
    }

    fn special(&self, vma: &VmaInfo, out: &mut dyn Write) -> fmt::Result {
        if vma.protection.contains(Protection::EXEC) { out.write_str("[vdso]") } else { Ok(()) }
    }
}

fn with_manager(test: impl FnOnce(&MemoryManager<'_, Hosted>, &Mm<'_, Hosted>)) {
    let machine = HostedConfig::new(BYTES).build().unwrap();
    machine.run_on(CpuId(0), || {
        let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / PAGE), node: 0, zeroed: true };
        let manager = hosted::raw::memory_manager(&machine, &[memory], &Config::default()).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        test(&manager, &mm);
        mm.switch_out();
        mm.exit();
        assert_eq!(manager.validate(), Ok(()));
    });
}

fn text(write: impl FnOnce(&mut dyn Write) -> fmt::Result) -> String {
    let mut text = String::new();
    write(&mut text).unwrap();
    text
}

fn request<'a>(at: u64, pages: u64, prot: Protection) -> MapRequest<'a> {
    MapRequest {
        addr: VirtAddr(at),
        len: pages * PAGE,
        prot,
        placement: Placement::Fixed,
        ..MapRequest::default()
    }
}

const RW: Protection = Protection::READ.union(Protection::WRITE);

#[test]
fn maps_has_the_columns_of_linux() {
    with_manager(|manager, mm| {
        let file = manager.shmem(8 * PAGE).unwrap();
        let backing = Backing::File { file: &file, page_offset: 2 };
        mm.mmap(&MapRequest { backing, ..request(BASE, 2, Protection::READ) }).unwrap();
        mm.mmap(&MapRequest { backing, sharing: Sharing::Shared, ..request(BASE + 4 * PAGE, 1, RW) })
            .unwrap();
        mm.set_brk_start(VirtAddr(BASE + 0x10_0000));
        mm.brk(VirtAddr(BASE + 0x10_0000 + 3 * PAGE));
        mm.mmap(&request(0x7f00_0000_0000, 1, Protection::NONE)).unwrap();
        mm.mmap(&request(0x7f00_0001_0000, 2, Protection::READ.union(Protection::EXEC))).unwrap();
        mm.mmap(&request(STACK - PAGE, 33, RW)).unwrap();
        let expected = "\
5625a2dda000-5625a2ddc000 r--p 00002000 fe:00 247278                     /usr/bin/head
5625a2dde000-5625a2ddf000 rw-s 00002000 fe:00 247278                     /usr/bin/head
5625a2eda000-5625a2edd000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
7f0000010000-7f0000012000 r-xp 00000000 00:00 0                          [vdso]
7fff57434000-7fff57455000 rw-p 00000000 00:00 0                          [stack]
";
        assert_eq!(text(|out| proc::maps(out, mm, &Known)), expected);
        mm.fault(VirtAddr(BASE), Access::Read).unwrap();
        mm.fault(VirtAddr(STACK), Access::Write).unwrap();
        let numa = text(|out| proc::numa_maps(out, manager, mm, &Known));
        assert!(
            numa.starts_with("5625a2dda000 default file=/usr/bin/head mapped=1 N0=1 kernelpagesize_kB=4\n"),
            "{numa}"
        );
        assert!(
            numa.ends_with("7fff57434000 default stack anon=1 dirty=1 N0=1 kernelpagesize_kB=4\n"),
            "{numa}"
        );
    });
}

/// The words of Linux's `mpol_to_str`.
#[test]
fn numa_maps_shows_the_policy_of_each_mapping() {
    with_manager(|manager, mm| {
        let nodes = NodeSet::of(&[0, 1, 2, 5]);
        let policies = [
            (None, "default"),
            (Some(NodePolicy::Local), "local"),
            (Some(NodePolicy::Preferred(0)), "prefer:0"),
            (Some(NodePolicy::PreferredMany(NodeSet::first(2))), "prefer (many):0-1"),
            (Some(NodePolicy::Bind(NodeSet::first(2))), "bind:0-1"),
            (Some(NodePolicy::Interleave(NodeSet::of(&[0, 2]))), "interleave:0,2"),
            (Some(NodePolicy::Interleave(nodes)), "interleave:0-2,5"),
        ];
        let mut expected = String::new();
        for (at, (policy, word)) in (0..).map(|number| BASE + number * 16 * PAGE).zip(policies) {
            mm.mmap(&request(at, 1, RW)).unwrap();
            mm.set_nodes(VirtAddr(at), PAGE, policy).unwrap();
            expected += &format!("{at:08x} {word}\n");
        }
        let bound = Some(NodePolicy::Bind(NodeSet::first(2)));
        for (number, names, word) in [
            (8, NodeNames::Static(nodes), "bind=static:0-1"),
            (9, NodeNames::Relative(nodes), "bind=relative:0-1"),
        ] {
            let at = BASE + number * 16 * PAGE;
            mm.mmap(&request(at, 1, RW)).unwrap();
            mm.set_named_nodes(VirtAddr(at), PAGE, bound, names).unwrap();
            expected += &format!("{at:08x} {word}\n");
        }
        assert_eq!(text(|out| proc::numa_maps(out, manager, mm, &Known)), expected);
    });
}

/// A private mapping of 24 KiB of which 12 are in memory; Linux wrote this, apart from the address.
const SMAPS: &str = "\
5625a2dda000-5625a2de0000 rw-p 00000000 00:00 0 
Size:                 24 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                  12 kB
Pss:                  12 kB
Pss_Dirty:            12 kB
Shared_Clean:          0 kB
Shared_Dirty:          0 kB
Private_Clean:         0 kB
Private_Dirty:        12 kB
Referenced:           12 kB
Anonymous:            12 kB
KSM:                   0 kB
LazyFree:              0 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:         0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
Swap:                  0 kB
SwapPss:               0 kB
Locked:                0 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac 
";

#[test]
fn smaps_has_the_rows_of_linux() {
    with_manager(|manager, mm| {
        mm.mmap(&request(BASE, 6, RW)).unwrap();
        for page in 0..3 {
            mm.fault(VirtAddr(BASE + page * PAGE), Access::Write).unwrap();
            mm.translate(VirtAddr(BASE + page * PAGE), Access::Write).unwrap();
        }
        assert_eq!(text(|out| proc::smaps(out, manager, mm, &Known)), SMAPS);
        let rollup = text(|out| proc::smaps_rollup(out, mm));
        let mut lines = rollup.lines();
        let first = "5625a2dda000-5625a2de0000 ---p 00000000 00:00 0                          [rollup]";
        assert_eq!(lines.next(), Some(first));
        let rest = "Rss Pss Pss_Dirty Pss_Anon Pss_File Pss_Shmem Shared_Clean Shared_Dirty Private_Clean Private_Dirty \
                    Referenced Anonymous KSM LazyFree AnonHugePages ShmemPmdMapped FilePmdMapped Shared_Hugetlb \
                    Private_Hugetlb Swap SwapPss Locked";
        let names = lines.map(|line| line.split_once(':').unwrap().0);
        assert_eq!(names.collect::<Vec<_>>().join(" "), rest);
        assert!(rollup.contains("\nPss_Anon:             12 kB\n"), "{rollup}");
    });
}

#[test]
fn an_empty_address_space_has_a_rollup_of_zeroes() {
    with_manager(|_, mm| {
        let rollup = text(|out| proc::smaps_rollup(out, mm));
        let head = "00000000-00000000 ---p 00000000 00:00 0                                  [rollup]\n";
        let first = format!("{head}Rss:                   0 kB\n");
        assert!(rollup.starts_with(&first) && rollup.lines().count() == 23, "{rollup}");
        assert!(rollup.lines().skip(1).all(|line| line.ends_with(" 0 kB")), "{rollup}");
    });
}

#[test]
fn sizes_are_those_of_statm_and_status() {
    with_manager(|manager, mm| {
        let file = manager.shmem(8 * PAGE).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        let code = VirtAddr(BASE + 16)..VirtAddr(BASE + 5000);
        let executable = Protection::READ.union(Protection::EXEC);
        mm.mmap(&MapRequest { backing, ..request(BASE, 4, executable) }).unwrap();
        mm.mmap(&request(BASE + 8 * PAGE, 10, RW)).unwrap();
        mm.fault(VirtAddr(BASE), Access::Read).unwrap();
        mm.fault(VirtAddr(BASE + 9 * PAGE), Access::Write).unwrap();
        let sizes = Sizes::of(mm);
        let shmem = sizes.resident.shmem;
        assert_eq!(text(|out| sizes.statm(out, &code)), format!("14 {} {shmem} 2 0 10 0\n", 1 + shmem));
        let status = text(|out| sizes.status(out, &code, (20, 0)));
        assert!(status.starts_with("VmPeak:\t      80 kB\nVmSize:\t      56 kB\n"), "{status}");
        assert!(status.contains(
            "VmData:\t      40 kB\nVmStk:\t       0 kB\nVmExe:\t       8 kB\nVmLib:\t       8 kB\n"
        ));
        assert!(status.ends_with("VmSwap:\t       0 kB\nHugetlbPages:\t       0 kB\n"));
    });
}

#[test]
fn words_are_read_at_any_aligned_offset() {
    with_manager(|manager, mm| {
        mm.mmap(&request(BASE, 6, RW)).unwrap();
        mm.fault(VirtAddr(BASE + PAGE), Access::Write).unwrap();
        let mut bytes = [0xff; 24];
        assert_eq!(proc::read_pagemap(mm, (BASE >> 12) * 8, &mut bytes), Ok(24));
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        assert_eq!((words[0], words[2]), (0, 0));
        assert_eq!(words[1] >> 63, 1);
        let frame = words[1] & ((1 << 55) - 1);
        let (mut count, mut flags) = ([0; 8], [0; 8]);
        assert_eq!(proc::read_kpagecount(manager, frame * 8, &mut count), Ok(8));
        assert_eq!(proc::read_kpageflags(manager, frame * 8, &mut flags), Ok(8));
        // MMAP and ANON.
        assert_eq!((u64::from_ne_bytes(count), u64::from_ne_bytes(flags)), (1, 1 << 11 | 1 << 12));
        assert_eq!(proc::read_pagemap(mm, 4, &mut bytes), Err(Unaligned));
        assert_eq!(proc::read_kpagecount(manager, 0, &mut bytes[..7]), Err(Unaligned));
        assert_eq!(
            proc::read_kpagecount(manager, (BYTES / PAGE - 1) * 8, &mut bytes),
            Ok(8),
            "the last frame"
        );
        assert_eq!(proc::read_kpageflags(manager, BYTES / PAGE * 8, &mut bytes), Ok(0));
        assert_eq!(proc::read_pagemap(mm, mm.layout().user.end.0 / PAGE * 8, &mut bytes), Ok(0));
    });
}

#[test]
fn the_machines_texts_add_up() {
    with_manager(|manager, mm| {
        mm.mmap(&request(BASE, 600, RW)).unwrap();
        mm.fault(VirtAddr(BASE), Access::Write).unwrap();
        let kernel = KernelMemory { stacks: 32, mappings: (34_359_738_367, 16), ..KernelMemory::default() };
        let meminfo = text(|out| proc::meminfo(out, manager, &kernel));
        for line in meminfo.lines() {
            let number = line.trim_end_matches(" kB");
            let wide = number.starts_with("VmallocTotal:   34359738367");
            assert!(number.len() == 24 || wide, "{line:?}");
        }
        let row = |name: &str| -> u64 {
            let line = meminfo.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        assert!(row("MemTotal:") > row("MemFree:") && row("AnonPages:") == 4 && row("KernelStack:") == 32);
        assert!(meminfo.contains("HugePages_Total:       0\n"), "{meminfo}");
        let node = text(|out| proc::node_meminfo(out, manager, 0));
        assert!(node.contains("Node 0 HugePages_Total:     0\n"), "{node}");
        let of_node: Vec<_> = node.lines().next().unwrap().split_whitespace().collect();
        let total: u64 = of_node[3].parse().unwrap();
        assert!(
            of_node[2] == "MemTotal:" && total >= row("MemTotal:") && total < row("MemTotal:") + 256,
            "{node}"
        );

        let buddies = text(|out| proc::buddyinfo(out, manager));
        let counts = buddies.strip_prefix("Node 0, zone    DMA32 ").unwrap().split_whitespace();
        let free: u64 =
            (0..).zip(counts).map(|(order, count): (u32, &str)| count.parse::<u64>().unwrap() << order).sum();
        let zones = text(|out| proc::zoneinfo(out, manager));
        assert!(
            zones.starts_with(&format!(
                "Node 0, zone    DMA32\n  pages free     {free}\n        boost    0\n"
            )),
            "{zones}"
        );
        let types = text(|out| proc::pagetypeinfo(out, manager));
        let head = "Free pages count per migrate type at order       0      1      2";
        assert!(
            types.contains(head) && types.contains("\nNode    0, zone    DMA32, type  Reclaimable "),
            "{types}"
        );
        assert!(
            types.contains("\nNumber of blocks type     Unmovable      Movable  Reclaimable \n"),
            "{types}"
        );
        let areas = types.split("\nNumber of areas of 1 GiB").nth(1).unwrap();
        assert!(
            areas.lines().nth(1).unwrap().starts_with("Node 0, zone    DMA32            0            0"),
            "{types}"
        );

        let vmstat = text(|out| proc::vmstat(out, manager, &[("oom_kill", 3)]));
        let names: Vec<_> = vmstat.lines().map(|line| line.split_once(' ').unwrap().0).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "each name once");
        assert!(vmstat.contains("\noom_kill 3\n") && vmstat.contains("\nnr_anon_pages 1\n"), "{vmstat}");
    });
}

#[test]
fn folio_sizes_are_chosen_as_in_linux() {
    let mut huge = TransparentHuge::new();
    let order = |order| Order::new(order);
    assert_eq!(text(|out| huge.write(out, None)), "always [madvise] never\n");
    assert_eq!(text(|out| huge.write(out, order(4))), "always inherit madvise [never]\n");
    assert_eq!(text(|out| huge.write(out, order(9))), "always [inherit] madvise never\n");
    assert_eq!(huge.policy(FolioPolicy::FRAMES), FolioPolicy::LINUX);
    huge.choose(order(4), "inherit\n").unwrap();
    huge.choose(None, "always").unwrap();
    huge.choose(order(9), "never").unwrap();
    let expected = FolioPolicy::FRAMES.with(Order::new(4).unwrap(), OrderPolicy::Always);
    assert_eq!(huge.policy(FolioPolicy::FRAMES), expected);
    let before = huge;
    assert_eq!(huge.choose(None, "inherit"), Err(InvalidChoice));
    assert_eq!(huge.choose(order(4), "sometimes"), Err(InvalidChoice));
    assert_eq!(huge, before);
}
