use super::*;

fn no_block(_: u64) -> Option<[u32; 6]> {
    panic!("its arguments are in registers")
}

fn i386_call(number: u64, args: [u64; 6]) -> Option<(Call, [u64; 6])> {
    Abi::I386.decode(number, args, no_block)
}

#[test]
fn arguments_of_i386_are_32_bits_and_offsets_of_mmap2_are_pages() {
    let args = [0xffff_ffff_f7f0_0000, 0x2000, 3, 2, u64::MAX, 5];
    let expected = [0xf7f0_0000, 0x2000, 3, 2, 0xffff_ffff, 5 << 12];
    assert_eq!(i386_call(192, args), Some((Call::Mmap, expected)));
    assert_eq!(i386_call(91, [0x1000, 0x2000, 7, 7, 7, 7]).map(|(call, _)| call), Some(Call::Munmap));
}

#[test]
fn the_old_mmap_reads_its_arguments_from_memory() {
    let block = |at| (at == 0xffff_d000).then_some([0, 0x3000, 3, 0x22, u32::MAX, 0]);
    let decoded = Abi::I386.decode(90, [0xffff_d000, 9, 9, 9, 9, 9], block);
    assert_eq!(decoded, Some((Call::Mmap, [0, 0x3000, 3, 0x22, 0xffff_ffff, 0])));
    assert_eq!(Abi::I386.decode(90, [0xffff_d000; 6], |_| None), None);
}

#[test]
fn shared_memory_through_ipc() {
    assert_eq!(
        i386_call(117, [21, 5, 0o10000, 0x8000, 0x5000, 0]),
        Some((Call::Shmat, [5, 0x5000, 0o10000, 0, 0, 0]))
    );
    assert_eq!(i386_call(117, [22, 0, 0, 0, 0x5000, 0]), Some((Call::Shmdt, [0x5000, 0, 0, 0, 0, 0])));
    assert_eq!(i386_call(117, [1, 0, 0, 0, 0, 0]), None);
}

#[test]
fn clone_of_i386_has_its_last_two_the_other_way_round() {
    assert_eq!(i386_call(120, [1, 2, 3, 4, 5, 6]), Some((Call::Clone, [1, 2, 3, 5, 4, 0])));
}

#[test]
fn numbers_of_64_bits_take_two_arguments_of_i386() {
    assert_eq!(i386_call(93, [3, 0x1000, 9, 9, 9, 9]), Some((Call::Ftruncate, [3, 0x1000, 9, 9, 9, 9])));
    assert_eq!(
        i386_call(194, [3, 0x1000, 2, 9, 9, 9]),
        Some((Call::Ftruncate, [3, 0x2_0000_1000, 0, 0, 0, 0]))
    );
    assert_eq!(
        i386_call(324, [3, 1, 0x1000, 2, 0x3000, 4]),
        Some((Call::Fallocate, [3, 1, 0x2_0000_1000, 0x4_0000_3000, 0, 0]))
    );
}

#[test]
fn a_number_means_one_call_in_each_way() {
    assert_eq!(Abi::Native.decode(11, [0; 6], no_block), Some((Call::Munmap, [0; 6])));
    assert_eq!(i386_call(11, [0; 6]), Some((Call::Execve, [0; 6])));
    assert_eq!(Abi::Native.decode(192, [0; 6], no_block), None);
    assert_eq!(Abi::Native.decode(0x4000_0000 | 9, [0; 6], no_block), Some((Call::Mmap, [0; 6])));
    assert_eq!(Abi::Native.decode(0x4000_0000 | 520, [0; 6], no_block), Some((Call::Execve, [0; 6])));
    assert_eq!(Abi::Native.decode(520, [0; 6], no_block), None);
}

#[test]
fn every_call_but_none_has_an_i386_number() {
    for call in Call::ALL {
        let known = I386.iter().any(|(_, of)| of == call);
        assert!(known, "{} has none", call.name());
    }
}
