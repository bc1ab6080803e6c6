use super::*;
use crate::trace::PathId;

fn call(call: Call, args: [u64; 6], result: i64) -> Syscall {
    Syscall { call, args, result, enter_ns: 0, duration_ns: 1, file: None, unordered: false }
}

fn planned(which: Call, args: [u64; 6], result: i64) -> Plan {
    plan(&call(which, args, result), |_| 9)
}

#[test]
fn what_was_mapped_goes_to_the_same_place() {
    let file = FileId { device: 1, inode: 2, path: PathId(0) };
    let recorded =
        Syscall { file: Some(file), ..call(Call::Mmap, [0, 0x1234, 5, 2, 3, 0x3000], 0x7f00_0000) };
    let Plan::Do(Verb::Mmap(mapping), answer) = plan(&recorded, |_| 9) else { panic!("a mapping") };
    assert_eq!(answer, Answer::At(0x7f00_0000));
    assert_eq!((mapping.addr, mapping.len, mapping.file), (0x7f00_0000, 0x2000, Some((9, 3))));
    assert_eq!((mapping.placement, mapping.shared, mapping.prot.bits()), (Placement::Fixed, false, 5));
    let shared_zeroes = call(Call::Mmap, [0, 0x1000, 3, 0x21, u64::MAX, 0], 0x5000_0000);
    let recorded = Syscall { file: Some(file), ..shared_zeroes };
    let Plan::Do(Verb::Mmap(mapping), _) = plan(&recorded, |_| 9) else { panic!("a mapping") };
    assert_eq!((mapping.file, mapping.shared), (None, true));
}

#[test]
fn a_move_goes_where_it_went() {
    let to = |flags, result| match planned(Call::Mremap, [0x1000, 0x1000, 0x2000, flags, 0, 0], result) {
        Plan::Do(Verb::Mremap { to, .. }, _) => to,
        other => panic!("{other:?}"),
    };
    assert_eq!(to(1, 0x1000), Remap::InPlace);
    assert_eq!(to(1, 0x9000), Remap::Fixed(VirtAddr(0x9000)));
    assert_eq!(to(5, 0x9000), Remap::FixedDontUnmap(VirtAddr(0x9000)));
}

#[test]
fn only_failures_that_the_arguments_tell_are_repeated() {
    let fails = |which, args, result| match planned(which, args, result) {
        Plan::Do(_, answer) => {
            assert_eq!(answer, Answer::Failure);
            true
        }
        Plan::Skip | Plan::FailedLock(_) => false,
        other => panic!("{other:?}"),
    };
    assert!(fails(Call::Munmap, [1, 0x1000, 0, 0, 0, 0], EINVAL));
    assert!(fails(Call::Mprotect, [0x1000, 0x9000, 1, 0, 0, 0], ENOMEM));
    assert!(fails(Call::Mmap, [0x1000, 0x1000, 3, 0x10_0022, 0, 0], EEXIST));
    assert!(!fails(Call::Mmap, [0x1000, 0x1000, 3, 0x22, 0, 0], ENOMEM), "perhaps a limit");
    assert!(!fails(Call::Mprotect, [0x1000, 0x1000, 3, 0, 0, 0], -13), "perhaps the file's mode");
    assert!(!fails(Call::Mlock, [0x1000, 0x1000, 0, 0, 0, 0], ENOMEM), "perhaps a limit");
    let lock = Verb::Mlock { addr: 0x1000, len: 0x1000, on_fault: true };
    assert_eq!(planned(Call::Mlock2, [0x1000, 0x1000, 1, 0, 0, 0], ENOMEM), Plan::FailedLock(lock));
    assert!(fails(Call::Madvise, [0x1000, 0x9000, 14, 0, 0, 0], ENOMEM));
    assert!(fails(Call::Mremap, [0x1000, 0x1000, 0x2000, 0, 0, 0], ENOMEM));
    assert!(!fails(Call::Mremap, [0x1000, 0x1000, 0x2000, 1, 0, 0], ENOMEM));
    assert_eq!(planned(Call::Madvise, [0, 0x1000, 10, 0, 0, 0], 0), Plan::Skip, "MADV_DONTFORK");
    let removed = Verb::Madvise { addr: 0x1000, len: 0x1000, advice: quire::vm::Advice::DontNeed };
    assert_eq!(planned(Call::Madvise, [0x1000, 0x1000, 9, 0, 0, 0], 0), Plan::Do(removed, Answer::Done));
    assert_eq!(planned(Call::Madvise, [0x1000, 0x1000, 9, 0, 0, 0], EINVAL), Plan::Skip, "private memory");
    assert_eq!(planned(Call::Clone, [0; 6], 77), Plan::Told);
}

#[test]
fn a_file_loses_whole_pages() {
    let cut = |which, args, result| super::cut(&call(which, args, result));
    assert_eq!(cut(Call::Ftruncate, [3, 0x1001, 0, 0, 0, 0], 0), Some((2, u64::MAX / PAGE)));
    assert_eq!(cut(Call::Ftruncate, [3, 0, 0, 0, 0, 0], EINVAL), None);
    assert_eq!(cut(Call::Fallocate, [3, 3, 0x1001, 0x2fff, 0, 0], 0), Some((2, 4)));
    assert_eq!(cut(Call::Fallocate, [3, 3, 0x1001, 0x1000, 0, 0], 0), None, "parts of two pages");
    assert_eq!(cut(Call::Fallocate, [3, 0, 0, 0x9000, 0, 0], 0), None, "it allocates");
}
