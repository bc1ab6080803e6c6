//! Plans the verb for a recorded call: its arguments, and its required result.

use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::vm::{Advice, Placement, Remap};

use super::verb::{Mapping, PAGE, Verb};
use crate::trace::{Call, FileId, Syscall, mmap_length};

/// The recorded answer of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Success with this address.
    At(u64),
    /// Success.
    Done,
    /// A failure due to arguments and mappings alone, so Quire must report it too.
    Failure,
}

/// The plan for a recorded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// The verb and its required answer.
    Do(Verb, Answer),
    /// `brk`: the requested and the resulting end.
    Heap { ask: u64, got: u64 },
    /// `shmdt` of what is mapped at this address.
    Detach(u64),
    /// Pages `first..end` of the file with this number are gone.
    Cut { file: u64, first: u64, end: u64 },
    /// A lock that failed: because of a limit, without any change, or because of the range, of which a part
    /// is then locked.
    FailedLock(Verb),
    /// It changes nothing that Quire models, or failed for a reason that Quire cannot see.
    Skip,
    /// Other events show its effect.
    Told,
}

pub(super) const EFAULT: i64 = -14;
pub(super) const ENOMEM: i64 = -12;
const EEXIST: i64 = -17;
pub(super) const EINVAL: i64 = -22;

/// The plan for `call`. `number` numbers files.
pub(super) fn plan(call: &Syscall, number: impl FnMut(&FileId) -> u64) -> Plan {
    let [first, second, third, ..] = call.args;
    match call.call {
        Call::Mmap => plan_mmap(call, number),
        Call::Munmap => judged(call, Verb::Munmap { addr: first, len: second }, &[EINVAL]),
        Call::Mprotect | Call::PkeyMprotect => {
            let verb = Verb::Mprotect { addr: first, len: second, prot: protection(third) };
            // An unknown bit of the protection is EINVAL too, which Quire's types cannot express.
            let telling = if first.is_multiple_of(PAGE) { [ENOMEM, ENOMEM] } else { [ENOMEM, EINVAL] };
            judged(call, verb, &telling)
        }
        Call::Mremap => plan_mremap(call),
        Call::Madvise => plan_madvise(call),
        Call::Brk => Plan::Heap { ask: first, got: call.result as u64 },
        Call::Mlock => plan_mlock(call, false),
        Call::Mlock2 => plan_mlock(call, third & 1 != 0),
        Call::Munlock => judged(call, Verb::Munlock { addr: first, len: second }, &[ENOMEM, EINVAL]),
        Call::Mlockall => {
            let bit = |bit: u64| first & bit != 0;
            let verb = Verb::Mlockall { current: bit(1), future: bit(2), on_fault: bit(4) };
            judged(call, verb, &[])
        }
        Call::Munlockall => judged(call, Verb::Munlockall, &[]),
        Call::Ftruncate | Call::Fallocate => plan_cut(call, number),
        Call::Shmdt if call.ok() => Plan::Detach(first),
        Call::Shmat | Call::RemapFilePages if call.ok() => Plan::Told,
        call if call.makes_task() || call.is_exec() => Plan::Told,
        _ => Plan::Skip,
    }
}

/// The verb from this address on.
pub(super) fn down_to(verb: Verb, start: u64) -> Verb {
    match verb {
        Verb::Mprotect { addr, len, prot } if start < addr => {
            Verb::Mprotect { addr: start, len: len.saturating_add(addr - start), prot }
        }
        verb => verb,
    }
}

/// The pages that a call takes from a file, without those of which it clears a part.
pub(super) fn cut(call: &Syscall) -> Option<(u64, u64)> {
    const PUNCH_HOLE: u64 = 2;
    let [_, second, third, fourth, ..] = call.args;
    let (start, end) = match call.call {
        Call::Ftruncate => (second, u64::MAX),
        Call::Fallocate if second & PUNCH_HOLE != 0 => (third, third.saturating_add(fourth)),
        _ => return None,
    };
    let (first, end) = (start.div_ceil(PAGE), end / PAGE);
    (call.ok() && first < end).then_some((first, end))
}

fn plan_cut(call: &Syscall, mut number: impl FnMut(&FileId) -> u64) -> Plan {
    match (cut(call), &call.file) {
        (Some((first, end)), Some(file)) => Plan::Cut { file: number(file), first, end },
        _ => Plan::Skip,
    }
}

/// A verb whose success Quire must repeat, and whose failure too if it is among `telling`.
fn judged(call: &Syscall, verb: Verb, telling: &[i64]) -> Plan {
    match call.ok() {
        true => Plan::Do(verb, Answer::Done),
        false if telling.contains(&call.result) => Plan::Do(verb, Answer::Failure),
        false => Plan::Skip,
    }
}

fn plan_mlock(call: &Syscall, on_fault: bool) -> Plan {
    let [addr, len, ..] = call.args;
    let verb = Verb::Mlock { addr, len, on_fault };
    match call.result {
        ENOMEM => Plan::FailedLock(verb),
        _ => judged(call, verb, &[]),
    }
}

pub(super) fn protection(bits: u64) -> Protection {
    Protection::from_bits((bits & 7) as u8)
}

fn plan_mmap(call: &Syscall, mut number: impl FnMut(&FileId) -> u64) -> Plan {
    const FIXED_NOREPLACE: u64 = 0x10_0000;
    let [addr, len, prot, flags, _, offset] = call.args;
    let file = call.file.as_ref().filter(|_| flags & flag::ANONYMOUS == 0);
    let mut mapping = mapping(prot, flags, file.map(|file| (number(file), offset / PAGE)));
    mapping.len = mmap_length(call);
    if call.ok() {
        mapping.addr = call.result as u64;
        return Plan::Do(Verb::Mmap(mapping), Answer::At(mapping.addr));
    }
    if call.result == EEXIST && flags & FIXED_NOREPLACE != 0 {
        (mapping.addr, mapping.len, mapping.placement) = (addr, len, Placement::FixedNoReplace);
        return Plan::Do(Verb::Mmap(mapping), Answer::Failure);
    }
    Plan::Skip
}

/// Whether the call maps the stack of a thread, which Linux gives single pages since version 6.7.
pub(super) const fn is_stack(call: &Syscall) -> bool {
    let wanted = flag::STACK | flag::ANONYMOUS;
    matches!(call.call, Call::Mmap) && call.args[3] & wanted == wanted
}

/// Whether the call maps memory that a child finds empty (`MAP_DROPPABLE`, since Linux 6.11): the state of
/// glibc's `getrandom`.
pub(super) const fn is_droppable(call: &Syscall) -> bool {
    let wanted = flag::DROPPABLE | flag::ANONYMOUS;
    matches!(call.call, Call::Mmap) && call.args[3] & (flag::SHARING | flag::ANONYMOUS) == wanted
}

mod flag {
    pub(super) const SHARING: u64 = 0xf;
    pub(super) const SHARED: u64 = 1;
    pub(super) const SHARED_VALIDATE: u64 = 3;
    pub(super) const DROPPABLE: u64 = 8;
    pub(super) const ANONYMOUS: u64 = 0x20;
    pub(super) const GROWSDOWN: u64 = 0x100;
    pub(super) const LOCKED: u64 = 0x2000;
    pub(super) const NORESERVE: u64 = 0x4000;
    pub(super) const POPULATE: u64 = 0x8000;
    pub(super) const NONBLOCK: u64 = 0x1_0000;
    pub(super) const STACK: u64 = 0x2_0000;
}

/// A mapping at a fixed address; the caller fills in address and length.
pub(super) fn mapping(prot: u64, flags: u64, file: Option<(u64, u64)>) -> Mapping {
    Mapping {
        addr: 0,
        len: 0,
        prot: protection(prot),
        placement: Placement::Fixed,
        shared: matches!(flags & flag::SHARING, flag::SHARED | flag::SHARED_VALIDATE),
        file,
        grows_down: flags & flag::GROWSDOWN != 0,
        thread_stack: flags & flag::STACK != 0,
        populate: flags & (flag::POPULATE | flag::NONBLOCK) == flag::POPULATE,
        locked: flags & flag::LOCKED != 0,
        noreserve: flags & flag::NORESERVE != 0,
    }
}

fn plan_mremap(call: &Syscall) -> Plan {
    const MAYMOVE: u64 = 1;
    const FIXED: u64 = 2;
    const DONTUNMAP: u64 = 4;
    let [addr, old, new, flags, target, _] = call.args;
    let leaves = flags & DONTUNMAP != 0;
    if call.ok() {
        let result = VirtAddr(call.result as u64);
        let to = match (result.0 == addr, leaves) {
            (true, _) => Remap::InPlace,
            (false, false) => Remap::Fixed(result),
            (false, true) => Remap::FixedDontUnmap(result),
        };
        return Plan::Do(Verb::Mremap { addr, old, new, to }, Answer::At(result.0));
    }
    let known = flags & !(MAYMOVE | FIXED | DONTUNMAP) == 0;
    let consistent = flags & (FIXED | DONTUNMAP) == 0 || flags & MAYMOVE != 0;
    // Without permission to move, missing room above is the only lack of memory that the arguments show.
    let telling = matches!(call.result, EINVAL | EFAULT) || call.result == ENOMEM && flags == 0;
    if !(known && consistent && telling) {
        return Plan::Skip;
    }
    let to = match (flags & FIXED != 0, leaves) {
        (true, true) => Remap::FixedDontUnmap(VirtAddr(target)),
        (true, false) => Remap::Fixed(VirtAddr(target)),
        (false, true) => Remap::DontUnmap(VirtAddr(target)),
        (false, false) if flags & MAYMOVE != 0 => Remap::MayMove,
        (false, false) => Remap::InPlace,
    };
    Plan::Do(Verb::Mremap { addr, old, new, to }, Answer::Failure)
}

fn plan_madvise(call: &Syscall) -> Plan {
    const REMOVE: u64 = 9;
    let [addr, len, advice, ..] = call.args;
    if advice == REMOVE {
        // The replay's page cache has no holes: the caller's pages go, which the next access would find missing on Linux.
        return judged(call, Verb::Madvise { addr, len, advice: Advice::DontNeed }, &[]);
    }
    let advice = match advice {
        3 => Advice::WillNeed,
        4 => Advice::DontNeed,
        8 => Advice::Free,
        14 => Advice::HugePage,
        15 => Advice::NoHugePage,
        22 => Advice::PopulateRead,
        23 => Advice::PopulateWrite,
        _ => return Plan::Skip,
    };
    let verb = Verb::Madvise { addr, len, advice };
    match advice {
        Advice::DontNeed | Advice::Free => judged(call, verb, &[ENOMEM, EINVAL]),
        // The mappings around a hole have the advice.
        Advice::HugePage | Advice::NoHugePage => judged(call, verb, &[ENOMEM]),
        _ => judged(call, verb, &[]),
    }
}

#[cfg(test)]
mod tests;
