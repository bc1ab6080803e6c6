use raw_cpuid::CpuIdResult;

use super::*;

/// The processor whose CPUID has these leaves: leaf, sub-leaf, and EAX to EDX.
fn of(vendor: &str, leaves: &'static [(u32, u32, [u32; 4])]) -> Processor {
    let name: Vec<u32> = vendor
        .as_bytes()
        .chunks(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")))
        .collect();
    let read = move |leaf: u32, sub: u32| {
        let found = leaves.iter().find(|known| (known.0, known.1) == (leaf, sub)).map(|known| known.2);
        let [eax, ebx, ecx, edx] = match leaf {
            0 => [0x20, name[0], name[2], name[1]],
            0x8000_0000 => [0x8000_0021, 0, 0, 0],
            _ => found.unwrap_or_default(),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    };
    Processor::read(&read)
}

/// Sub-leaves as a hybrid processor gives them: loads and stores apart, and one that describes nothing.
#[test]
fn leaf_18_is_read() {
    let processor = of(
        "GenuineIntel",
        &[
            (0x18, 0, [6, 0, 0, 0]),
            // 4 KiB, 8 ways, 32 sets, instructions.
            (0x18, 1, [0, 0x0008_0001, 32, 0x22]),
            // 4 KiB, 2 MiB and more, 16 ways, one set, stores.
            (0x18, 2, [0, 0x0010_000f, 1, 0x125]),
            // 4 KiB, 6 ways, 16 sets, loads.
            (0x18, 3, [0, 0x0006_0001, 16, 0x24]),
            // 2 MiB, 4 ways, 8 sets, loads.
            (0x18, 4, [0, 0x0004_0006, 8, 0x24]),
            // 4 KiB and 2 MiB, 8 ways, 128 sets, unified, second level.
            (0x18, 6, [0, 0x0008_0007, 128, 0x43]),
        ],
    );
    let loads = |sizes, entries| Tlb { stores: false, ..Tlb::data(1, sizes, entries) };
    let wanted = [
        Tlb::fetches(1, SMALL, (256, 8)),
        Tlb { loads: false, ..Tlb::data(1, BOTH, (16, 16)) },
        loads(SMALL, (96, 6)),
        loads(LARGE, (32, 4)),
        Tlb::unified(2, BOTH, (1024, 8)),
    ];
    assert_eq!((processor.leaf, processor.coalesces, &processor.tlbs[..]), (Some(0x18), 1, &wanted[..]));
    let words = "96 and 1024 data entries for 4 KiB, 32 and 1024 for 2 MiB (CPUID leaf 0x18)";
    assert_eq!(processor.to_string(), words);
}

#[test]
fn leaf_2_is_read_where_leaf_18_is_empty() {
    // Skylake: 0x76, 0x63, 0x03, 0xb5, 0xc3, 0xff for the caches.
    let processor = of("GenuineIntel", &[(2, 0, [0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000])]);
    let mut tlbs = processor.tlbs;
    tlbs.sort_by_key(|tlb| (tlb.level, tlb.fetches, tlb.entries));
    let wanted = [
        Tlb::data(1, LARGE, (32, 4)),
        Tlb::data(1, SMALL, (64, 4)),
        Tlb::fetches(1, LARGE, (8, 8)),
        Tlb::fetches(1, SMALL, (64, 8)),
        Tlb::unified(2, BOTH, (1536, 6)),
    ];
    assert_eq!((processor.leaf, &tlbs[..]), (Some(2), &wanted[..]));
}

#[test]
fn amd_is_read() {
    let processor = of(
        "AuthenticAMD",
        &[
            (0x8000_0005, 0, [0xff40_ff40, 0xff40_ff40, 0, 0]),
            (0x8000_0006, 0, [0x6800_2200, 0x6800_4200, 0, 0]),
        ],
    );
    let wanted = [
        Tlb::fetches(1, BOTH, (64, 64)),
        Tlb::data(1, BOTH, (64, 64)),
        Tlb::fetches(2, SMALL, (512, 4)),
        Tlb::fetches(2, LARGE, (512, 2)),
        Tlb::data(2, BOTH, (2048, 8)),
    ];
    assert_eq!(
        (processor.leaf, processor.coalesces, &processor.tlbs[..]),
        (Some(0x8000_0005), 4, &wanted[..])
    );
}

/// Zen 5 counts the entries of its second level in 32, and a virtual machine may hide the bit that says so.
#[test]
fn a_second_level_may_be_counted_in_32() {
    const FIRST: (u32, u32, [u32; 4]) = (0x8000_0005, 0, [0xff60_ff40, 0xff60_ff40, 0, 0]);
    const SECOND: (u32, u32, [u32; 4]) = (0x8000_0006, 0, [0x4080_2040, 0x6080_4040, 0, 0]);
    let zen5 = of("AuthenticAMD", &[(1, 0, [0x00b0_0f21, 0, 0, 0]), FIRST, SECOND]);
    let zen3 = of("AuthenticAMD", &[(1, 0, [0x00a0_0f11, 0, 0, 0]), FIRST, SECOND]);
    let told = of("AuthenticAMD", &[FIRST, SECOND, (0x8000_0021, 0, [1 << 14, 0, 0, 0])]);
    let data = |processor: &Processor| {
        [Size::Small, Size::Large].map(|size| processor.entries(2, Access::Load, size))
    };
    assert_eq!([data(&zen5), data(&told), data(&zen3)], [[4096; 2], [4096; 2], [128; 2]]);
    assert_eq!(zen5.entries(2, Access::Fetch, Size::Small), 2048);
}

/// What a virtual machine with hidden leaves says: leaf 2 points to leaf 0x18, which is empty. And nonsense.
#[test]
fn hidden_or_wrong_leaves_are_assumed() {
    let hidden: &[(u32, u32, [u32; 4])] = &[(2, 0, [0x00fe_ff01, 0xf0, 0, 0])];
    let wrong: &[(u32, u32, [u32; 4])] = &[
        (0x18, 0, [2, 0, 0, 0]),
        (0x18, 1, [0, 0xffff_000f, u32::MAX, 0x23]),
        (0x18, 2, [0, 0x0000_000f, 0, 0x23]),
    ];
    for (vendor, leaves) in [("GenuineIntel", hidden), ("GenuineIntel", wrong), ("AuthenticAMD", &[])] {
        let processor = of(vendor, leaves);
        assert_eq!(processor, Processor::assumed(vendor));
        assert!(processor.to_string().ends_with("(assumed: CPUID hides them)"), "{processor}");
    }
}
