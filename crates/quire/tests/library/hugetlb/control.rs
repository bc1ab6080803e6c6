//! The control files, by the paths and texts of Linux.

use quire::hugetlb::{ControlError, HugeSize::Size1G, HugeSize::Size2M, Outcome, Stopped};
use quire::page_alloc::NodeSet;

use crate::hugetlb::support::{BOTH, GIB, World, two_nodes, with_pools};

fn read(world: &World<'_, '_>, path: &str) -> Result<String, ControlError> {
    let mut text = String::new();
    world.pools.read_file(world.pages, path, &mut text).map(|()| text)
}

fn write(world: &World<'_, '_>, path: &str, text: &str) -> Result<Outcome, ControlError> {
    world.pools.write_file(world.pages, NodeSet::one(1), path, text)
}

#[test]
fn the_files_show_and_change_the_pools() {
    with_pools(two_nodes(3 * GIB), |world| {
        let shows = |path: &str, text: &str| assert_eq!(read(world, path).as_deref(), Ok(text), "{path}");
        let resized = |path, text| match write(world, path, text) {
            Ok(Outcome::Resized(done)) => (done.after, done.stopped),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(resized("hugepages-2048kB/nr_hugepages", "20\n"), (20, None));
        shows("hugepages-2048kB/nr_hugepages", "20\n");
        shows("/node0/hugepages-2048kB/nr_hugepages", "10\n");
        assert_eq!(resized("node1/hugepages-2048kB/nr_hugepages", "+15"), (15, None));
        shows("hugepages-2048kB/free_hugepages", "25\n");
        assert_eq!(resized("hugepages-2048kB/nr_hugepages_mempolicy", "30"), (30, None));
        shows("node1/hugepages-2048kB/free_hugepages", "20\n");
        assert_eq!(write(world, "hugepages-2048kB/nr_overcommit_hugepages", "7"), Ok(Outcome::Set));
        shows("hugepages-2048kB/nr_overcommit_hugepages", "7\n");
        world.pools.reserve(world.pages, Size2M, 32).unwrap();
        shows("hugepages-2048kB/resv_hugepages", "32\n");
        shows("hugepages-2048kB/surplus_hugepages", "2\n");
        world.pools.unreserve(world.pages, Size2M, 32);
        assert_eq!(resized("hugepages-2048kB/nr_hugepages", "0"), (0, None));
        assert_eq!(resized("hugepages-1048576kB/nr_hugepages", "2"), (2, None));
        shows("hugepages-1048576kB/demote_size", "2048kB\n");
        for text in ["2048kB\n", "2M", "2097152", "0x200000", "2mB\n"] {
            assert_eq!(
                write(world, "node1/hugepages-1048576kB/demote_size", text),
                Ok(Outcome::Set),
                "{text}"
            );
        }
        for text in ["1G", "x", "2048", "0", "18446744073709551616", "17592186044416M"] {
            let wrote = write(world, "hugepages-1048576kB/demote_size", text);
            assert_eq!(wrote, Err(ControlError::NotANumber), "{text}");
        }
        let changed = |path, text| match write(world, path, text) {
            Ok(Outcome::Demoted(done)) => (done.done, done.stopped),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(changed("node1/hugepages-1048576kB/demote", "2"), (1, Some(Stopped::OutOfMemory)));
        shows("node1/hugepages-2048kB/nr_hugepages", "512\n");
        shows("node0/hugepages-2048kB/nr_hugepages", "0\n");
        assert_eq!(changed("hugepages-1048576kB/promote", "1"), (1, None));
        shows("hugepages-1048576kB/nr_hugepages", "2\n");
        let _ = world.pools.resize(world.pages, Size2M, BOTH, 0);
    });
}

#[test]
fn mistakes_are_named() {
    with_pools(two_nodes(GIB), |world| {
        for path in [
            "",
            "hugepages-4kB/nr_hugepages",
            "hugepages-2048kB",
            "hugepages-2048kB/nr",
            "hugepages-2048kB/nr_hugepages/x",
            "hugepages-2048kB/demote",
            "node2/hugepages-2048kB/nr_hugepages",
            "node-1/hugepages-2048kB/nr_hugepages",
            "node0/hugepages-2048kB/resv_hugepages",
            "node0/hugepages-2048kB/nr_overcommit_hugepages",
            "hugepages-2048kB/demote_size",
            "vm",
            "vm/free_hugepages",
            "vm/nr_hugepages/x",
            "node0/vm/nr_hugepages",
        ] {
            assert_eq!(read(world, path), Err(ControlError::NoSuchFile), "{path}");
            assert_eq!(write(world, path, "1"), Err(ControlError::NoSuchFile), "{path}");
        }
        for text in ["", "x", "-1", "1 2", " 3 ", "0x3", "3x", "\n", "3\n\n", "5,6", "++5"] {
            let wrote = write(world, "hugepages-2048kB/nr_hugepages", text);
            assert_eq!(wrote, Err(ControlError::NotANumber), "{text:?}");
        }
        let wrote = write(world, "hugepages-2048kB/nr_hugepages", "18446744073709551616");
        assert_eq!(wrote, Err(ControlError::TooLarge));
        // The largest possible number asks for more pages than there are, also of a node.
        for path in ["hugepages-2048kB/nr_hugepages", "node1/hugepages-2048kB/nr_hugepages"] {
            let Ok(Outcome::Resized(done)) = write(world, path, "18446744073709551615") else {
                panic!("{path}")
            };
            assert_eq!(done.stopped, Some(Stopped::OutOfMemory), "{path}");
            let _ = write(world, path, "0").unwrap();
        }
        assert_eq!(read(world, "hugepages-1048576kB/demote"), Err(ControlError::NotPermitted));
        assert_eq!(write(world, "hugepages-2048kB/free_hugepages", "1"), Err(ControlError::NotPermitted));
        struct Full;
        impl std::fmt::Write for Full {
            fn write_str(&mut self, _: &str) -> std::fmt::Result {
                Err(std::fmt::Error)
            }
        }
        let room = world.pools.read_file(world.pages, "hugepages-2048kB/nr_hugepages", &mut Full);
        assert_eq!(room, Err(ControlError::NoRoom));
    });
}

/// What stands in `/proc/sys/vm`. The texts, and what is refused, were tried on Linux 6.18.
#[test]
fn the_settings_of_the_default_size_are_sysctls() {
    with_pools(two_nodes(3 * GIB), |world| {
        let shows = |path: &str, text: &str| assert_eq!(read(world, path).as_deref(), Ok(text), "{path}");
        let sets = |path: &str, text: &str, shown: &str| {
            let _ = write(world, path, text).unwrap_or_else(|error| panic!("{path} {text:?}: {error:?}"));
            shows(path, shown);
        };
        for (text, shown) in [("2", "2\n"), (" 3 ", "3\n"), ("0x3", "3\n"), ("010", "8\n"), ("3 4", "3\n")] {
            sets("vm/nr_hugepages", text, shown);
        }
        shows("hugepages-2048kB/nr_hugepages", "3\n");
        // The value that is already there.
        sets("vm/nr_hugepages", "3\n\n", "3\n");
        sets("vm/nr_hugepages_mempolicy", "3", "3\n");
        sets("vm/nr_overcommit_hugepages", "0", "0\n");
        sets("vm/nr_overcommit_hugepages", "7\t", "7\n");
        shows("hugepages-2048kB/nr_overcommit_hugepages", "7\n");
        for (text, shown) in
            [("5", 5), ("-1", -1), ("2147483647", i32::MAX), ("-2147483648", i32::MIN), ("0x10", 16)]
        {
            sets("vm/hugetlb_shm_group", text, &format!("{shown}\n"));
            assert_eq!(world.pools.shm_group(), shown);
        }
        sets("vm/hugetlb_optimize_vmemmap", "1", "1\n");
        sets("vm/hugetlb_optimize_vmemmap", "2 ", "1\n");
        for (path, text) in [
            ("nr_hugepages", "-1"),
            ("nr_hugepages", "3x"),
            ("nr_hugepages", "+4"),
            ("nr_hugepages", "5,6"),
            ("nr_hugepages", "\n"),
            ("nr_hugepages", "18446744073709551616"),
            ("hugetlb_shm_group", "2147483648"),
            ("hugetlb_shm_group", "-2147483649"),
            ("hugetlb_shm_group", "x"),
            ("hugetlb_optimize_vmemmap", "on"),
        ] {
            let wrote = write(world, &format!("vm/{path}"), text);
            assert_eq!(wrote, Err(ControlError::NotANumber), "{path} {text:?}");
        }
        assert_eq!(write(world, "vm/hugetlb_optimize_vmemmap", "0"), Err(ControlError::NotPermitted));
        shows("vm/nr_hugepages", "3\n");
        sets("vm/nr_hugepages", "0", "0\n");
        // They are about another size once that is the default.
        world.pools.set_default_size(Size1G);
        let pool = |path| world.pools.file_pool(world.pages, NodeSet::one(1), path);
        assert_eq!(pool("vm/nr_hugepages"), Some((Size1G, BOTH)));
        assert_eq!(pool("vm/nr_hugepages_mempolicy"), Some((Size1G, NodeSet::one(1))));
        assert_eq!(pool("node0/hugepages-2048kB/nr_hugepages"), Some((Size2M, NodeSet::one(0))));
        sets("vm/nr_hugepages", "1", "1\n");
        shows("hugepages-1048576kB/nr_hugepages", "1\n");
        sets("vm/nr_hugepages_mempolicy", "2", "2\n");
        shows("node1/hugepages-1048576kB/nr_hugepages", "1\n");
    });
}
