//! The TLBs of a processor, as CPUID describes them. Virtual machines hide that; the TLBs of a usual processor are assumed then.

use std::fmt;

use raw_cpuid::{Associativity, CpuId, CpuIdReader, CpuIdReaderNative, DatInfo, DatType};
use serde::Serialize;

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Fetch,
    Load,
    Store,
}

/// The size of what one entry translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// 4 KiB.
    Small,
    /// As many pages of 4 KiB as the processor coalesces.
    Group,
    /// 2 MiB.
    Large,
}

/// One TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Tlb {
    /// 1 for the first that is asked.
    pub(crate) level: u8,
    pub(crate) fetches: bool,
    pub(crate) loads: bool,
    pub(crate) stores: bool,
    /// Whether it has entries for 4 KiB, and for 2 MiB.
    pub(crate) small: bool,
    pub(crate) large: bool,
    pub(crate) entries: u32,
    pub(crate) ways: u32,
}

/// All TLBs of a processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Processor {
    /// The leaf of CPUID that describes them; `None` if they are assumed.
    pub(crate) leaf: Option<u32>,
    pub(crate) tlbs: Vec<Tlb>,
    /// Pages of 4 KiB, side by side in memory and in addresses, that take one entry; 1 for a processor that coalesces none.
    pub(crate) coalesces: u64,
}

/// What a TLB serves, in words that are made of it.
const BOTH: [bool; 2] = [true, true];
const SMALL: [bool; 2] = [true, false];
const LARGE: [bool; 2] = [false, true];

impl Tlb {
    const fn fetches(level: u8, [small, large]: [bool; 2], (entries, ways): (u32, u32)) -> Self {
        Self { level, fetches: true, loads: false, stores: false, small, large, entries, ways }
    }

    const fn data(level: u8, [small, large]: [bool; 2], (entries, ways): (u32, u32)) -> Self {
        Self { level, fetches: false, loads: true, stores: true, small, large, entries, ways }
    }

    const fn unified(level: u8, sizes: [bool; 2], entries: (u32, u32)) -> Self {
        Self { fetches: true, ..Self::data(level, sizes, entries) }
    }

    /// Whether it may hold the translation of this access.
    pub(crate) const fn serves(&self, access: Access, size: Size) -> bool {
        let kind = match access {
            Access::Fetch => self.fetches,
            Access::Load => self.loads,
            Access::Store => self.stores,
        };
        kind && match size {
            Size::Large => self.large,
            Size::Small | Size::Group => self.small,
        }
    }
}

impl Processor {
    /// That of this machine.
    pub(crate) fn of_this_machine() -> Self {
        Self::read(&CpuIdReaderNative)
    }

    /// That of a CPUID.
    fn read<R: CpuIdReader>(reader: &R) -> Self {
        let cpuid = &CpuId::with_cpuid_reader(reader.clone());
        let vendor = cpuid.get_vendor_info();
        let vendor = vendor.as_ref().map_or("", |vendor| vendor.as_str());
        let amd = is_amd(vendor);
        let described: &[(u32, Vec<Tlb>)] = &match amd {
            true => [(0x8000_0005, amd_leaves(cpuid, amd_unit(reader))), (0, Vec::new())],
            false => [(0x18, leaf_18(cpuid)), (2, leaf_2(reader))],
        };
        let usable = described.iter().find(|(_, tlbs)| {
            [(Access::Fetch, Size::Small), (Access::Load, Size::Small), (Access::Store, Size::Large)]
                .into_iter()
                .all(|(access, size)| tlbs.iter().any(|tlb| tlb.level == 1 && tlb.serves(access, size)))
        });
        let assumed = Self::assumed(vendor);
        match usable {
            Some((leaf, tlbs)) => Self { leaf: Some(*leaf), tlbs: tlbs.clone(), ..assumed },
            None => assumed,
        }
    }

    /// Entries of the first TLB of a level that serves such an access; 0 if none does.
    pub(crate) fn entries(&self, level: u8, access: Access, size: Size) -> u32 {
        let serving = self.tlbs.iter().find(|tlb| tlb.level == level && tlb.serves(access, size));
        serving.map_or(0, |tlb| tlb.entries)
    }

    /// A usual processor of a vendor: AMD's Zen 3, or Intel's Golden Cove (Sapphire Rapids).
    pub(crate) fn assumed(vendor: &str) -> Self {
        let amd = is_amd(vendor);
        let tlbs = if amd {
            vec![
                Tlb::fetches(1, BOTH, (64, 64)),
                Tlb::data(1, BOTH, (64, 64)),
                Tlb::fetches(2, BOTH, (512, 8)),
                Tlb::data(2, BOTH, (2048, 8)),
            ]
        } else {
            vec![
                Tlb::fetches(1, SMALL, (256, 8)),
                Tlb::fetches(1, LARGE, (32, 8)),
                Tlb { stores: false, ..Tlb::data(1, SMALL, (96, 6)) },
                Tlb { stores: false, ..Tlb::data(1, LARGE, (32, 4)) },
                Tlb { loads: false, ..Tlb::data(1, BOTH, (16, 16)) },
                Tlb::unified(2, BOTH, (2048, 16)),
            ]
        };
        // Zen puts four neighbours into one entry; CPUID does not say so.
        Self { leaf: None, tlbs, coalesces: if amd { 4 } else { 1 } }
    }
}

fn is_amd(vendor: &str) -> bool {
    ["AuthenticAMD", "HygonGenuine"].contains(&vendor)
}

/// Intel's description of each TLB.
fn leaf_18<R: CpuIdReader>(cpuid: &CpuId<R>) -> Vec<Tlb> {
    let tlb = |info: DatInfo| {
        let (fetches, loads, stores) = match info.cache_type() {
            DatType::InstructionTLB => (true, false, false),
            DatType::DataTLB => (false, true, true),
            DatType::UnifiedTLB => (true, true, true),
            DatType::LoadOnly => (false, true, false),
            DatType::StoreOnly => (false, false, true),
            _ => return None,
        };
        let (small, large) = (info.has_4k_entries(), info.has_2mb_entries());
        let ways = u32::from(info.ways());
        let entries = ways.checked_mul(info.sets())?;
        let level = info.cache_level();
        let tlb = Tlb { level, fetches, loads, stores, small, large, entries, ways };
        is_real(&tlb).then_some(tlb)
    };
    cpuid.get_deterministic_address_translation_info().into_iter().flatten().filter_map(tlb).collect()
}

/// Intel's older way: a byte for each TLB. These are the bytes of Nehalem to Skylake.
fn leaf_2(reader: &impl CpuIdReader) -> Vec<Tlb> {
    let tlb = |number: u8| {
        Some(match number {
            0x03 => Tlb::data(1, SMALL, (64, 4)),
            0x55 => Tlb::fetches(1, LARGE, (7, 7)),
            0x5a | 0x63 => Tlb::data(1, LARGE, (32, 4)),
            0x76 => Tlb::fetches(1, LARGE, (8, 8)),
            0xb2 => Tlb::fetches(1, SMALL, (64, 4)),
            0xb5 => Tlb::fetches(1, SMALL, (64, 8)),
            0xb6 => Tlb::fetches(1, SMALL, (128, 8)),
            0xc1 => Tlb::unified(2, BOTH, (1024, 8)),
            0xc3 => Tlb::unified(2, BOTH, (1536, 6)),
            0xca => Tlb::unified(2, SMALL, (512, 4)),
            _ => return None,
        })
    };
    let found = reader.cpuid1(2);
    // The lowest byte counts calls, and a register with the highest bit has no bytes.
    let registers = [found.eax & !0xff, found.ebx, found.ecx, found.edx].into_iter();
    registers.filter(|register| register >> 31 == 0).flat_map(u32::to_le_bytes).filter_map(tlb).collect()
}

/// How many entries AMD's second level has for one that is counted. Fields of 12 bits are too small for Zen 5 (family 0x1a), which
/// counts in 32. A bit of leaf 0x8000_0021 says so, which virtual machines may hide without changing the numbers.
fn amd_unit(reader: &impl CpuIdReader) -> u32 {
    const LEAF: u32 = 0x8000_0021;
    let version = reader.cpuid1(1).eax;
    let (family, extended) = (version >> 8 & 0xf, version >> 20 & 0xff);
    let says_so = reader.cpuid1(0x8000_0000).eax >= LEAF && reader.cpuid1(LEAF).eax >> 14 & 1 == 1;
    if says_so || family == 0xf && family + extended >= 0x1a { 32 } else { 1 }
}

/// AMD's leaves 0x8000_0005 and 0x8000_0006. They give numbers for each page size; where both are the same, the entries are.
fn amd_leaves<R: CpuIdReader>(cpuid: &CpuId<R>, unit: u32) -> Vec<Tlb> {
    type Make = fn(u8, [bool; 2], (u32, u32)) -> Tlb;
    let mut tlbs = Vec::new();
    let mut put = |level: u8, make: Make, small: (u32, u32), large: (u32, u32)| match small == large {
        true => tlbs.push(make(level, BOTH, small)),
        false => tlbs.extend([make(level, SMALL, small), make(level, LARGE, large)]),
    };
    let of = |entries: u16, ways: Associativity| {
        let entries = u32::from(entries);
        let ways = match ways {
            Associativity::DirectMapped => 1,
            Associativity::NWay(ways) => u32::from(ways),
            Associativity::FullyAssociative => entries,
            // The second level of Zen has these.
            Associativity::Unknown => 8,
            Associativity::Disabled => 0,
        };
        (entries, ways)
    };
    if let Some(info) = cpuid.get_l1_cache_and_tlb_info() {
        let small = of(info.itlb_4k_size().into(), info.itlb_4k_associativity());
        let large = of(info.itlb_2m_4m_size().into(), info.itlb_2m_4m_associativity());
        put(1, Tlb::fetches, small, large);
        let small = of(info.dtlb_4k_size().into(), info.dtlb_4k_associativity());
        let large = of(info.dtlb_2m_4m_size().into(), info.dtlb_2m_4m_associativity());
        put(1, Tlb::data, small, large);
    }
    let second = |entries: u16, ways: Associativity| {
        let (entries, ways) = of(entries, ways);
        (entries * unit, if ways == entries { ways * unit } else { ways })
    };
    if let Some(info) = cpuid.get_l2_l3_cache_and_tlb_info() {
        let small = second(info.itlb_4k_size(), info.itlb_4k_associativity());
        let large = second(info.itlb_2m_4m_size(), info.itlb_2m_4m_associativity());
        put(2, Tlb::fetches, small, large);
        let small = second(info.dtlb_4k_size(), info.dtlb_4k_associativity());
        let large = second(info.dtlb_2m_4m_size(), info.dtlb_2m_4m_associativity());
        put(2, Tlb::data, small, large);
    }
    tlbs.retain(is_real);
    tlbs
}

/// Whether a description makes sense.
fn is_real(tlb: &Tlb) -> bool {
    (tlb.small || tlb.large)
        && (1..=2).contains(&tlb.level)
        && (1..=1 << 16).contains(&tlb.entries)
        && (1..=tlb.entries).contains(&tlb.ways)
}

impl fmt::Display for Processor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(1, Size::Small), (1, Size::Large), (2, Size::Small), (2, Size::Large)];
        let [first, first_large, second, second_large] =
            all.map(|(level, size)| self.entries(level, Access::Load, size));
        write!(
            out,
            "{first} and {second} data entries for 4 KiB, {first_large} and {second_large} for 2 MiB"
        )?;
        match self.coalesces {
            1 => {}
            pages => write!(out, ", {pages} pages of a folio in one entry")?,
        }
        match self.leaf {
            Some(leaf) => write!(out, " (CPUID leaf {leaf:#x})"),
            None => write!(out, " (assumed: CPUID hides them)"),
        }
    }
}

#[cfg(test)]
mod tests;
