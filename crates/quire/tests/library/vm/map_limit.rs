//! The limit on the number of mappings. Refusals were measured on Linux 6.18 with `vm.max_map_count` 65530.

use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::error::MmError;
use quire::limits::MAX_MAPPINGS;
use quire::vm::{MapRequest, Mm};

use crate::vm::world::{MIB, R, anonymous, run, small};

const BASE: u64 = 0x1000_0000;
const FULL: Result<VirtAddr, MmError> = Err(MmError::NoMemory);

/// Maps a page with no adjacent mapping.
fn island(mm: &Mm<'_, hosted::Hosted>, number: usize) -> Result<VirtAddr, MmError> {
    mm.mmap(&MapRequest { prot: R, ..anonymous(BASE + number as u64 * 0x2000, 0x1000) })
}

fn count(mm: &Mm<'_, hosted::Hosted>) -> usize {
    let mut count = 0;
    mm.vmas(|_| count += 1);
    count
}

#[test]
fn mappings_end_where_those_of_linux_do() {
    run_small(|mm| {
        for number in 0..=MAX_MAPPINGS {
            island(mm, number).unwrap();
        }
        assert_eq!((count(mm), island(mm, MAX_MAPPINGS + 1)), (MAX_MAPPINGS + 1, FULL));
    });
}

#[test]
fn a_limit_is_reached_exactly_by_each_verb() {
    run_small(|mm| {
        mm.set_mapping_limit(8);
        mm.set_brk_start(VirtAddr(MIB));
        for number in 1..=7 {
            island(mm, number).unwrap();
        }
        // Eight mappings with this one.
        let long = BASE + MIB;
        mm.mmap(&anonymous(long, 8 * 0x1000)).unwrap();
        let none = Err(MmError::NoMemory);
        assert_eq!(mm.mprotect(VirtAddr(long), 0x1000, Protection::READ), none, "a cut");
        assert_eq!(mm.munmap(VirtAddr(long + 0x1000), 0x1000), none, "a hole");
        assert_eq!(mm.munmap(VirtAddr(long), 0x1000), Ok(()), "an end is no cut");
        mm.munmap(VirtAddr(BASE + 0x2000), 0x1000).unwrap();
        assert_eq!(mm.mprotect(VirtAddr(long + 0x2000), 0x1000, Protection::READ), none, "two cuts");
        assert_eq!(mm.mprotect(VirtAddr(long + 0x1000), 0x1000, Protection::READ), Ok(()), "one");
        assert_eq!(mm.brk(VirtAddr(MIB + 0x1000)), VirtAddr(MIB + 0x1000), "a ninth");
        assert_eq!((count(mm), island(mm, 9)), (9, FULL));
        assert_eq!(mm.mprotect(VirtAddr(BASE + 0x4000), 0x1000, Protection::NONE), Ok(()), "no cut");
        assert_eq!(
            (mm.mlock(VirtAddr(MIB), 0x1000, false), mm.munlockall()),
            (Ok(()), Ok(())),
            "none either"
        );
        let child = mm.fork().unwrap();
        assert_eq!(island(&child, 9), FULL, "a child has its parent's limit");
        child.exit();
        mm.set_mapping_limit(9);
        island(mm, 9).unwrap();
    });
}

fn run_small(test: impl Fn(&Mm<'_, hosted::Hosted>)) {
    small(|_, manager| run(manager, |mm| test(mm)));
}
