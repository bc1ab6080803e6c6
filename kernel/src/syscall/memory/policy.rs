//! `set_mempolicy`, `get_mempolicy`, `mbind` and `set_mempolicy_home_node`

use linux_raw_sys::mempolicy as abi;
use quire::addr::VirtAddr;
use quire::limits::{FRAME_SHIFT, FRAME_SIZE, MAX_NODES};
use quire::page_alloc::{NodeNames, NodePolicy, NodeSet};
use quire::vm::Access;

use super::{nodes, page_range};
use crate::errno::Errno;
use crate::memory::manager::Space;
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right};

const DEFAULT: u32 = abi::MPOL_DEFAULT as u32;
const PREFERRED: u32 = abi::MPOL_PREFERRED as u32;
const BIND: u32 = abi::MPOL_BIND as u32;
const INTERLEAVE: u32 = abi::MPOL_INTERLEAVE as u32;
const LOCAL: u32 = abi::MPOL_LOCAL as u32;
const PREFERRED_MANY: u32 = abi::MPOL_PREFERRED_MANY as u32;
/// Flags in the mode. There are no cpusets, so the nodes that a task may use are those with memory.
const STATIC: u32 = abi::MPOL_F_STATIC_NODES;
const RELATIVE: u32 = abi::MPOL_F_RELATIVE_NODES;

/// The bits of a mask that a program may name: more than the page of a mask that Linux takes is an error.
const MOST_BITS: u64 = FRAME_SIZE * 8;
const WORD_BITS: u64 = u64::BITS as u64;

impl Call<'_> {
    /// `set_mempolicy`
    pub(in crate::syscall) fn set_mempolicy(&self) -> Answer {
        let [mode, mask, bits, ..] = self.arguments;
        let (policy, names) = self.policy(mode as u32, mask, bits)?;
        self.task.nodes.set(policy, names);
        Ok(0)
    }

    /// `mbind`. Private memory and huge pages obey; other shared memory comes from the node of the CPU that touches it
    /// first.
    pub(in crate::syscall) fn mbind(&self) -> Answer {
        let [start, len, mode, mask, bits, flags] = self.arguments;
        let flags = flags as u32;
        let [strict, moves, all] =
            [abi::MPOL_MF_STRICT, abi::MPOL_MF_MOVE, abi::MPOL_MF_MOVE_ALL].map(|flag| flags & flag != 0);
        let named = self.load_named(mode as u32, mask, bits)?;
        if flags & !abi::MPOL_MF_VALID != 0 {
            return Err(Errno::EINVAL);
        }
        if all {
            credentials::check(Right::Nice)?;
        }
        if !start.is_multiple_of(FRAME_SIZE) {
            return Err(Errno::EINVAL);
        }
        // Wraps like Linux' arithmetic: lengths close to 2^64 become 0.
        let len = len.wrapping_add(FRAME_SIZE - 1) & !(FRAME_SIZE - 1);
        let range = page_range(VirtAddr(start), len).ok_or(Errno::EINVAL)?;
        if range.is_empty() {
            return Ok(0);
        }
        // Behind the test for a length of 0, which succeeds with any set of nodes.
        let (policy, names) = made(mode as u32, named)?;
        if strict && !moves && !all && nodes::has_misplaced(self.space, range, policy) {
            return Err(Errno::EIO);
        }
        self.space.set_named_nodes(range.start, range.len(), policy, names)?;
        if (moves || all) && nodes::move_misplaced(self.space, range, policy, all)? > 0 && strict {
            return Err(Errno::EIO);
        }
        Ok(0)
    }

    /// `set_mempolicy_home_node`: the nearest node of a set is chosen by the CPU, not by a home node.
    pub(in crate::syscall) fn set_mempolicy_home_node(&self) -> Answer {
        Err(Errno::EOPNOTSUPP)
    }

    /// `get_mempolicy`
    pub(in crate::syscall) fn get_mempolicy(&self) -> Answer {
        let [mode, mask, bits, addr, flags] = self.arguments[..5].try_into().expect("five of six");
        let known = abi::MPOL_F_NODE | abi::MPOL_F_ADDR | abi::MPOL_F_MEMS_ALLOWED;
        let has = |flag: u32| flags & u64::from(flag) != 0;
        if flags & !u64::from(known) != 0 || mask != 0 && bits < nodes::with_memory().len() as u64 {
            return Err(Errno::EINVAL);
        }
        if has(abi::MPOL_F_MEMS_ALLOWED) {
            if has(abi::MPOL_F_NODE) || has(abi::MPOL_F_ADDR) {
                return Err(Errno::EINVAL);
            }
            self.store_mode(mode, 0)?;
            self.store_mask(mask, bits, nodes::with_memory())?;
            return Ok(0);
        }
        let (policy, names) = if has(abi::MPOL_F_ADDR) {
            let vma = self.space.next_vma(VirtAddr(addr)).filter(|vma| vma.range.contains(VirtAddr(addr)));
            let vma = vma.ok_or(Errno::EFAULT)?;
            (vma.nodes, vma.node_names)
        } else if addr != 0 {
            return Err(Errno::EINVAL);
        } else {
            (self.task.nodes.get(), self.task.nodes.names())
        };
        let value = match (has(abi::MPOL_F_NODE), has(abi::MPOL_F_ADDR)) {
            (true, true) => node_at(self.space, VirtAddr(addr))?,
            // The next node of a task that interleaves is known to the page allocator alone.
            (true, false) => return Err(Errno::EINVAL),
            (false, _) => mode_of(policy) | flags_of(names),
        };
        self.store_mode(mode, value)?;
        let set = match names {
            NodeNames::Plain => set_of(policy),
            NodeNames::Static(set) | NodeNames::Relative(set) => set,
        };
        self.store_mask(mask, bits, set)?;
        Ok(0)
    }

    /// A policy, and how its nodes are named.
    fn policy(&self, mode: u32, mask: u64, bits: u64) -> Result<(Option<NodePolicy>, NodeNames), Errno> {
        made(mode, self.load_named(mode, mask, bits)?)
    }

    /// The nodes that a policy names, if its mode is one that the kernel knows.
    fn load_named(&self, mode: u32, mask: u64, bits: u64) -> Result<NodeSet, Errno> {
        let (mode, flags) = (mode & !abi::MPOL_MODE_FLAGS, mode & abi::MPOL_MODE_FLAGS);
        // `MPOL_F_NUMA_BALANCING` is refused: Quire does not move pages to the CPUs that use them.
        if mode >= abi::MPOL_MAX as u32 || !matches!(flags, 0 | STATIC | RELATIVE) {
            return Err(Errno::EINVAL);
        }
        self.load_mask(mask, bits)
    }

    /// Reads a mask of nodes. The number of its bits is one too large, by an old custom (`set_mempolicy(2)`).
    pub(super) fn load_mask(&self, at: u64, bits: u64) -> Result<NodeSet, Errno> {
        let bits = bits.wrapping_sub(1);
        if at == 0 || bits == 0 || bits == u64::MAX {
            return Ok(NodeSet::EMPTY);
        }
        if bits > MOST_BITS {
            return Err(Errno::EINVAL);
        }
        let mut set = NodeSet::EMPTY;
        for index in 0..bits.div_ceil(WORD_BITS) {
            let [word] = self.load_words(at.checked_add(index * 8).ok_or(Errno::EFAULT)?)?;
            let rest = bits - index * WORD_BITS;
            let word = if rest < WORD_BITS { word & ((1 << rest) - 1) } else { word };
            if index > 0 && word != 0 || word >> MAX_NODES != 0 {
                return Err(Errno::EINVAL);
            }
            set = (0..MAX_NODES as u8).filter(|&node| word >> node & 1 == 1).fold(set, NodeSet::with);
        }
        Ok(set)
    }

    fn store_mode(&self, at: u64, mode: u32) -> Result<(), Errno> {
        if at == 0 { Ok(()) } else { self.memory.write(VirtAddr(at), &mode.to_le_bytes()) }
    }

    /// Stores a mask of nodes in whole words. Their bits are counted as in [`Self::load_mask`].
    fn store_mask(&self, at: u64, bits: u64, set: NodeSet) -> Result<(), Errno> {
        let bits = bits.saturating_sub(1);
        if at == 0 {
            return Ok(());
        }
        if bits > MOST_BITS {
            return Err(Errno::EINVAL);
        }
        let word = set.iter().fold(0_u64, |word, node| word | 1 << node);
        for index in 0..bits.div_ceil(WORD_BITS) {
            let at = at.checked_add(index * 8).ok_or(Errno::EFAULT)?;
            self.store_words(at, &[if index == 0 { word } else { 0 }])?;
        }
        Ok(())
    }
}

fn mode_of(policy: Option<NodePolicy>) -> u32 {
    match policy {
        None => DEFAULT,
        Some(NodePolicy::Local) => LOCAL,
        Some(NodePolicy::Preferred(_)) => PREFERRED,
        Some(NodePolicy::PreferredMany(_)) => PREFERRED_MANY,
        Some(NodePolicy::Bind(_)) => BIND,
        Some(NodePolicy::Interleave(_)) => INTERLEAVE,
    }
}

fn flags_of(names: NodeNames) -> u32 {
    match names {
        NodeNames::Plain => 0,
        NodeNames::Static(_) => STATIC,
        NodeNames::Relative(_) => RELATIVE,
    }
}

fn set_of(policy: Option<NodePolicy>) -> NodeSet {
    match policy {
        None | Some(NodePolicy::Local) => NodeSet::EMPTY,
        Some(NodePolicy::Preferred(node)) => NodeSet::one(node),
        Some(NodePolicy::Bind(set) | NodePolicy::Interleave(set) | NodePolicy::PreferredMany(set)) => set,
    }
}

/// The node of the page at an address, which is brought in.
fn node_at(space: &Space, at: VirtAddr) -> Result<u32, Errno> {
    loop {
        match space.translate(at, Access::Read) {
            Some(leaf) => {
                let inside = (at.0 - leaf.addr.0) >> FRAME_SHIFT;
                return Ok(u32::from(nodes::node_of(leaf.frame.add(inside))));
            }
            None => drop(space.fault(at, Access::Read).map_err(|_| Errno::EFAULT)?),
        }
    }
}

/// The policy of a mode that the kernel knows, with these nodes, and how they are named.
fn made(mode: u32, named: NodeSet) -> Result<(Option<NodePolicy>, NodeNames), Errno> {
    let (mode, flags) = (mode & !abi::MPOL_MODE_FLAGS, mode & abi::MPOL_MODE_FLAGS);
    let (set, names) = match flags {
        STATIC => (named.intersection(nodes::with_memory()), NodeNames::Static(named)),
        RELATIVE => (named.relative_to(nodes::with_memory()), NodeNames::Relative(named)),
        _ => (named.intersection(nodes::with_memory()), NodeNames::Plain),
    };
    let usable = |policy| if set.is_empty() { Err(Errno::EINVAL) } else { Ok((Some(policy), names)) };
    let is_plain = names == NodeNames::Plain;
    match mode {
        DEFAULT | LOCAL if !named.is_empty() => Err(Errno::EINVAL),
        DEFAULT => Ok((None, NodeNames::Plain)),
        LOCAL | PREFERRED if named.is_empty() && !is_plain => Err(Errno::EINVAL),
        LOCAL => Ok((Some(NodePolicy::Local), names)),
        PREFERRED if named.is_empty() => Ok((Some(NodePolicy::Local), names)),
        PREFERRED => usable(NodePolicy::Preferred(set.iter().next().unwrap_or(0))),
        PREFERRED_MANY => usable(NodePolicy::PreferredMany(set)),
        BIND => usable(NodePolicy::Bind(set)),
        INTERLEAVE => usable(NodePolicy::Interleave(set)),
        _ => Err(Errno::EINVAL),
    }
}
