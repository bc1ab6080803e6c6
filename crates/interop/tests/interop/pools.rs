//! Pools of huge pages as an operator sees them: the command line, and the files of control groups.

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::hugetlb::{
    Charge, ControlError, HugeGroup, HugeSize, HugeSize::Size1G, HugeSize::Size2M, Outcome, Stopped,
};
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{MemoryRange, NodeSet};
use quire::vm::{Access, FolioPolicy, MapRequest};
use quire_interop::proc::{GroupFile, write_pool_file};
use quire_interop::{HugeOptions, Shortage, WantedPages};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A machine with so much memory on each of two nodes.
fn with_manager(bytes: u64, test: impl FnOnce(&Hosted, &MemoryManager<'_, Hosted>)) {
    let nodes = || (0..2_u8).map(|node| (node, u64::from(node) * bytes));
    let parts = nodes().map(|(node, start)| hosted::MemoryRange::new(start, bytes).on_node(node));
    let machine = HostedConfig::new(MIB).with_ranges(parts.collect()).build().unwrap();
    let frames = |start| FrameRange::new(Frame(start / 4096), bytes / 4096);
    let ranges: Vec<_> =
        nodes().map(|(node, start)| MemoryRange { frames: frames(start), node, zeroed: true }).collect();
    machine.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(&machine, &ranges, &Config::default()).unwrap();
        test(&machine, &manager);
        for size in HugeSize::ALL {
            let _ = manager.huge_pools().resize(manager.pages(), size, NodeSet::ALL, 0);
        }
        assert_eq!(manager.validate(), Ok(()));
    });
}

/// What a command line asks for: the default size, pages of 2 MiB, pages of 1 GiB, and what is ignored.
type Asked<'l> = (Option<HugeSize>, Option<WantedPages>, Option<WantedPages>, Vec<&'l str>);

fn asked(line: &str) -> Asked<'_> {
    let mut ignored = Vec::new();
    let options = HugeOptions::parse(line, 2, |option| {
        // The word itself, not a copy of it.
        ignored.push(line.find(option).map_or("", |at| &line[at..at + option.len()]));
    });
    let [large, gigantic] = options.wanted;
    (options.default_size, large, gigantic, ignored)
}

fn all(pages: u64) -> Option<WantedPages> {
    Some(WantedPages::All(pages))
}

fn on(first: u64, second: u64) -> Option<WantedPages> {
    let mut nodes = [0; 16];
    nodes[..2].copy_from_slice(&[first, second]);
    Some(WantedPages::OnNodes(nodes))
}

#[test]
fn a_command_line_asks_for_pages() {
    let nothing: Vec<&str> = Vec::new();
    for (line, default, large, gigantic) in [
        ("", None, None, None),
        ("quiet hugepagesx=5", None, None, None),
        ("hugepages=256", None, all(256), None),
        ("hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=2", None, all(512), all(2)),
        ("hugepagesz=1G hugepages=2 hugepagesz=2048k hugepages=7", None, all(7), all(2)),
        // The three ways to ask for pages of the default size.
        ("default_hugepagesz=2M hugepages=256", Some(Size2M), all(256), None),
        ("hugepages=256 default_hugepagesz=2M", Some(Size2M), all(256), None),
        ("hugepages=256 default_hugepagesz=1G", Some(Size1G), None, all(256)),
        ("default_hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=3", Some(Size1G), all(3), all(2)),
        ("default_hugepagesz=2M hugepagesz=2M hugepages=256", Some(Size2M), all(256), None),
        ("default_hugepagesz=0x40000000", Some(Size1G), None, None),
        ("hugepages=0:4,1:8", None, on(4, 8), None),
        ("hugepagesz=1G hugepages=1:1 hugepagesz=2M hugepages=0:3", None, on(3, 0), on(0, 1)),
    ] {
        assert_eq!(asked(line), (default, large, gigantic, nothing.clone()), "{line}");
    }
}

#[test]
fn what_contradicts_is_ignored() {
    for (line, default, large, gigantic, ignored) in [
        // No such size: the pages of it are not those of another.
        ("hugepagesz=4M hugepages=3", None, None, None, &["hugepagesz=4M", "hugepages=3"][..]),
        ("hugepagesz=x hugepages=3 hugepages=4", None, all(4), None, &["hugepagesz=x", "hugepages=3"]),
        ("hugepages=1 hugepages=2", None, all(1), None, &["hugepages=2"]),
        ("hugepagesz=1G hugepages=1 hugepages=2", None, None, all(1), &["hugepages=2"]),
        ("hugepages=256 hugepagesz=2M hugepages=512", None, all(256), None, &["hugepagesz=2M"]),
        (
            "default_hugepagesz=2M default_hugepagesz=1G hugepages=5",
            Some(Size2M),
            None,
            None,
            &["default_hugepagesz=1G", "hugepages=5"],
        ),
        (
            "default_hugepagesz=2M hugepages=256 hugepagesz=2M hugepages=512",
            Some(Size2M),
            all(256),
            None,
            &["hugepagesz=2M", "hugepages=512"],
        ),
        (
            "hugepagesz=2M hugepages=1 hugepagesz=2M hugepages=2",
            None,
            all(1),
            None,
            &["hugepagesz=2M", "hugepages=2"],
        ),
        ("hugepages=2:4", None, None, None, &["hugepages=2:4"]),
        ("hugepages=0:4,1", None, None, None, &["hugepages=0:4,1"]),
        ("hugepages=0:4;1:3", None, None, None, &["hugepages=0:4;1:3"]),
        ("hugepages=many", None, None, None, &["hugepages=many"]),
        ("hugepages=", None, None, None, &["hugepages="]),
        ("hugepages=99:1", None, None, None, &["hugepages=99:1"]),
    ] {
        assert_eq!(asked(line), (default, large, gigantic, ignored.to_vec()), "{line}");
    }
}

#[test]
fn pools_are_filled_before_anything_else() {
    with_manager(3 * GIB, |_, manager| {
        let options =
            HugeOptions::parse("hugepages=0:3,1:5 hugepagesz=1G hugepages=2", 2, |option| panic!("{option}"));
        let mut short = Vec::new();
        options.fill(manager, |shortage| short.push(shortage));
        assert_eq!(short, []);
        let on = |size| [0, 1].map(|node| manager.huge_pools().node_info(manager.pages(), size, node).total);
        assert_eq!((on(Size2M), on(Size1G)), ([3, 5], [1, 1]), "the large pages came first");
        assert_eq!(manager.huge_pools().default_size(), Size2M);
    });
    with_manager(64 * MIB, |_, manager| {
        let options =
            HugeOptions::parse("default_hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=1:90", 2, |_| {});
        let mut short = Vec::new();
        options.fill(manager, |shortage| short.push(shortage));
        let got = manager.huge_pools().info(manager.pages(), Size2M).total;
        assert!((20..=32).contains(&got), "{got} pages of 64 MiB");
        let shortage = |size, wanted, got| Shortage { size, wanted, got };
        assert_eq!(short, [shortage(Size1G, 2, 0), shortage(Size2M, 90, got)]);
        assert_eq!(manager.huge_pools().default_size(), Size1G);
        assert_eq!(manager.huge_lines().next(), Some(("HugePages_Total", 0)), "those of the default size");
    });
}

/// Memory in pieces is moved together for a pool that is written to.
#[test]
fn a_write_moves_memory_out_of_the_way() {
    with_manager(32 * MIB, |_, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        let len = 56 * MIB;
        let prot = Protection::READ.union(Protection::WRITE);
        let start = mm.mmap(&MapRequest { len, prot, ..MapRequest::default() }).unwrap();
        let pages = (0..len).step_by(4096).map(|at| VirtAddr(start.0 + at));
        for at in pages.clone() {
            if mm.fault(at, Access::Write).is_err() {
                break;
            }
        }
        // Every other page goes, so that no block is free.
        for at in pages.step_by(2) {
            mm.munmap(at, 4096).unwrap();
        }
        manager.pages().lists().drain_all();
        let path = "node0/hugepages-2048kB/nr_hugepages";
        let Ok(Outcome::Resized(alone)) =
            manager.huge_pools().write_file(manager.pages(), NodeSet::ALL, path, "6")
        else {
            panic!()
        };
        assert!(alone.after < 6 && alone.stopped == Some(Stopped::OutOfMemory), "{alone:?}");
        let Ok(Outcome::Resized(done)) = write_pool_file(manager, NodeSet::one(1), path, "6") else {
            panic!()
        };
        assert_eq!((done.after, done.stopped), (6, None));
        assert_eq!(manager.huge_pools().node_info(manager.pages(), Size2M, 0).total, 6);
        mm.switch_out();
        mm.exit();
    });
}

fn read(manager: &MemoryManager<'_, Hosted>, group: HugeGroup, name: &str) -> String {
    let file = GroupFile::all().find(|file| file.to_string() == name).expect(name);
    let mut text = String::new();
    file.read(&mut text, manager, group).unwrap();
    text
}

fn write(
    manager: &MemoryManager<'_, Hosted>,
    group: HugeGroup,
    name: &str,
    text: &str,
) -> Result<(), ControlError> {
    GroupFile::all().find(|file| file.to_string() == name).expect(name).write(manager, group, text)
}

/// The names, and the texts of a group that was just made.
#[test]
fn a_group_has_the_files_of_linux() {
    with_manager(32 * MIB, |_, manager| {
        let group = manager.huge_pools().make_group(manager.pages(), HugeGroup::NONE).unwrap();
        let texts = [
            ("current", "0\n"),
            ("events", "max 0\n"),
            ("events.local", "max 0\n"),
            ("max", "max\n"),
            ("numa_stat", "total=0 N0=0 N1=0\n"),
            ("rsvd.current", "0\n"),
            ("rsvd.max", "max\n"),
        ];
        let names = |size: &'static str| texts.map(|(name, text)| (format!("hugetlb.{size}.{name}"), text));
        let expected: Vec<_> = names("2MB").into_iter().chain(names("1GB")).collect();
        let shown: Vec<_> = GroupFile::all().map(|file| file.to_string()).collect();
        assert_eq!(shown, expected.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
        for (name, text) in &expected {
            assert_eq!(&read(manager, group, name), text, "{name}");
        }
        for file in GroupFile::all().filter(|file| !file.is_writable()) {
            assert_eq!(file.write(manager, group, "1"), Err(ControlError::NotPermitted), "{file}");
        }
    });
}

/// Texts and answers were tried on Linux 6.18.
#[test]
fn limits_are_written_in_bytes() {
    with_manager(32 * MIB, |_, manager| {
        let group = manager.huge_pools().make_group(manager.pages(), HugeGroup::NONE).unwrap();
        for (text, shown) in [
            ("2097152", "2097152\n"),
            ("2097152", "2097152\n"),
            ("4M", "4194304\n"),
            ("5M\n", "4194304\n"),
            ("0", "0\n"),
            ("1", "0\n"),
            (" 4M ", "4194304\n"),
            ("1G", "1073741824\n"),
            ("0x400000", "4194304\n"),
            ("18446744073709551615", "max\n"),
            ("9223372036854775807", "max\n"),
            ("0x7fffffffffe00000", "max\n"),
            ("9223372036850581504", "9223372036850581504\n"),
            ("max\n", "max\n"),
        ] {
            write(manager, group, "hugetlb.2MB.max", text)
                .unwrap_or_else(|error| panic!("{text:?}: {error:?}"));
            assert_eq!(read(manager, group, "hugetlb.2MB.max"), shown, "{text:?}");
        }
        write(manager, group, "hugetlb.1GB.rsvd.max", "3000M").unwrap();
        assert_eq!(read(manager, group, "hugetlb.1GB.rsvd.max"), "2147483648\n");
        assert_eq!(read(manager, group, "hugetlb.1GB.max"), "max\n");
        for text in ["-1", "x", "", "2097152x", "4 M", "maximum"] {
            let wrote = write(manager, group, "hugetlb.2MB.max", text);
            assert_eq!(wrote, Err(ControlError::NotANumber), "{text:?}");
        }
    });
}

/// More groups than have memory from the start. The events are those that Linux 6.18 showed for the same calls.
#[test]
fn a_hundred_groups_show_their_charges() {
    with_manager(32 * MIB, |_, manager| {
        let pools = manager.huge_pools();
        let make = |parent| pools.make_group(manager.pages(), parent).unwrap();
        let outer = make(HugeGroup::NONE);
        let groups: Vec<_> = (0..100).map(|_| make(outer)).collect();
        for (at, &group) in groups.iter().enumerate() {
            let limit = format!("{}M", 2 * (at + 1));
            write(manager, group, "hugetlb.2MB.rsvd.max", &limit).unwrap();
            pools.charge(group, Size2M, Charge::Reservation, at as u64 + 1).unwrap();
            pools.charge(group, Size2M, Charge::Reservation, 1).unwrap_err();
        }
        for (at, &group) in groups.iter().enumerate() {
            let bytes = 2 * MIB * (at as u64 + 1);
            assert_eq!(read(manager, group, "hugetlb.2MB.rsvd.current"), format!("{bytes}\n"));
            assert_eq!(read(manager, group, "hugetlb.2MB.rsvd.max"), format!("{bytes}\n"));
            assert_eq!(read(manager, group, "hugetlb.2MB.events"), "max 1\n");
            assert_eq!(read(manager, group, "hugetlb.2MB.events.local"), "max 1\n");
        }
        assert_eq!(read(manager, outer, "hugetlb.2MB.rsvd.current"), format!("{}\n", 5050 * 2 * MIB));
        assert_eq!(read(manager, outer, "hugetlb.2MB.events"), "max 100\n");
        assert_eq!(read(manager, outer, "hugetlb.2MB.events.local"), "max 0\n");
        assert_eq!(read(manager, outer, "hugetlb.2MB.current"), "0\n");
        for (at, &group) in groups.iter().enumerate() {
            pools.uncharge(group, Size2M, Charge::Reservation, at as u64 + 1);
            pools.remove_group(group);
        }
        assert_eq!(read(manager, outer, "hugetlb.2MB.rsvd.current"), "0\n");
    });
}

/// Pages in use, by node.
#[test]
fn a_group_shows_where_its_pages_are() {
    with_manager(32 * MIB, |_, manager| {
        let pools = manager.huge_pools();
        let group = pools.make_group(manager.pages(), HugeGroup::NONE).unwrap();
        assert_eq!(pools.resize_node(manager.pages(), Size2M, 1, 2).after, 2);
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        mm.set_huge_group(group);
        let prot = Protection::READ.union(Protection::WRITE);
        let at =
            mm.mmap(&MapRequest { len: 4 * MIB, prot, huge: Some(Size2M), ..MapRequest::default() }).unwrap();
        assert_eq!(read(manager, group, "hugetlb.2MB.numa_stat"), "total=0 N0=0 N1=0\n");
        mm.fault(at, Access::Write).unwrap();
        assert_eq!(read(manager, group, "hugetlb.2MB.numa_stat"), "total=2097152 N0=0 N1=2097152\n");
        assert_eq!(read(manager, group, "hugetlb.2MB.current"), "2097152\n");
        assert_eq!(read(manager, group, "hugetlb.2MB.rsvd.current"), "4194304\n");
        mm.switch_out();
        mm.exit();
        assert_eq!(read(manager, group, "hugetlb.2MB.numa_stat"), "total=0 N0=0 N1=0\n");
    });
}

/// Any numbers may stand on a command line and in a limit.
#[test]
fn numbers_that_are_too_large_are_the_largest() {
    with_manager(32 * MIB, |_, manager| {
        let options = HugeOptions { wanted: [on(u64::MAX, 2), None], ..HugeOptions::default() };
        let mut shortages = Vec::new();
        options.fill(manager, |shortage| shortages.push(shortage));
        let got = manager.huge_pools().info(manager.pages(), Size2M).total;
        assert_eq!(shortages, [Shortage { size: Size2M, wanted: u64::MAX, got }]);
        let pools = manager.huge_pools();
        let group = pools.make_group(manager.pages(), HugeGroup::NONE).unwrap();
        pools.set_group_max(group, Size2M, Charge::Usage, u64::MAX - 1);
        assert_eq!(read(manager, group, "hugetlb.2MB.max"), format!("{}\n", u64::MAX));
        pools.charge(group, Size2M, Charge::Reservation, 1 << 62).unwrap();
        assert_eq!(read(manager, group, "hugetlb.2MB.rsvd.current"), format!("{}\n", u64::MAX));
        pools.uncharge(group, Size2M, Charge::Reservation, 1 << 62);
    });
}
