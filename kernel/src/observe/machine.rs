//! The machine as a whole: `/proc/stat`, `uptime`, `version` and the like.

use core::fmt::{self, Write};

use super::List;
use super::settings::VERSION;
use super::stat::CpuTimes;
use crate::boot::command;
use crate::cpu::area;
use crate::cpu::interrupts::{self, Kind};
use crate::task::{run_queue, table};
use crate::time;

const SECOND: u64 = 1_000_000_000;

pub(super) fn add(list: &mut List) {
    list.text("/proc/version", |out| {
        writeln!(out, "{} version {} ({})", VERSION.system, VERSION.release, VERSION.build)
    });
    list.text("/proc/cmdline", command_line);
    list.text("/proc/uptime", uptime);
    list.text("/proc/loadavg", loadavg);
    list.text("/proc/stat", stat);
    list.text("/proc/interrupts", interrupts);
}

/// Words of the program need not be text.
fn command_line(out: &mut dyn Write) -> fmt::Result {
    for chunk in command::line().utf8_chunks() {
        write!(out, "{}", chunk.valid())?;
        chunk.invalid().iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))?;
    }
    writeln!(out)
}

/// Seconds since the start, and the sum of the seconds in which CPUs were idle.
fn uptime(out: &mut dyn Write) -> fmt::Result {
    let hundredths = time::now_ns() / (SECOND / 100);
    let idle: u64 = (0..area::count()).map(|cpu| CpuTimes::of(cpu).idle).sum();
    let seconds = |hundredths: u64| (hundredths / 100, hundredths % 100);
    let ((whole, part), (idle, idle_part)) = (seconds(hundredths), seconds(idle));
    writeln!(out, "{whole}.{part:02} {idle}.{idle_part:02}")
}

/// Tasks that run or could run.
fn runnable() -> usize {
    let busy = (0..area::count() as u32).filter(|cpu| !area::of(quire::cpu::CpuId(*cpu)).is_idle());
    run_queue::waiting() + busy.count()
}

/// The averages are not kept. What follows is exact: tasks that can run, all tasks, the last number given.
fn loadavg(out: &mut dyn Write) -> fmt::Result {
    let tasks = table::task_count();
    writeln!(out, "0.00 0.00 0.00 {}/{tasks} {}", runnable(), table::last_id())
}

/// How often each CPU was interrupted, and by what.
fn interrupts(out: &mut dyn Write) -> fmt::Result {
    out.write_str("           ")?;
    (0..area::count()).try_for_each(|cpu| write!(out, "{:<11}", alloc::format!("CPU{cpu}")))?;
    for (vector, what) in interrupts::kinds() {
        let (name, text) = match what {
            Kind::Device(index) => (alloc::format!("{index}"), "device"),
            Kind::Timer => ("LOC".into(), "Local timer interrupts"),
            Kind::Reschedule => ("RES".into(), "Rescheduling interrupts"),
            Kind::Flush => ("TLB".into(), "TLB shootdowns"),
        };
        write!(out, "\n{name:>4}:")?;
        (0..area::count()).try_for_each(|cpu| write!(out, " {:>10}", interrupts::count(cpu, vector)))?;
        write!(out, "  {text}")?;
    }
    out.write_char('\n')
}

fn stat(out: &mut dyn Write) -> fmt::Result {
    let times = |cpu: usize| CpuTimes::of(cpu);
    let all = (0..area::count()).map(times).fold(CpuTimes::default(), |sum, cpu| sum + cpu);
    writeln!(out, "cpu  {all}")?;
    (0..area::count()).try_for_each(|cpu| writeln!(out, "cpu{cpu} {}", times(cpu)))?;
    let started = (time::realtime_ns() - time::now_ns()) / SECOND;
    writeln!(out, "btime {started}\nprocs_running {}\nprocs_blocked 0", runnable())
}
