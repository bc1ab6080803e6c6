//! Answers of a handler of faults: zeroes, copies, and pages that the file has.

use hosted::HostedConfig;
use quire::addr::VirtRange;
use quire::hugetlb::HugeSize;
use quire::limits::FRAME_SIZE;
use quire::page_alloc::NodeSet;
use quire::vm::{
    Advice, AnswerMode, Backing, FolioPolicy, MapRequest, Remap, Sharing, UserfaultChanges, UserfaultModes,
};

use super::support::{BASE, Case, Ground, MIB, PAGE, at, check, config, only, store_all};
use crate::hugetlb::world::{HUGE, private};
use crate::vm::world::{Manager, Space, anonymous, load, run};

const LEN: u64 = 2 * MIB;
const WAKE: AnswerMode = AnswerMode::WAKE;

fn with_handler(
    manager: &Manager<'_>,
    request: &MapRequest<'_>,
    modes: UserfaultModes,
    test: impl FnOnce(&Space<'_>),
) {
    run(manager, |mm| {
        mm.mmap(request).unwrap();
        let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
        mm.userfault_register(&handler, request.addr, request.len, modes).unwrap();
        test(mm);
        handler.close();
    });
}

fn fill(_: u64, bytes: &mut [u8; FRAME_SIZE as usize]) {
    bytes.fill(7);
}

fn zeroes(mm: &Space<'_>, from: u64, len: u64) {
    assert_eq!(mm.userfault_zeropage(at(from), len, WAKE).all(), Ok(len));
}

fn copies(mm: &Space<'_>, from: u64, len: u64) {
    assert_eq!(mm.userfault_copy(at(from), len, WAKE, fill).all(), Ok(len));
}

const MISSING: UserfaultModes = UserfaultModes::MISSING;

const CASES: [Case; 6] = [
    ("private zeroes that are stored to", 0, |machine, manager| {
        with_handler(manager, &anonymous(BASE, LEN), MISSING, |mm| {
            zeroes(mm, BASE, LEN);
            store_all(machine, mm, BASE, LEN);
        });
    }),
    ("private zeroes that are read", 0, |machine, manager| {
        with_handler(manager, &anonymous(BASE, LEN), MISSING, |mm| {
            zeroes(mm, BASE, LEN);
            (BASE..BASE + LEN).step_by(PAGE as usize).for_each(|at| assert_eq!(load(machine, mm, at), Ok(0)));
        });
    }),
    ("copies", 0, |_, manager| {
        with_handler(manager, &anonymous(BASE, LEN), MISSING, |mm| {
            copies(mm, BASE, LEN);
            mm.userfault_copy(at(BASE), LEN, WAKE, fill).all().unwrap_err();
            mm.madvise(at(BASE), LEN / 2, Advice::DontNeed).unwrap();
            copies(mm, BASE, LEN / 2);
        });
    }),
    ("zeroes of shared memory that are stored to", 0, |machine, manager| {
        let file = manager.shmem(LEN).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        let request = MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, LEN) };
        with_handler(manager, &request, MISSING, |mm| {
            zeroes(mm, BASE, LEN / 2);
            copies(mm, BASE + LEN / 2, LEN / 2);
            mm.userfault_zeropage(at(BASE), LEN, WAKE).all().unwrap_err();
            store_all(machine, mm, BASE, LEN);
            file.punch_hole(0..LEN / 2).unwrap();
            zeroes(mm, BASE, LEN / 2);
            store_all(machine, mm, BASE, LEN);
        });
        drop(file);
    }),
    ("pages that the file has", 0, |machine, manager| {
        let file = manager.shmem(LEN).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        let request = MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, LEN) };
        run(manager, |mm| {
            mm.mmap(&request).unwrap();
            store_all(machine, mm, BASE, LEN);
        });
        with_handler(manager, &request, UserfaultModes::MINOR, |mm| {
            assert_eq!(mm.userfault_continue(at(BASE), LEN, WAKE).all(), Ok(LEN));
            store_all(machine, mm, BASE, LEN);
        });
        drop(file);
    }),
    ("pages that move by mremap", 0, |machine, manager| {
        with_handler(manager, &anonymous(BASE, LEN), MISSING, |mm| {
            copies(mm, BASE, LEN);
            let to = Remap::Fixed(at(BASE + 64 * MIB));
            mm.mremap(at(BASE), LEN, LEN, to).unwrap();
            store_all(machine, mm, BASE + 64 * MIB, LEN);
            let mut frames = 0;
            mm.mapped(VirtRange::from_len(at(BASE + 64 * MIB), LEN), |found| frames += found.frames.count);
            assert_eq!(frames, LEN / PAGE);
        });
    }),
];

const HUGE_CASES: [Case; 3] = [
    ("pool: zeroes that are stored to", 1, |machine, manager| {
        pool(manager, 4);
        with_handler(manager, &private(BASE, 4), MISSING, |mm| {
            zeroes(mm, BASE, 4 * HUGE);
            store_all(machine, mm, BASE, 4 * HUGE);
        });
        pool(manager, 0);
    }),
    ("pool: copies", 1, |_, manager| {
        pool(manager, 4);
        with_handler(manager, &private(BASE, 4), MISSING, |mm| copies(mm, BASE, 4 * HUGE));
        pool(manager, 0);
    }),
    ("pool: zeroes and copies of a file", 1, |machine, manager| {
        pool(manager, 4);
        let file = manager.huge_file(HugeSize::Size2M, 4 * HUGE).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        let request = MapRequest { sharing: Sharing::Shared, backing, huge: None, ..private(BASE, 4) };
        with_handler(manager, &request, MISSING, |mm| {
            zeroes(mm, BASE, 2 * HUGE);
            copies(mm, BASE + 2 * HUGE, HUGE);
            mm.userfault_zeropage(at(BASE), HUGE, WAKE).all().unwrap_err();
            zeroes(mm, BASE + 3 * HUGE, HUGE);
            store_all(machine, mm, BASE, 4 * HUGE);
        });
        drop(file);
        pool(manager, 0);
    }),
];

fn pool(manager: &Manager<'_>, pages: u64) {
    assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, pages).after, pages);
}

#[test]
fn answers_of_a_handler() {
    for number in [0, 4] {
        check(Ground::Pieces, &HostedConfig::new(32 * MIB), &config(only(number)), &CASES);
    }
    check(Ground::Blocks, &HostedConfig::new(64 * MIB), &config(FolioPolicy::default()), &HUGE_CASES);
}
