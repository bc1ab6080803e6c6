//! The summary of a recording.

mod json;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::options::Interface;
use super::overhead::Overhead;
use super::referenced::Referenced;
use crate::trace::{Access, Call, Event, EventKind, ForkKind, MapCause, Tier, Totals, Written};

/// What a recording contains.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// All events.
    pub events: u64,
    /// Faults, and how many of them were of which sort.
    pub faults: Faults,
    /// Calls and their time in nanoseconds.
    pub calls: BTreeMap<Call, (u64, u64)>,
    /// Processes made, those that shared their parent's memory among them.
    pub forks: u64,
    /// Processes that shared their parent's memory.
    pub vforks: u64,
    /// Programs started.
    pub execs: u64,
    /// Threads made beside the first of each process.
    pub threads: u64,
    /// Ranges that calls populated, and their bytes.
    pub populated: (u64, u64),
    /// Mappings that were there before the recording attached, and the bytes of their present pages.
    pub before: (u64, u64),
    /// What DAMON told, once for each interval and process.
    pub accesses: u64,
    /// Records that are missing.
    pub lost: u64,
    /// Time of the first and the last event.
    pub span_ns: Option<(u64, u64)>,
}

/// Numbers of faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// All.
    pub all: u64,
    /// From kernel code that works for the program.
    pub kernel_mode: u64,
    /// Writes.
    pub write: u64,
    /// Of a present entry.
    pub protection: u64,
    /// That waited for a device.
    pub major: u64,
    /// That were resolved, as far as the tier can tell.
    pub resolved: u64,
    /// Ranges mapped around a file fault.
    pub around: u64,
}

impl Summary {
    pub(super) fn count(&mut self, event: &Event) {
        self.events += 1;
        let first = self.span_ns.map_or(event.time_ns, |(first, _)| first);
        self.span_ns = Some((first, event.time_ns));
        match &event.kind {
            EventKind::Map { cause: MapCause::Before, .. } => self.before.0 += 1,
            EventKind::Populate { len, cause, .. } if cause.is_before() => self.before.1 += len,
            EventKind::Exec { .. } => self.execs += 1,
            EventKind::Fork { kind, .. } => {
                self.forks += 1;
                self.vforks += u64::from(*kind == ForkKind::SharedMemory);
            }
            EventKind::ThreadStart { .. } => self.threads += 1,
            EventKind::Accesses(_) => self.accesses += 1,
            EventKind::Lost { records } => self.lost += records,
            EventKind::Syscall(call) => {
                let (count, time) = self.calls.entry(call.call).or_default();
                *count += 1;
                *time += call.duration_ns;
            }
            EventKind::Fault { access, protection, kernel_mode, major, .. } => {
                let faults = &mut self.faults;
                faults.all += 1;
                faults.kernel_mode += u64::from(*kernel_mode);
                faults.write += u64::from(*access == Access::Write);
                faults.protection += u64::from(*protection);
                faults.major += u64::from(*major);
                faults.resolved += u64::from(!event.kind.is_unresolved());
            }
            EventKind::FaultAround { .. } => self.faults.around += 1,
            EventKind::Populate { len, .. } => {
                self.populated.0 += 1;
                self.populated.1 += len;
            }
            _ => {}
        }
    }

    /// From the first to the last event.
    pub fn wall_ns(&self) -> u64 {
        self.span_ns.map_or(0, |(first, last)| last - first)
    }
}

/// What attaching did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached {
    /// Processes that were there before.
    pub processes: u64,
    /// Mappings and bytes of present pages that were there before.
    pub before: (u64, u64),
    /// The longest time for which a process was stopped.
    pub stopped: Duration,
}

/// A finished recording.
#[derive(Debug)]
pub struct Recorded {
    /// The program's exit code, or 128 and the signal, as a shell reports it.
    pub exit_code: u8,
    /// The tier of the recording.
    pub tier: Tier,
    /// The trace, which has fewer events than the summary if the disk was full.
    pub written: Written,
    /// Its contents.
    pub summary: Summary,
    /// The counts at the program's end.
    pub totals: Totals,
    /// Size in bytes of the largest ring, if those of the start became too small.
    pub grown_to: Option<usize>,
    /// The signal that asked the recorder to end, if one did before the program had ended.
    pub asked_to_end: Option<Signal>,
    /// Of a recording that attached to what ran.
    pub attached: Option<Attached>,
    /// What told faults and calls, in the privileged tier.
    pub interface: Option<Interface>,
    /// What the recording cost the program, if that has a bound.
    pub overhead: Option<Overhead>,
    /// What the processes referenced, if that was sampled.
    pub referenced: Option<Referenced>,
    /// Names of programs that ran without the privilege that their files grant.
    pub unprivileged: Vec<String>,
}

impl Recorded {
    /// A recording of which there is no more to say.
    pub(super) fn of(
        exit_code: u8,
        tier: Tier,
        written: Written,
        summary: Summary,
        totals: Totals,
        grown_to: Option<usize>,
    ) -> Self {
        let (asked_to_end, attached, interface, overhead, referenced) = (None, None, None, None, None);
        Self {
            exit_code,
            tier,
            written,
            summary,
            totals,
            grown_to,
            asked_to_end,
            attached,
            interface,
            overhead,
            referenced,
            unprivileged: Vec::new(),
        }
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorded { summary, totals, written, .. } = self;
        let faults = &summary.faults;
        let per_event = written.bytes as f64 / written.events.max(1) as f64;
        writeln!(
            out,
            "{} events in {:.3} s, {} bytes ({per_event:.1} per event)",
            summary.events,
            Duration::from_nanos(totals.wall_ns).as_secs_f64(),
            written.bytes
        )?;
        writeln!(
            out,
            "  processes: {} forked, {} of them sharing memory; {} programs started, {} threads",
            summary.forks,
            summary.vforks,
            summary.execs - self.attached.map_or(0, |attached| attached.processes).min(summary.execs),
            summary.threads
        )?;
        write!(out, "  faults: {}", faults.all)?;
        if self.tier == Tier::Privileged {
            write!(
                out,
                " ({} from kernel mode, {} writes, {} of present pages, {} major, {} not resolved)\n  fault-around: {} ranges",
                faults.kernel_mode,
                faults.write,
                faults.protection,
                faults.major,
                faults.all - faults.resolved,
                faults.around
            )?;
        }
        writeln!(out)?;
        if totals.kernel_faults > 0 {
            let (silent, all) = (totals.kernel_faults.saturating_sub(faults.resolved), totals.kernel_faults);
            writeln!(out, "  faults without an event: {silent} of {all} that the kernel counted")?;
        }
        if summary.populated.0 > 0 {
            writeln!(
                out,
                "  populated by calls: {} ranges, {} bytes",
                summary.populated.0, summary.populated.1
            )?;
        }
        let calls: Vec<String> =
            summary.calls.iter().map(|(call, (count, _))| format!("{} {count}", call.name())).collect();
        write!(out, "  calls: {}", if calls.is_empty() { "none".to_owned() } else { calls.join(", ") })?;
        if !self.unprivileged.is_empty() {
            let names = self.unprivileged.join(", ");
            write!(out, "\n  ran without the privilege of their files: {names}; record as root to keep it")?;
        }
        let accesses =
            (summary.accesses > 0).then(|| format!("  accesses: {} intervals of DAMON", summary.accesses));
        let attached = self.attached.map(|said| said.to_string());
        let source = self.interface.map(|told| format!("  source: {}", told.full_name()));
        let more = [source, accesses, attached, self.overhead.map(|said| said.to_string())];
        for lines in more.iter().flatten() {
            write!(out, "\n{lines}")?;
        }
        if let Some(bytes) = self.grown_to {
            write!(out, "\n  rings grew to {bytes} bytes")?;
        }
        // What was left out on purpose is told with the costs.
        let dropped = self.overhead.map_or(0, |overhead| overhead.dropped);
        let lost = totals.lost.saturating_sub(dropped);
        if lost > 0 {
            write!(out, "\n  LOST: {lost} records of the kernel; record again with a larger --ring")?;
        }
        Ok(())
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attached { processes, before: (mappings, bytes), stopped } = self;
        write!(
            out,
            "  before: {processes} processes, {mappings} mappings, {bytes} bytes present; stopped for {:.1} ms",
            stopped.as_secs_f64() * 1e3
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_were_left_out_on_purpose_are_not_said_to_be_lost() {
        let said = |lost, dropped| {
            let written = Written { bytes: 0, events: 0, cut: None };
            let totals = Totals { lost, ..Totals::default() };
            let mut recorded = Recorded::of(0, Tier::Privileged, written, Summary::default(), totals, None);
            recorded.overhead = Some(Overhead { dropped, ..Overhead::default() });
            recorded.to_string()
        };
        assert!(!said(5, 5).contains("LOST") && said(5, 5).contains("NOT RECORDED: 5"));
        assert!(said(7, 5).contains("LOST: 2 records"));
    }
}
