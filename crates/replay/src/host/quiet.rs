//! How quiet the machine was while something ran on it: CPU time that other processes used, and that the host of
//! a virtual machine gave to others ("steal").

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use procfs::{CurrentSI, KernelStats};

/// Shares of all CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Used by processes that this one did not start.
    pub others: f64,
    /// Given by the host to other machines.
    pub stolen: f64,
}

impl Shares {
    /// Above this, figures say more of the others than of what was measured.
    pub const QUIET: f64 = 0.03;

    /// Whether nothing else ran to speak of.
    pub fn are_quiet(&self) -> bool {
        self.others <= Self::QUIET && self.stolen <= Self::QUIET
    }
}

/// Begins when it is made.
pub struct Watch {
    clock: Instant,
    before: Times,
}

impl Watch {
    /// Begins; `None` without a readable `/proc/stat`.
    pub fn begin() -> Option<Watch> {
        Some(Watch { clock: Instant::now(), before: Times::now()? })
    }

    /// The shares since the beginning.
    pub fn shares(&self) -> Option<Shares> {
        let now = Times::now()?;
        Some(now.since(&self.before, self.clock.elapsed().as_secs_f64() * now.cpus))
    }
}

/// Seconds of CPU time since the system or the process began.
#[derive(Clone, Copy, Debug)]
struct Times {
    busy: f64,
    stolen: f64,
    own: f64,
    cpus: f64,
    /// What the first two are multiples of.
    tick: f64,
}

impl Times {
    fn now() -> Option<Times> {
        let stats = KernelStats::current().ok()?;
        let (stat, cpus) = (stats.total, stats.cpu_time.len() as f64);
        let ticks = [stat.user, stat.nice, stat.system, stat.irq.unwrap_or(0), stat.softirq.unwrap_or(0)];
        let second = procfs::ticks_per_second() as f64;
        let own = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].into_iter().map(|who| {
            let usage = getrusage(who).ok()?;
            Some((usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6)
        });
        Some(Times {
            busy: ticks.iter().sum::<u64>() as f64 / second,
            stolen: stat.steal.unwrap_or(0) as f64 / second,
            own: own.sum::<Option<f64>>()?,
            cpus,
            tick: 1.0 / second,
        })
    }

    fn since(&self, before: &Times, all: f64) -> Shares {
        let own = self.own - before.own;
        // The kernel counts what is busy in ticks: at either end one of each CPU may be more than was used since. An experiment of
        // 50 ms seemed to have others beside it. So a share may come out below zero.
        let grain = 2.0 * self.cpus * self.tick;
        let share = |seconds: f64| (seconds / all).clamp(0.0, 1.0);
        let others = share(self.busy - before.busy - own - grain);
        Shares { others, stolen: share(self.stolen - before.stolen) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_uses_is_not_of_others() {
        let before = Times { busy: 100.0, stolen: 5.0, own: 10.0, cpus: 2.0, tick: 0.0 };
        let after = Times { busy: 118.0, stolen: 6.0, own: 25.0, cpus: 2.0, tick: 0.0 };
        let shares = after.since(&before, 20.0);
        assert_eq!((shares.others, shares.stolen), (0.15, 0.05));
        assert!(!shares.are_quiet());
        let less = Times { own: 29.0, stolen: 5.0, ..after };
        assert!(less.since(&before, 20.0).are_quiet());
    }

    #[test]
    fn a_tick_of_each_processor_is_no_other_program() {
        let before = Times { busy: 0.0, stolen: 0.0, own: 0.0, cpus: 2.0, tick: 0.01 };
        let short = Times { busy: 0.09, own: 0.05, ..before };
        assert!(short.since(&before, 0.1).are_quiet());
        let more = Times { busy: 0.15, ..short };
        assert!(!more.since(&before, 0.1).are_quiet());
    }

    #[test]
    fn the_kernels_times_can_be_read() {
        let times = Times::now().expect("Linux has the file");
        assert!(times.busy > 0.0 && times.cpus >= 1.0 && times.own < times.busy, "{times:?}");
    }
}
