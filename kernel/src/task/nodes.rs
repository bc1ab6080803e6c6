//! From which memory nodes a task's memory comes (`set_mempolicy(2)`).

use core::sync::atomic::{AtomicU64, Ordering};

use quire::limits::MAX_NODES;
use quire::page_alloc::{NodeNames, NodePolicy, NodeSet};

const LOCAL: u64 = 1;
const PREFERRED: u64 = 2;
const BIND: u64 = 3;
const INTERLEAVE: u64 = 4;
const PREFERRED_MANY: u64 = 5;
/// Bits of the kind of policy.
const KIND: u64 = 0xf;
/// The nodes were named in a way of their own, by the set from [`NAMED`] on.
const STATIC: u64 = 1 << 4;
const RELATIVE: u64 = 1 << 5;
/// The lowest bit of the set of nodes.
const SET: u32 = 8;
/// The lowest bit of the set that the program named.
const NAMED: u32 = SET + MAX_NODES as u32;
const _: () = assert!(NAMED as usize + MAX_NODES <= 64, "both sets are in a word");

/// A task's policy. It is read at each fault, so it is a single word.
#[derive(Default)]
pub struct TaskNodes(AtomicU64);

impl TaskNodes {
    /// The policy, if there is one.
    #[inline]
    pub fn get(&self) -> Option<NodePolicy> {
        let word = self.0.load(Ordering::Relaxed);
        if word == 0 { None } else { Some(decoded(word)) }
    }

    /// How the program named its nodes.
    pub fn names(&self) -> NodeNames {
        let word = self.0.load(Ordering::Relaxed);
        match word & (STATIC | RELATIVE) {
            STATIC => NodeNames::Static(set_at(word, NAMED)),
            RELATIVE => NodeNames::Relative(set_at(word, NAMED)),
            _ => NodeNames::Plain,
        }
    }

    /// Sets it.
    pub fn set(&self, policy: Option<NodePolicy>, names: NodeNames) {
        let names = match names {
            NodeNames::Plain => 0,
            NodeNames::Static(set) => STATIC | bits_at(set, NAMED),
            NodeNames::Relative(set) => RELATIVE | bits_at(set, NAMED),
        };
        self.0.store(policy.map_or(0, |policy| encoded(policy) | names), Ordering::Relaxed);
    }

    /// Takes over that of a parent.
    pub fn inherit(&self, parent: &Self) {
        self.0.store(parent.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn encoded(policy: NodePolicy) -> u64 {
    let bits = |set| bits_at(set, SET);
    match policy {
        NodePolicy::Local => LOCAL,
        NodePolicy::Preferred(node) => PREFERRED | bits(NodeSet::one(node)),
        NodePolicy::PreferredMany(set) => PREFERRED_MANY | bits(set),
        NodePolicy::Bind(set) => BIND | bits(set),
        NodePolicy::Interleave(set) => INTERLEAVE | bits(set),
    }
}

fn decoded(word: u64) -> NodePolicy {
    let set = set_at(word, SET);
    match word & KIND {
        PREFERRED => NodePolicy::Preferred((word >> SET).trailing_zeros() as u8),
        PREFERRED_MANY => NodePolicy::PreferredMany(set),
        BIND => NodePolicy::Bind(set),
        INTERLEAVE => NodePolicy::Interleave(set),
        _ => NodePolicy::Local,
    }
}

fn bits_at(set: NodeSet, first: u32) -> u64 {
    set.iter().fold(0, |bits, node| bits | 1 << (first + u32::from(node)))
}

fn set_at(word: u64, first: u32) -> NodeSet {
    (0..MAX_NODES as u8).filter(|&node| word >> (first + u32::from(node)) & 1 == 1).collect()
}
