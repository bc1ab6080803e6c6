//! `futex(2)`.

use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::task::futex::{self, ANY, Key, Word};
use crate::task::owned_futex::{self, Place};
use crate::time;

/// The most words of one call (`FUTEX_WAITV_MAX`).
const MOST_WORDS: u64 = 128;
const FLAGS: u32 = abi::FUTEX_PRIVATE_FLAG | abi::FUTEX_CLOCK_REALTIME;

impl Call<'_> {
    pub(super) fn futex(&self) -> Answer {
        let [at, operation, value, fourth, second, bits] = self.arguments;
        let (value, bits) = (value as u32, bits as u32);
        let operation = operation as u32;
        let private = operation & abi::FUTEX_PRIVATE_FLAG != 0;
        let key = |at| Key::of(self.task, VirtAddr(at), private);
        let word = |at| key(at).map(|key| Word { key, addr: VirtAddr(at), expected: value });
        match operation & !FLAGS {
            abi::FUTEX_WAIT => {
                let deadline = self.timeout(fourth)?.map(|time| self.task.call_end(time));
                futex::wait(&[word(at)?], ANY, deadline).map(|_| 0)
            }
            abi::FUTEX_WAIT_BITSET => {
                let bits = checked(bits)?;
                let realtime = operation & abi::FUTEX_CLOCK_REALTIME != 0;
                let deadline =
                    self.timeout(fourth)?.map(|time| if realtime { to_monotonic(time) } else { time });
                if let Some(deadline) = deadline {
                    self.task.set_call_end(deadline);
                }
                futex::wait(&[word(at)?], bits, deadline).map(|_| 0)
            }
            abi::FUTEX_WAKE => futex::wake_key(key(at)?, value.max(1), ANY),
            abi::FUTEX_WAKE_BITSET => futex::wake_key(key(at)?, value.max(1), checked(bits)?),
            abi::FUTEX_REQUEUE | abi::FUTEX_CMP_REQUEUE if (value as i32) < 0 || (fourth as i32) < 0 => {
                Err(Errno::EINVAL)
            }
            abi::FUTEX_REQUEUE => {
                let (woken, moved) = futex::requeue(key(at)?, key(second)?, value, fourth as u32)?;
                Ok(woken + moved)
            }
            abi::FUTEX_CMP_REQUEUE => {
                let (from, to) = (key(at)?, key(second)?);
                if self.memory.read_u32(VirtAddr(at))? != bits {
                    return Err(Errno::EAGAIN);
                }
                let (woken, moved) = futex::requeue(from, to, value, fourth as u32)?;
                Ok(woken + moved)
            }
            abi::FUTEX_WAKE_OP => {
                let (first, other) = (key(at)?, key(second)?);
                let old = self.modify(VirtAddr(second), bits)?;
                let mut woken = futex::wake_key(first, value, ANY)?;
                if compares(old, bits)? {
                    woken += futex::wake_key(other, fourth as u32, ANY)?;
                }
                Ok(woken)
            }
            command => self.owned_futex(command, operation, private),
        }
    }

    /// The operations of futexes with an owner. Their times are absolute.
    fn owned_futex(&self, command: u32, operation: u32, private: bool) -> Answer {
        let [at, _, value, fourth, second, bits] = self.arguments;
        let place =
            |at| Key::of(self.task, VirtAddr(at), private).map(|key| Place { key, addr: VirtAddr(at) });
        let word = |expected| place(at).map(|Place { key, addr }| Word { key, addr, expected });
        let realtime = operation & abi::FUTEX_CLOCK_REALTIME != 0;
        let deadline = |realtime| -> Result<Option<u64>, Errno> {
            Ok(self.timeout(fourth)?.map(|time| if realtime { to_monotonic(time) } else { time }))
        };
        if realtime && !matches!(command, abi::FUTEX_LOCK_PI2 | abi::FUTEX_WAIT_REQUEUE_PI) {
            return Err(Errno::ENOSYS);
        }
        match command {
            abi::FUTEX_LOCK_PI => owned_futex::lock(place(at)?, deadline(true)?, false)?,
            abi::FUTEX_LOCK_PI2 => owned_futex::lock(place(at)?, deadline(realtime)?, false)?,
            abi::FUTEX_TRYLOCK_PI => owned_futex::lock(place(at)?, None, true)?,
            abi::FUTEX_UNLOCK_PI => owned_futex::unlock(self.task, place(at)?)?,
            abi::FUTEX_WAIT_REQUEUE_PI if at == second => return Err(Errno::EINVAL),
            abi::FUTEX_WAIT_REQUEUE_PI => {
                futex::wait_for_lock(&word(value as u32)?, place(second)?, deadline(realtime)?)?;
            }
            abi::FUTEX_CMP_REQUEUE_PI if at == second || value as u32 != 1 || (fourth as i32) < 0 => {
                return Err(Errno::EINVAL);
            }
            abi::FUTEX_CMP_REQUEUE_PI => {
                return futex::requeue_to_lock(
                    &word(bits as u32)?,
                    place(second)?,
                    1 + u64::from(fourth as u32),
                );
            }
            _ => return Err(Errno::ENOSYS),
        }
        Ok(0)
    }

    /// `futex_waitv`: waits for several words, each described by a structure of three words.
    pub(super) fn futex_waitv(&self) -> Answer {
        let [list, count, flags, timeout, clock, _] = self.arguments;
        if flags != 0 || count == 0 || count > MOST_WORDS || list == 0 {
            return Err(Errno::EINVAL);
        }
        let deadline = match (self.timeout(timeout)?, clock as u32) {
            (None, _) => None,
            (Some(time), abi::CLOCK_MONOTONIC) => Some(time),
            (Some(time), abi::CLOCK_REALTIME) => Some(to_monotonic(time)),
            _ => return Err(Errno::EINVAL),
        };
        let mut words = Vec::new();
        for index in 0..count {
            let at = list.checked_add(index * 24).ok_or(Errno::EFAULT)?;
            let [value, addr, flags]: [u64; 3] = self.load_words(at)?;
            // The upper half must be 0, and so must unknown flags. All words have 32 bits.
            let known = u64::from(abi::FUTEX_PRIVATE_FLAG | abi::FUTEX_32);
            if flags & !known != 0 || flags & u64::from(abi::FUTEX_32) == 0 {
                return Err(Errno::EINVAL);
            }
            let private = flags & u64::from(abi::FUTEX_PRIVATE_FLAG) != 0;
            let key = Key::of(self.task, VirtAddr(addr), private)?;
            words.push(Word { key, addr: VirtAddr(addr), expected: value as u32 });
        }
        futex::wait(&words, ANY, deadline).map(|index| index as u64)
    }

    /// The operation of `FUTEX_WAKE_OP`. Returns the old value.
    fn modify(&self, at: VirtAddr, code: u32) -> Result<u32, Errno> {
        let argument = signed_12_bits(code >> 12) as u32;
        let argument = if code >> 31 == 1 { 1_u32.checked_shl(argument).unwrap_or(0) } else { argument };
        let operation = code >> 28 & 7;
        if operation > abi::FUTEX_OP_XOR {
            return Err(Errno::ENOSYS);
        }
        let change = |old: u32| match operation {
            abi::FUTEX_OP_SET => argument,
            abi::FUTEX_OP_ADD => old.wrapping_add(argument),
            abi::FUTEX_OP_OR => old | argument,
            abi::FUTEX_OP_ANDN => old & !argument,
            _ => old ^ argument,
        };
        self.memory.update_u32(at, |old| Some(change(old)))
    }

    fn timeout(&self, at: u64) -> Result<Option<u64>, Errno> {
        if at == 0 { Ok(None) } else { self.load_time(at).map(Some) }
    }
}

fn checked(bits: u32) -> Result<u32, Errno> {
    if bits == 0 { Err(Errno::EINVAL) } else { Ok(bits) }
}

/// The comparison of `FUTEX_WAKE_OP` with the old value.
fn compares(old: u32, code: u32) -> Result<bool, Errno> {
    let (old, with) = (old as i32, signed_12_bits(code));
    Ok(match code >> 24 & 15 {
        abi::FUTEX_OP_CMP_EQ => old == with,
        abi::FUTEX_OP_CMP_NE => old != with,
        abi::FUTEX_OP_CMP_LT => old < with,
        abi::FUTEX_OP_CMP_LE => old <= with,
        abi::FUTEX_OP_CMP_GT => old > with,
        abi::FUTEX_OP_CMP_GE => old >= with,
        _ => return Err(Errno::ENOSYS),
    })
}

fn signed_12_bits(code: u32) -> i32 {
    ((code << 20) as i32) >> 20
}

fn to_monotonic(realtime: u64) -> u64 {
    let offset = time::realtime_ns().saturating_sub(time::now_ns());
    realtime.saturating_sub(offset)
}
