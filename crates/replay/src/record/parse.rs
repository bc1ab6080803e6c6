//! Parses the kernel's records to [`Raw`].

use std::collections::HashMap;

use perf_event_open_sys::bindings::{
    PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MISC_COMM_EXEC,
    PERF_RECORD_MMAP2, PERF_RECORD_SAMPLE, PERF_SAMPLE_REGS_ABI_64,
};

use super::abi::Abi;
use super::perf::Source;
use super::raw::{Mapping, Raw, RawKind};
use super::ring::RECORD_HEADER;
use super::tracefs::Field;

/// The offsets of the tracepoints' fields.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields {
    pub(super) fault_address: Field,
    pub(super) fault_error_code: Field,
    pub(super) enter_id: Field,
    pub(super) enter_args: Field,
    pub(super) leave_id: Field,
    pub(super) leave_result: Field,
    pub(super) map_device: Field,
    pub(super) map_inode: Field,
    pub(super) map_first: Field,
    pub(super) map_last: Field,
    pub(super) dropped_device: Field,
    pub(super) dropped_inode: Field,
    pub(super) task_flags: Field,
    pub(super) locked_mm: Field,
    pub(super) unlocked_mm: Field,
}

/// Parses the records of one recording.
pub(super) struct Parser {
    sources: HashMap<u64, Source>,
    /// `None` in the user tier, which has no tracepoints.
    fields: Option<Fields>,
}

/// The sample id that ends every record but samples: pid, tid (4 bytes each), time, event number.
const TRAILER: usize = 24;

impl Parser {
    pub(super) fn new(sources: HashMap<u64, Source>, fields: Option<Fields>) -> Parser {
        Parser { sources, fields }
    }

    /// Parses a record; `None` for kinds that do not matter here.
    pub(super) fn record(&self, record: &[u8]) -> Option<Raw> {
        let kind = u32_at(record, 0)?;
        let misc = u32::from(u16::from_le_bytes(record.get(4..6)?.try_into().ok()?));
        let body = &record[RECORD_HEADER..];
        if kind == PERF_RECORD_SAMPLE {
            return self.sample(body);
        }
        let trailer = body.len().checked_sub(TRAILER)?;
        let (pid, tid) = (u32_at(body, trailer)?, u32_at(body, trailer + 4)?);
        let time_ns = u64_at(body, trailer + 8)?;
        let body = &body[..trailer];
        let kind = match kind {
            PERF_RECORD_COMM => {
                RawKind::Comm { exec: misc & PERF_RECORD_MISC_COMM_EXEC != 0, name: string(body.get(8..)?) }
            }
            // pid, ppid, tid, ptid, time
            PERF_RECORD_FORK => RawKind::Fork { child_pid: u32_at(body, 0)?, child_tid: u32_at(body, 8)? },
            PERF_RECORD_EXIT => {
                let (pid, tid) = (u32_at(body, 0)?, u32_at(body, 8)?);
                return Some(Raw { time_ns, pid, tid, kind: RawKind::Exit });
            }
            PERF_RECORD_MMAP2 => RawKind::Mapping(mapping(body)?),
            PERF_RECORD_LOST => RawKind::Lost { records: u64_at(body, 8)? },
            _ => return None,
        };
        Some(Raw { time_ns, pid, tid, kind })
    }

    /// Event number, pid, tid, time, then an address or a tracepoint's data.
    fn sample(&self, body: &[u8]) -> Option<Raw> {
        let source = *self.sources.get(&u64_at(body, 0)?)?;
        let (pid, tid, time_ns) = (u32_at(body, 8)?, u32_at(body, 12)?, u64_at(body, 16)?);
        let rest = body.get(24..)?;
        let kind = match source {
            Source::Records | Source::Time | Source::Faults => return None,
            Source::Minor | Source::Major => {
                RawKind::Resolved { addr: u64_at(rest, 0)?, major: source == Source::Major }
            }
            _ => {
                let size = u32_at(rest, 0)? as usize;
                let (data, behind) = rest.get(4..)?.split_at_checked(size)?;
                tracepoint(source, self.fields.as_ref()?, data, behind)?
            }
        };
        Some(Raw { time_ns, pid, tid, kind })
    }
}

/// `behind` the tracepoint's own data are the program's registers and stack, where they are sampled.
fn tracepoint(source: Source, fields: &Fields, data: &[u8], behind: &[u8]) -> Option<RawKind> {
    Some(match source {
        Source::FaultUser | Source::FaultKernel => RawKind::Fault {
            addr: fields.fault_address.read(data)?,
            error_code: fields.fault_error_code.read(data)?,
            kernel_mode: source == Source::FaultKernel,
        },
        Source::Enter | Source::EnterOldMmap => {
            let mut args = [0; 6];
            for (index, argument) in args.iter_mut().enumerate() {
                *argument = fields.enter_args.word(index).read(data)?;
            }
            let number = fields.enter_id.read(data)?;
            let registers = Registers::read(behind)?;
            let block = |address| registers.stack(behind, address);
            let (call, args) = registers.abi(&args).decode(number, args, block)?;
            RawKind::Enter { number, call, args }
        }
        Source::Leave => RawKind::Leave {
            number: fields.leave_id.read(data)?,
            result: fields.leave_result.read(data)? as i64,
        },
        Source::MapPages => RawKind::MapPages {
            device: device(fields.map_device.read(data)?),
            inode: fields.map_inode.read(data)?,
            first: fields.map_first.read(data)?,
            last: fields.map_last.read(data)?,
        },
        Source::Dropped => RawKind::Dropped {
            device: device(fields.dropped_device.read(data)?),
            inode: fields.dropped_inode.read(data)?,
        },
        Source::NewTask => RawKind::NewTask { flags: fields.task_flags.read(data)? },
        Source::Locked => RawKind::Locked { mm: fields.locked_mm.read(data)? },
        Source::Unlocked => RawKind::Unlocked { mm: fields.unlocked_mm.read(data)? },
        Source::Records | Source::Minor | Source::Major | Source::Time | Source::Faults => return None,
    })
}

/// The program's registers as it entered a call: those that [`super::perf`] asks for, in the order of their numbers.
struct Registers {
    code_64_bits: bool,
    si: u64,
    di: u64,
    sp: u64,
    r8: u64,
    r9: u64,
    r10: u64,
}

impl Registers {
    /// The width of the program's code, then the registers.
    const BYTES: usize = 7 * 8;

    fn read(bytes: &[u8]) -> Option<Registers> {
        let word = |index: usize| u64_at(bytes, index * 8);
        Some(Registers {
            code_64_bits: word(0)? == u64::from(PERF_SAMPLE_REGS_ABI_64),
            si: word(1)?,
            di: word(2)?,
            sp: word(3)?,
            r8: word(4)?,
            r9: word(5)?,
            r10: word(6)?,
        })
    }

    /// The ABI of a call with these arguments. The tracepoint does not say; but 32-bit code has only one, and
    /// `int 0x80` in 64-bit code passes arguments in other registers. The two cannot be distinguished only
    /// where all those registers hold the same values as those of `syscall`.
    fn abi(&self, args: &[u64; 6]) -> Abi {
        let [first, second, _, fourth, fifth, sixth] = *args;
        let native = [self.di, self.si, self.r10, self.r8, self.r9] == [first, second, fourth, fifth, sixth];
        if self.code_64_bits && native { Abi::Native } else { Abi::I386 }
    }

    /// Six words of 32 bits at an address, if they lie in the part of the stack that was sampled.
    fn stack(&self, behind: &[u8], address: u64) -> Option<[u32; 6]> {
        // The size of the sampled stack, its bytes, and how many of them could be copied.
        let room = usize::try_from(u64_at(behind, Self::BYTES)?).ok()?;
        let bytes = behind.get(Self::BYTES + 8..)?.get(..room)?;
        let copied = usize::try_from(u64_at(behind, Self::BYTES + 8 + room)?).ok()?;
        let start = usize::try_from(address.checked_sub(self.sp)?).ok()?;
        let block = bytes.get(..copied)?.get(start..start.checked_add(24)?)?;
        let mut words = [0; 6];
        for (index, word) in words.iter_mut().enumerate() {
            *word = u32_at(block, index * 4)?;
        }
        Some(words)
    }
}

/// The kernel's own device number has 20 bits of minor number.
pub(super) fn device(kernel: u64) -> u64 {
    (kernel >> 20) << 32 | (kernel & 0xf_ffff)
}

/// pid, tid, address, length, page offset, major, minor, inode, its generation, protection, flags, name.
fn mapping(body: &[u8]) -> Option<Mapping> {
    let file = u64_at(body, 40)? != 0;
    Some(Mapping {
        start: u64_at(body, 8)?,
        len: u64_at(body, 16)?,
        offset: if file { u64_at(body, 24)? } else { 0 },
        device: u64::from(u32_at(body, 32)?) << 32 | u64::from(u32_at(body, 36)?),
        inode: u64_at(body, 40)?,
        prot: u32_at(body, 56)?,
        flags: u32_at(body, 60)?,
        name: string(body.get(64..)?),
    })
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

/// Up to the first zero byte.
fn string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests;
