//! The control files, by the paths and texts of Linux.

use quire::hugetlb::{ControlError, HugeSize::Size2M, Outcome, Stopped};
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
        assert_eq!(resized("node1/hugepages-2048kB/nr_hugepages", " 15 "), (15, None));
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
        ] {
            assert_eq!(read(world, path), Err(ControlError::NoSuchFile), "{path}");
            assert_eq!(write(world, path, "1"), Err(ControlError::NoSuchFile), "{path}");
        }
        for text in ["", "x", "-1", "1 2", "18446744073709551616"] {
            let wrote = write(world, "hugepages-2048kB/nr_hugepages", text);
            assert_eq!(wrote, Err(ControlError::NotANumber), "{text}");
        }
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
