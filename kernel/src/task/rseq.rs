//! Restartable sequences (`rseq(2)`): a task's program says in which of its sequences it is. It goes on at the
//! sequence's abort address if the task has left its CPU in between, or if a handler is about to run. In the same
//! structure it finds the CPU on which it runs.
//!
//! A switch away from a registered task marks the task, and a marked task comes here on its way to its program. What is
//! done here may switch tasks again, which marks it once more.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::signal::{info::SigInfo, send};
use super::thread::Task;
use crate::cpu::{area, topology};
use crate::errno::Errno;
use crate::memory::user::UserMemory;

/// The size of `struct rseq` in Linux's first version, which a shorter structure may not have.
pub const FIRST_BYTES: u32 = 32;
/// How many of its bytes have a meaning (`AT_RSEQ_FEATURE_SIZE`).
pub const MEANT_BYTES: u32 = 28;
/// At what it is aligned (`AT_RSEQ_ALIGN`).
pub const ALIGNMENT: u32 = 32;

// Where its fields are.
/// `cpu_id_start`, and `cpu_id` behind it.
const CPU: u64 = 0;
/// `rseq_cs`: the address of the description of a sequence, or 0.
const SEQUENCE: u64 = 8;
const FLAGS: u64 = 16;
/// `node_id`, and `mm_cid` behind it.
const NODE: u64 = 20;

/// `RSEQ_CPU_ID_UNINITIALIZED`
const NO_CPU: u32 = u32::MAX;
/// The bytes of the signature before an abort address.
const SIGNATURE_BYTES: u64 = 4;

/// What a task has registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The address of its `struct rseq`.
    pub at: u64,
    /// The size of that.
    pub bytes: u32,
    /// What must stand before each abort address.
    pub signature: u32,
}

/// The registration of a task, which the task itself changes.
#[derive(Default)]
pub struct Rseq {
    /// 0 for none.
    at: AtomicU64,
    bytes: AtomicU32,
    signature: AtomicU32,
}

impl Rseq {
    /// Whether there is one.
    #[inline]
    pub fn is_registered(&self) -> bool {
        self.at.load(Ordering::Relaxed) != 0
    }

    /// The registration.
    pub fn get(&self) -> Option<Registration> {
        let (bytes, signature) = (self.bytes.load(Ordering::Relaxed), self.signature.load(Ordering::Relaxed));
        let at = self.at.load(Ordering::Relaxed);
        (at != 0).then_some(Registration { at, bytes, signature })
    }

    /// Replaces it.
    pub fn set(&self, new: Option<Registration>) {
        let Registration { at, bytes, signature } =
            new.unwrap_or(Registration { at: 0, bytes: 0, signature: 0 });
        self.bytes.store(bytes, Ordering::Relaxed);
        self.signature.store(signature, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
    }
}

/// On the way of the running task, which is marked, to its program. What its structure says may make no sense: then it
/// gets `SIGSEGV`.
pub fn resume(task: &Task) {
    if settle(task).is_err() {
        send::force(task, SigInfo::kernel_fault(abi::SIGSEGV));
    }
}

/// The running task's program leaves its sequence, if it is in one, and finds on which CPU it is. A handler that runs next
/// returns to the abort address.
///
/// # Errors
/// [`Errno::EFAULT`], [`Errno::EINVAL`]: its structure makes no sense.
pub fn settle(task: &Task) -> Result<(), Errno> {
    task.take_rseq_flag();
    let Some(own) = task.rseq.get() else { return Ok(()) };
    let memory = UserMemory::of(task.space());
    leave_sequence(task, memory, own)?;
    let cpu = area::cpu_id();
    // Two tasks of a program never run on one CPU at a time, so its number does for `mm_cid` too.
    store(memory, own.at, [cpu.0, cpu.0], [topology::get().node_of(cpu).into(), cpu.0])
}

/// What stands in a structure that is not registered any more.
///
/// # Errors
/// [`Errno::EFAULT`].
pub fn reset(task: &Task, at: u64) -> Result<(), Errno> {
    store(UserMemory::of(task.space()), at, [0, NO_CPU], [0, 0])
}

fn store(memory: UserMemory<'_>, at: u64, cpu: [u32; 2], node: [u32; 2]) -> Result<(), Errno> {
    memory.write(VirtAddr(at + CPU), cpu.map(u32::to_le_bytes).as_flattened())?;
    memory.write(VirtAddr(at + NODE), node.map(u32::to_le_bytes).as_flattened())
}

fn leave_sequence(task: &Task, memory: UserMemory<'_>, own: Registration) -> Result<(), Errno> {
    let at = memory.read_u64(VirtAddr(own.at + SEQUENCE))?;
    if at == 0 {
        return Ok(());
    }
    let sequence = Sequence::read(memory, at)?;
    if memory.read_u32(VirtAddr(sequence.abort.wrapping_sub(SIGNATURE_BYTES)))? != own.signature {
        return Err(Errno::EINVAL);
    }
    // SAFETY: X3: the task is the running one, and its program does not run.
    let rip = unsafe { task.user() }.registers.rip;
    let is_inside = rip.wrapping_sub(sequence.start) < sequence.bytes;
    // Linux has taken back all flags that these two may have.
    if is_inside && (sequence.flags != 0 || memory.read_u32(VirtAddr(own.at + FLAGS))? != 0) {
        return Err(Errno::EINVAL);
    }
    memory.write(VirtAddr(own.at + SEQUENCE), &[0; 8])?;
    if is_inside {
        // SAFETY: X3: the task is the running one, and its program does not run. Nothing refers to its state here.
        let user = unsafe { task.user() };
        user.registers.rip = sequence.abort;
        user.make_full_return();
    }
    Ok(())
}

/// `struct rseq_cs`
struct Sequence {
    flags: u32,
    start: u64,
    /// From the start to the instruction behind the one that commits.
    bytes: u64,
    abort: u64,
}

impl Sequence {
    /// # Errors
    /// [`Errno::EFAULT`]; [`Errno::EINVAL`] for an unknown version, for addresses that no program has, and for an abort
    /// address inside the sequence.
    fn read(memory: UserMemory<'_>, at: u64) -> Result<Self, Errno> {
        let mut words = [[0; 8]; 4];
        memory.read(VirtAddr(at), words.as_flattened_mut())?;
        let [head, start, bytes, abort] = words.map(u64::from_le_bytes);
        let (version, flags, end) = (head as u32, (head >> 32) as u32, memory.end().0);
        let is_inside = start < end && start.checked_add(bytes).is_some_and(|last| last < end);
        let sound = version == 0 && is_inside && abort < end && abort.wrapping_sub(start) >= bytes;
        sound.then_some(Self { flags, start, bytes, abort }).ok_or(Errno::EINVAL)
    }
}
