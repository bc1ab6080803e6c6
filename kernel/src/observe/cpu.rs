//! CPUs: `/proc/cpuinfo` and `/sys/devices/system/cpu`.

use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use core::fmt::{self, Write};

use super::List;
use crate::cpu::area;

pub(super) fn add(list: &mut List) {
    list.text("/proc/cpuinfo", cpuinfo);
    for name in ["online", "possible", "present"] {
        list.text(alloc::format!("/sys/devices/system/cpu/{name}"), |out| {
            write_list(out, 0..area::count() as u64)?;
            out.write_char('\n')
        });
    }
    list.text("/sys/devices/system/cpu/kernel_max", |out| writeln!(out, "{}", area::MAX_CPUS - 1));
    for cpu in 0..area::count() {
        let folder = alloc::format!("/sys/devices/system/cpu/cpu{cpu}");
        if cpu > 0 {
            // The first one cannot be switched off, and in this kernel none can.
            list.text(alloc::format!("{folder}/online"), |out| out.write_str("1\n"));
        }
        let mut number = |name: &str, value: usize| {
            list.text(alloc::format!("{folder}/topology/{name}"), move |out| writeln!(out, "{value}"));
        };
        number("core_id", cpu);
        number("physical_package_id", 0);
        add_caches(list, &folder, cpu);
    }
}

/// The caches of a CPU, as it describes them: `cpu0/cache/index0` and so on.
fn add_caches(list: &mut List, folder: &str, cpu: usize) {
    let caches = (0..).map(|index| __cpuid_count(CACHES, index)).take_while(|leaf| leaf.eax & 0x1f != 0);
    let known = __cpuid(0).eax >= CACHES;
    for (index, leaf) in caches.take(if known { MOST_CACHES } else { 0 }).enumerate() {
        let field = |word: u32, from: u32, bits: u32| u64::from(word >> from & ((1 << bits) - 1)) + 1;
        let (line, parts, ways) = (field(leaf.ebx, 0, 12), field(leaf.ebx, 12, 10), field(leaf.ebx, 22, 10));
        let sets = u64::from(leaf.ecx) + 1;
        let shared = field(leaf.eax, 14, 12).min(area::count() as u64);
        let first = cpu as u64 / shared * shared;
        let mut file = |name: &str, text: alloc::string::String| {
            list.text(alloc::format!("{folder}/cache/index{index}/{name}"), move |out| {
                writeln!(out, "{text}")
            });
        };
        file("type", ["Data", "Instruction", "Unified"][(leaf.eax as usize & 0x1f).clamp(1, 3) - 1].into());
        file("level", alloc::format!("{}", leaf.eax >> 5 & 7));
        file("size", alloc::format!("{}K", (line * parts * ways * sets) >> 10));
        file("coherency_line_size", alloc::format!("{line}"));
        file("ways_of_associativity", alloc::format!("{ways}"));
        file("number_of_sets", alloc::format!("{sets}"));
        let mut cpus = alloc::string::String::new();
        // A text in memory takes all that is written to it.
        let _ = write_list(&mut cpus, first..(first + shared).min(area::count() as u64));
        file("shared_cpu_list", cpus);
    }
}

/// The leaf of CPUID that describes caches, one in each subleaf.
const CACHES: u32 = 4;
const MOST_CACHES: usize = 8;

/// Writes ascending numbers as Linux does: `0-3,6`.
pub(super) fn write_list(out: &mut dyn Write, numbers: impl Iterator<Item = u64>) -> fmt::Result {
    let mut open: Option<(u64, u64)> = None;
    let mut first = true;
    let mut show = |out: &mut dyn Write, (from, to): (u64, u64)| {
        let gap = if core::mem::take(&mut first) { "" } else { "," };
        if from == to { write!(out, "{gap}{from}") } else { write!(out, "{gap}{from}-{to}") }
    };
    for number in numbers {
        open = match open {
            Some((from, to)) if to + 1 == number => Some((from, number)),
            before => {
                before.map_or(Ok(()), |run| show(out, run))?;
                Some((number, number))
            }
        };
    }
    open.map_or(Ok(()), |run| show(out, run))
}

/// Writes a set of `count` numbers, at most 32, as Linux writes bitmaps: hexadecimal, with as many digits as the set
/// needs.
pub(super) fn write_mask(
    out: &mut dyn Write,
    numbers: impl Iterator<Item = u64>,
    count: usize,
) -> fmt::Result {
    let mask = numbers.fold(0_u32, |mask, number| mask | 1 << number);
    write!(out, "{mask:0digits$x}", digits = count.div_ceil(4).max(1))
}

/// Chooses a register of a leaf.
type Register = fn(&CpuidResult) -> u32;

/// Bits and their names.
type Bits = &'static [(u32, &'static str)];

/// Names of bits of CPUID that programs ask for: leaf, register, and the names of bits in it.
const FLAGS: [(u32, Register, Bits); 4] = [
    (
        1,
        |leaf| leaf.edx,
        &[
            (0, "fpu"),
            (3, "pse"),
            (4, "tsc"),
            (5, "msr"),
            (6, "pae"),
            (7, "mce"),
            (8, "cx8"),
            (9, "apic"),
            (11, "sep"),
            (12, "mtrr"),
            (13, "pge"),
            (15, "cmov"),
            (16, "pat"),
            (19, "clflush"),
            (23, "mmx"),
            (24, "fxsr"),
            (25, "sse"),
            (26, "sse2"),
        ],
    ),
    (
        0x8000_0001,
        |leaf| leaf.edx,
        &[(11, "syscall"), (20, "nx"), (26, "pdpe1gb"), (27, "rdtscp"), (29, "lm")],
    ),
    (
        1,
        |leaf| leaf.ecx,
        &[
            (0, "pni"),
            (9, "ssse3"),
            (12, "fma"),
            (13, "cx16"),
            (17, "pcid"),
            (19, "sse4_1"),
            (20, "sse4_2"),
            (21, "x2apic"),
            (22, "movbe"),
            (23, "popcnt"),
            (24, "tsc_deadline_timer"),
            (25, "aes"),
            (26, "xsave"),
            (28, "avx"),
            (30, "rdrand"),
            (31, "hypervisor"),
        ],
    ),
    (
        7,
        |leaf| leaf.ebx,
        &[
            (5, "avx2"),
            (7, "smep"),
            (9, "erms"),
            (10, "invpcid"),
            (18, "rdseed"),
            (20, "smap"),
            (23, "clflushopt"),
            (24, "clwb"),
        ],
    ),
];

/// `/proc/cpuinfo`. All CPUs are alike.
fn cpuinfo(out: &mut dyn Write) -> fmt::Result {
    (0..area::count()).try_for_each(|cpu| cpu_text(out, cpu))
}

fn cpu_text(out: &mut dyn Write, cpu: usize) -> fmt::Result {
    let (vendor, signature) = (__cpuid(0), __cpuid(1));
    let name = name();
    let word = |word: u32| word.to_le_bytes();
    let vendor_id = [word(vendor.ebx), word(vendor.edx), word(vendor.ecx)];
    let field = |shift: u32, bits: u32| signature.eax >> shift & ((1 << bits) - 1);
    let family = if field(8, 4) == 15 { 15 + field(20, 8) } else { field(8, 4) };
    let model = if matches!(field(8, 4), 6 | 15) { field(16, 4) << 4 | field(4, 4) } else { field(4, 4) };
    let addresses = __cpuid(0x8000_0008).eax;
    writeln!(out, "processor\t: {cpu}")?;
    writeln!(out, "vendor_id\t: {}", str::from_utf8(vendor_id.as_flattened()).unwrap_or_default())?;
    writeln!(out, "cpu family\t: {family}\nmodel\t\t: {model}")?;
    writeln!(out, "model name\t: {}", text(&name))?;
    writeln!(out, "stepping\t: {}", field(0, 4))?;
    writeln!(out, "physical id\t: 0\nsiblings\t: {0}\ncore id\t\t: {cpu}\ncpu cores\t: {0}", area::count())?;
    writeln!(out, "fpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: {}\nwp\t\t: yes", vendor.eax)?;
    write!(out, "flags\t\t:")?;
    for (leaf, register, names) in FLAGS {
        let bits =
            if leaf <= vendor.eax || leaf >= 0x8000_0000 { register(&__cpuid_count(leaf, 0)) } else { 0 };
        let set = names.iter().filter(|(bit, _)| bits >> bit & 1 == 1);
        set.into_iter().try_for_each(|(_, name)| write!(out, " {name}"))?;
    }
    writeln!(out, "\nclflush size\t: {0}\ncache_alignment\t: {0}", (signature.ebx >> 8 & 0xff) * 8)?;
    let (physical, linear) = (addresses & 0xff, addresses >> 8 & 0xff);
    writeln!(out, "address sizes\t: {physical} bits physical, {linear} bits virtual\npower management:\n")
}

/// The processor's own name.
fn name() -> [u8; 48] {
    let mut name = [0; 48];
    if __cpuid(0x8000_0000).eax < 0x8000_0004 {
        return name;
    }
    for (bytes, leaf) in name.chunks_exact_mut(16).zip(0x8000_0002..) {
        let CpuidResult { eax, ebx, ecx, edx } = __cpuid(leaf);
        bytes.copy_from_slice([eax, ebx, ecx, edx].map(u32::to_le_bytes).as_flattened());
    }
    name
}

fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    str::from_utf8(&bytes[..end]).unwrap_or_default().trim()
}
