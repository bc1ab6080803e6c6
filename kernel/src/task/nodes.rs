//! From which memory nodes a task's memory comes (`set_mempolicy(2)`).

use core::sync::atomic::{AtomicU64, Ordering};

use quire::page_alloc::{NodePolicy, NodeSet};

const LOCAL: u64 = 1;
const PREFERRED: u64 = 2;
const BIND: u64 = 3;
const INTERLEAVE: u64 = 4;
const PREFERRED_MANY: u64 = 5;
/// The lowest bit of the set of nodes.
const SET: u32 = 8;

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

    /// Sets it.
    pub fn set(&self, policy: Option<NodePolicy>) {
        self.0.store(policy.map_or(0, encoded), Ordering::Relaxed);
    }

    /// Takes over that of a parent.
    pub fn inherit(&self, parent: &Self) {
        self.0.store(parent.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn encoded(policy: NodePolicy) -> u64 {
    let bits = |set: NodeSet| set.iter().fold(0, |bits, node| bits | 1 << (SET + u32::from(node)));
    match policy {
        NodePolicy::Local => LOCAL,
        NodePolicy::Preferred(node) => PREFERRED | bits(NodeSet::one(node)),
        NodePolicy::PreferredMany(set) => PREFERRED_MANY | bits(set),
        NodePolicy::Bind(set) => BIND | bits(set),
        NodePolicy::Interleave(set) => INTERLEAVE | bits(set),
    }
}

fn decoded(word: u64) -> NodePolicy {
    let bits = word >> SET;
    let set: NodeSet = (0..u64::BITS as u8).filter(|&node| bits >> node & 1 == 1).collect();
    match word & ((1 << SET) - 1) {
        PREFERRED => NodePolicy::Preferred(bits.trailing_zeros() as u8),
        PREFERRED_MANY => NodePolicy::PreferredMany(set),
        BIND => NodePolicy::Bind(set),
        INTERLEAVE => NodePolicy::Interleave(set),
        _ => NodePolicy::Local,
    }
}
