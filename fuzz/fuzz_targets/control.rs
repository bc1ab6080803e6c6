//! The control files of the pools of huge pages: any path, and any text that may be written there.
#![no_main]

use arbitrary::Arbitrary;
use hosted::{Hosted, HostedConfig, MemoryRange};
use libfuzzer_sys::fuzz_target;
use quire::addr::FrameRange;
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugePools, HugeSize};
use quire::manager;
use quire::page_alloc::{AllocatorConfig, NodeSet};

const GIB: u64 = 1 << 30;

#[derive(Arbitrary, Debug)]
struct Use<'a> {
    path: Path<'a>,
    /// What is written; without it the file is read.
    text: Option<Text<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Path<'a> {
    Any(&'a str),
    Saving,
    Pool { node: Option<bool>, huge: bool, name: u8 },
}

#[derive(Arbitrary, Debug)]
enum Text<'a> {
    Any(&'a str),
    Number(u64),
    Small(u8),
}

const NAMES: [&str; 9] = [
    "nr_hugepages",
    "nr_hugepages_mempolicy",
    "nr_overcommit_hugepages",
    "free_hugepages",
    "resv_hugepages",
    "surplus_hugepages",
    "demote",
    "demote_size",
    "promote",
];

impl Path<'_> {
    fn text(&self) -> String {
        match self {
            Self::Any(path) => (*path).to_owned(),
            Self::Saving => "vm/hugetlb_optimize_vmemmap".to_owned(),
            Self::Pool { node, huge, name } => {
                let node = node.map_or(String::new(), |node| format!("node{}/", u8::from(node)));
                let size = if *huge { "1048576" } else { "2048" };
                format!("{node}hugepages-{size}kB/{}", NAMES[usize::from(*name) % NAMES.len()])
            }
        }
    }
}

impl Text<'_> {
    fn text(&self) -> String {
        match self {
            Self::Any(text) => (*text).to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Small(number) => number.to_string(),
        }
    }
}

/// A machine of two nodes with 2 GiB each; what is not touched takes nothing.
fn machine() -> Hosted {
    let range = |node: u8| MemoryRange::new(u64::from(node) * 2 * GIB, 2 * GIB).on_node(node);
    let config = HostedConfig { ranges: vec![range(0), range(1)], ..HostedConfig::new(0) };
    config.with_cpus(2).with_nodes(vec![0, 1]).build().expect("the host has address space")
}

fn run(machine: &Hosted, uses: &[Use<'_>], policy: DescriptorPolicy) {
    let ranges: Vec<manager::MemoryRange> = machine
        .ranges()
        .iter()
        .map(|range| manager::MemoryRange {
            frames: FrameRange::new(range.start.frame(), range.bytes / 4096),
            node: range.node,
            zeroed: false,
        })
        .collect();
    let pages =
        hosted::raw::page_allocator(machine, &ranges, AllocatorConfig::default()).expect("memory is there");
    let pools = HugePools::with_policy(&pages, policy).expect("the policy fits the machine");
    let both = NodeSet::first(2);
    for step in uses {
        let path = step.path.text();
        let mut shown = String::new();
        let _ = match &step.text {
            Some(text) => pools.write_file(&pages, both, &path, &text.text()).map(drop),
            None => pools.read_file(&pages, &path, &mut shown),
        };
    }
    pools.validate(&pages).expect("the pools are whole");
    for size in [HugeSize::Size1G, HugeSize::Size2M] {
        let _ = pools.resize(&pages, size, both, 0);
        assert_eq!(pools.info(&pages, size).total, 0, "no page is in use");
    }
    pages.validate().expect("the allocator is whole");
}

thread_local! {
    static MACHINE: Hosted = machine();
}

fuzz_target!(|input: (bool, Vec<Use<'_>>)| {
    let (full, uses) = input;
    let policy = if full { DescriptorPolicy::Full } else { DescriptorPolicy::InBlock };
    let uses = &uses[..uses.len().min(32)];
    MACHINE.with(|machine| {
        machine.run_on(CpuId(0), || quire_fuzz::within_a_second(|| run(machine, uses, policy)));
    });
});
