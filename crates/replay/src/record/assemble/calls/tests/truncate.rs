//! Calls that take pages from files.

use super::{PID, Told};
use crate::record::raw::{Mapping, RawKind};
use crate::trace::{Call, Event, EventKind};

const FILE: (u64, u64) = (1, 77);

/// A program that has mapped [`FILE`].
fn with_file() -> Told {
    let mut told = Told::started();
    told.enter(PID, Call::Mmap, &[0, 4096, 3, 1, 5]);
    let name = "/memfd:memory (deleted)".to_owned();
    let (device, inode) = FILE;
    told.push(
        PID,
        RawKind::Mapping(Mapping {
            start: 0x1000,
            len: 4096,
            offset: 0,
            device,
            inode,
            prot: 3,
            flags: 1,
            name,
        }),
    );
    told.leave(PID, Call::Mmap, 0x1000);
    told
}

/// The calls that cut, with the file's inode, and the time.
fn cuts(told: Told) -> Vec<(Call, u64, u64)> {
    let of = |event: Event| match event.kind {
        EventKind::Syscall(call) if call.call.cuts_file() => {
            Some((call.call, call.file.map_or(0, |file| file.inode), event.time_ns))
        }
        _ => None,
    };
    told.trace().into_iter().filter_map(of).collect()
}

#[test]
fn a_call_that_takes_pages_stands_where_the_first_one_goes() {
    let (device, inode) = FILE;
    let mut told = with_file();
    told.enter(PID, Call::Ftruncate, &[5, 0]);
    let first = told.raws.len() as u64;
    told.push(PID, RawKind::Dropped { device, inode });
    told.push(PID, RawKind::Dropped { device, inode });
    told.leave(PID, Call::Ftruncate, 0);
    assert_eq!(cuts(told), [(Call::Ftruncate, inode, first)]);
}

#[test]
fn one_that_takes_none_or_those_of_a_file_that_was_never_mapped_has_no_event() {
    let (device, inode) = FILE;
    let mut told = with_file();
    told.enter(PID, Call::Ftruncate, &[5, 1 << 20]);
    told.leave(PID, Call::Ftruncate, 0);
    told.enter(PID, Call::Fallocate, &[6, 3, 0, 4096]);
    told.push(PID, RawKind::Dropped { device, inode: inode + 1 });
    told.leave(PID, Call::Fallocate, 0);
    // The last mapping of a file takes its pages along.
    told.enter(PID, Call::Munmap, &[0x1000, 4096]);
    told.push(PID, RawKind::Dropped { device, inode });
    told.leave(PID, Call::Munmap, 0);
    assert_eq!(cuts(told), []);
}
