use super::*;

const SMAPS: &str = "\
55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
KernelPageSize:        4 kB
Rss:                  12 kB
VmFlags: rd wr mr mw me ac lo
7f0000000000-7f0000002000 r--s 00003000 fe:10 1234                       /tmp/a b: c (deleted)
Rss:                   8 kB
VmFlags: rd mr me ms hg
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
Rss:                   0 kB
VmFlags: rd wr mr mw me gd ac
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Rss:                   0 kB
VmFlags: ex
";

#[test]
fn mappings_are_read_with_their_flags() {
    let areas = parse(SMAPS);
    let of = |at: usize| &areas[at].mapping;
    assert_eq!(areas.len(), 3, "the kernel's own addresses are left out");
    assert_eq!(
        (of(0).start, of(0).len, of(0).prot, of(0).flags),
        (0x55d0_c8a0_0000, 0x21000, 3, MAP_PRIVATE)
    );
    assert!(areas[0].locked && areas[0].resident == 12 << 10);
    assert_eq!((of(1).name.as_str(), of(1).offset, of(1).prot), ("/tmp/a b: c (deleted)", 0x3000, 1));
    assert_eq!((of(1).device, of(1).inode, of(1).flags), (0xfe_0000_0010, 1234, MAP_SHARED));
    assert_eq!(areas[1].advice, [MADV_HUGEPAGE]);
    assert_eq!(of(2).flags, MAP_PRIVATE | MAP_GROWSDOWN);
}

#[test]
fn the_heap_reaches_from_its_start_to_its_last_mapping() {
    let before = "x ".repeat(44);
    let stat = |start: u64| format!("1 (a) b) {before}{start} 0 0");
    let (start, end) = (0x55d0_c8a0_0000, 0x55d0_c8a2_1000);
    assert_eq!(heap(&stat(start), &parse(SMAPS)), Some((start, end)));
    assert_eq!(heap(&stat(start), &[]), Some((start, start)), "a heap that is empty");
    assert_eq!(heap(&stat(0), &[]), None);
}

#[test]
fn a_written_page_behind_pages_of_zeroes_is_found() {
    let mut zeroes = Zeroes::find();
    if zeroes.page.is_none() {
        println!("skipped: this process has no right to see frames");
        return;
    }
    // More than one read of the page map.
    let len = 2 * BATCH * PAGE;
    let mut memory = MmapMut::map_anon(len as usize).expect("memory");
    memory.advise(memmap2::Advice::NoHugePage).expect("a mapping of pages");
    black_box(memory[0]);
    memory[(len - PAGE) as usize] = 1;
    let start = memory.as_ptr() as u64;
    let (offset, device, inode, prot, flags, name) = (0, 0, 0, 3, MAP_PRIVATE, String::new());
    let mapping = Mapping { start, len, offset, device, inode, prot, flags, name };
    let pagemap = File::open("/proc/self/pagemap").expect("any process may");
    let (deadline, mut found) = (Instant::now() + std::time::Duration::from_secs(60), vec![]);
    let unread = runs(&pagemap, &mapping, PAGE, &mut zeroes, deadline, &mut found);
    assert_eq!(unread.expect("a page map"), 0);
    assert_eq!(found, [(start, PAGE, false), (start + len - PAGE, PAGE, true)]);
}
