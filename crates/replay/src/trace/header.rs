//! The header of a trace: machine, program, recorder, clock.

use super::ARGUMENTS_MAX;
use super::wire::{Cursor, Malformed, Sink};

/// The header of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Format version.
    pub version: u16,
    /// The clock of the times.
    pub clock: Clock,
    /// Bytes of a base page.
    pub page_size: u32,
    /// Release of the kernel it was recorded on.
    pub kernel: String,
    /// CPUs online at that time.
    pub cpus: u32,
    /// The processor's name for itself; empty in recordings before version 4.
    pub cpu: String,
    /// The recorded command, argument by argument.
    pub command: Vec<String>,
    /// The program's name and version.
    pub program: Program,
    /// The recorder's tier of permissions.
    pub tier: Tier,
    /// Transparent huge pages were off for the program (which changes its speed, and makes every fault one of 4 KiB).
    pub thp_disabled: bool,
    /// The details of its faults.
    pub faults: FaultKinds,
    /// Size of the ring per CPU, in bytes.
    pub ring_bytes: u64,
    /// The memory limits of the program; `None` in recordings of version 1.
    pub limits: Option<Limits>,
    /// The recording attached to processes that ran already.
    pub attached: bool,
    /// The totals, known only at the end.
    pub totals: Totals,
    /// Number of events. Filled in by the writer.
    pub events: u64,
}

/// The memory limits at a program's start. Limits that it set itself afterwards are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `vm.max_map_count`.
    pub mappings: u64,
    /// `vm.overcommit_memory`.
    pub overcommit: Overcommit,
    /// `vm.overcommit_ratio`, in hundredths of memory.
    pub overcommit_ratio: u64,
    /// `vm.overcommit_kbytes`, in bytes; 0 where the ratio counts.
    pub overcommit_bytes: u64,
    /// `RLIMIT_AS`, in bytes; [`Limits::NONE`] without a limit, as for those below.
    pub address_space: u64,
    /// `RLIMIT_DATA`.
    pub data: u64,
    /// `RLIMIT_STACK`.
    pub stack: u64,
    /// `RLIMIT_MEMLOCK`.
    pub locked: u64,
}

/// The kernel's overcommit mode (`vm.overcommit_memory`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overcommit {
    /// Grants all requests but obviously excessive ones.
    Guess,
    /// Grants every request.
    Always,
    /// Grants nothing beyond the limit.
    Never,
}

/// Totals that are known only when the recording ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Kernel records lost in all; the trace is complete when it is 0.
    pub lost: u64,
    /// From the start of the program to the exit of its last process, in nanoseconds; where the recording attached to it, how
    /// long it was recorded.
    pub wall_ns: u64,
    /// Minor and major faults that the kernel counted for all processes together; 0 if it could not be read.
    /// This minus the resolved fault events are the faults that the kernel resolved without an event.
    pub kernel_faults: u64,
}

/// Name and version of the recorded program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// File name of the executable.
    pub name: String,
    /// Version of the program, empty when it is unknown.
    pub version: String,
}

/// The clock of the times in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `CLOCK_MONOTONIC`: nanoseconds since boot, without sleep.
    Monotonic,
}

/// What the recorder was allowed to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// A privileged recorder: everything.
    Privileged,
    /// An ordinary user: no faults from kernel mode, no access kind, no fault-around, no fault durations.
    User,
}

/// The fault details of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultKinds {
    /// Faults of the program's own instructions.
    pub user: bool,
    /// Faults of kernel code that works for the program.
    pub kernel: bool,
    /// Read, write or fetch; protection or missing.
    pub access: bool,
    /// How long a fault took.
    pub duration: bool,
    /// Ranges mapped around a file fault.
    pub fault_around: bool,
}

impl FaultKinds {
    /// The details that a tier provides.
    pub const fn of(tier: Tier) -> FaultKinds {
        let all = matches!(tier, Tier::Privileged);
        FaultKinds { user: true, kernel: all, access: all, duration: all, fault_around: all }
    }

    const fn bits(self) -> u8 {
        self.user as u8
            | (self.kernel as u8) << 1
            | (self.access as u8) << 2
            | (self.duration as u8) << 3
            | (self.fault_around as u8) << 4
    }

    fn from_bits(bits: u8) -> Result<FaultKinds, Malformed> {
        if bits >= 1 << 5 {
            return Err(Malformed);
        }
        let bit = |n: u8| bits & (1 << n) != 0;
        Ok(FaultKinds {
            user: bit(0),
            kernel: bit(1),
            access: bit(2),
            duration: bit(3),
            fault_around: bit(4),
        })
    }
}

impl Limits {
    /// No limit.
    pub const NONE: u64 = u64::MAX;

    fn encode(&self, sink: &mut Sink) {
        sink.varint(self.mappings);
        sink.byte(match self.overcommit {
            Overcommit::Guess => 0,
            Overcommit::Always => 1,
            Overcommit::Never => 2,
        });
        let rest = [self.overcommit_ratio, self.overcommit_bytes];
        rest.into_iter().for_each(|value| sink.varint(value));
        let resources = [self.address_space, self.data, self.stack, self.locked];
        resources.into_iter().for_each(|value| sink.varint(value));
    }

    fn decode(cursor: &mut Cursor<'_>) -> Result<Limits, Malformed> {
        Ok(Limits {
            mappings: cursor.varint()?,
            overcommit: match cursor.byte()? {
                0 => Overcommit::Guess,
                1 => Overcommit::Always,
                2 => Overcommit::Never,
                _ => return Err(Malformed),
            },
            overcommit_ratio: cursor.varint()?,
            overcommit_bytes: cursor.varint()?,
            address_space: cursor.varint()?,
            data: cursor.varint()?,
            stack: cursor.varint()?,
            locked: cursor.varint()?,
        })
    }
}

impl Header {
    /// The payload: four fixed-width counts first, so that the writer can fill them in at the end.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut sink = Sink::default();
        sink.fixed64(self.totals.lost);
        sink.fixed64(self.totals.wall_ns);
        sink.fixed64(self.totals.kernel_faults);
        sink.fixed64(self.events);
        sink.byte(match self.clock {
            Clock::Monotonic => 0,
        });
        sink.byte(match self.tier {
            Tier::Privileged => 0,
            Tier::User => 1,
        });
        sink.byte(u8::from(self.thp_disabled));
        sink.byte(self.faults.bits());
        sink.varint(u64::from(self.page_size));
        sink.varint(u64::from(self.cpus));
        sink.varint(self.ring_bytes);
        sink.string(&self.kernel);
        sink.string(&self.program.name);
        sink.string(&self.program.version);
        sink.varint(self.command.len() as u64);
        for argument in &self.command {
            sink.string(argument);
        }
        sink.byte(u8::from(self.limits.is_some()));
        if let Some(limits) = &self.limits {
            limits.encode(&mut sink);
        }
        sink.byte(u8::from(self.attached));
        sink.string(&self.cpu);
        sink.into_bytes()
    }

    pub(super) fn decode(version: u16, payload: &[u8]) -> Result<Header, Malformed> {
        let mut cursor = Cursor::new(payload);
        let totals =
            Totals { lost: cursor.fixed64()?, wall_ns: cursor.fixed64()?, kernel_faults: cursor.fixed64()? };
        let events = cursor.fixed64()?;
        let clock = match cursor.byte()? {
            0 => Clock::Monotonic,
            _ => return Err(Malformed),
        };
        let tier = match cursor.byte()? {
            0 => Tier::Privileged,
            1 => Tier::User,
            _ => return Err(Malformed),
        };
        let thp_disabled = match cursor.byte()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed),
        };
        let faults = FaultKinds::from_bits(cursor.byte()?)?;
        let page_size = cursor.varint32()?;
        let cpus = cursor.varint32()?;
        let ring_bytes = cursor.varint()?;
        let kernel = cursor.string()?;
        let program = Program { name: cursor.string()?, version: cursor.string()? };
        let arguments = cursor.varint()?;
        if arguments > ARGUMENTS_MAX {
            return Err(Malformed);
        }
        let command = (0..arguments).map(|_| cursor.string()).collect::<Result<Vec<_>, _>>()?;
        let limits = match version {
            1 => None,
            _ => match cursor.byte()? {
                0 => None,
                1 => Some(Limits::decode(&mut cursor)?),
                _ => return Err(Malformed),
            },
        };
        let attached = match version {
            1 | 2 => false,
            _ => match cursor.byte()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed),
            },
        };
        let cpu = if version < 4 { String::new() } else { cursor.string()? };
        if !cursor.is_empty() || !page_size.is_power_of_two() {
            return Err(Malformed);
        }
        Ok(Header {
            version,
            clock,
            page_size,
            kernel,
            cpus,
            cpu,
            command,
            program,
            tier,
            thp_disabled,
            faults,
            ring_bytes,
            limits,
            attached,
            totals,
            events,
        })
    }
}
