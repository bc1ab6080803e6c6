//! What does a program pay for its memory on Linux and on Quire's kernel, trap and system call in it?

use crate::bench::code;
use crate::bench::experiment::Experiment;
use crate::bench::goal::Bound::{AtMost, Times};
use crate::bench::goal::{Goal, Over};
use crate::bench::guest;

/// The experiment `guest`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "guest",
    question: "What does the same program pay for its memory on Debian's Linux and on Quire's kernel, in the \
     same emulator?",
    expectation: "quire: a third of Linux in most rows, a twentieth in munmap.",
    baseline: &["linux-6.1"],
    per: "page",
    notes: &[
        "Instructions of the guest, all of them: trap, system call, accounting. QEMU counts them with one CPU; the \
         least of five trials. An iteration of `rep` is one instruction, and caches and TLBs cost nothing.",
        "Of the difference in `touch`, some 350 are the clear itself and say nothing about time: without ERMS, which \
         QEMU has not, Linux stores 8 bytes at a time, and Quire's kernel 32, between XSAVE and XRSTOR.",
        "`single` is to be trusted to 2 %, its parts to 20 %: Linux frees some things later.",
        "`threads` is real time under emulation with four CPUs, and depends on this machine.",
        "`boot` and `memory` are of QEMU's machine `microvm`, whose firmware is short, and all else of `pc`. Their first \
         program is a file of 2 KiB without a library, so that what is in use is the kernel's; until November 2026 it was \
         that of the other rows, which `memory/libc` still has: its file and its pages are 1.3 MiB.",
        "Figures to reach are over Linux 6.1, and over 6.12 where 6.1 has none: it has no anonymous folios of 64 KiB.",
        "Needs qemu-system-x86, gcc with libc6-dev, busybox-static, and apt for Debian's kernels, which are \
         unpacked in the user's cache folder and not installed. It takes three to ten minutes.",
    ],
    own: &["quire"],
    apart: &["linux-6.1-memcg", "linux-6.12", "linux-6.12-memcg"],
    goals: &[
        count("a touched page in 1100 instructions", &["touch"], AtMost(1100.0)),
        count(
            "a touched page that is known to be zero in 600 instructions",
            &["touch/cleared-ahead"],
            AtMost(600.0),
        ),
        of_linux("munmap at most a twentieth of Linux", &["munmap/*"], 20.0),
        of_linux("a page mapped, touched and unmapped in at most a third of Linux", &["single"], 3.0),
        of_linux(
            "fork, one page of a hundred written, exit: in at most half of Linux",
            &["fork/whole-1%"],
            2.0,
        ),
        of_linux(
            "fork, first writes and exit in at most a third of Linux",
            &["fork", "fork/write-all", "fork/exit", "fork/write-1%"],
            3.0,
        ),
        of_linux("mprotect in at most a third of Linux", &["mprotect/*"], 3.0),
        of_linux("mremap in at most a third of Linux", &["mremap/*"], 3.0),
        of_linux("MADV_DONTNEED in at most a third of Linux", &["dontneed/*"], 3.0),
        of_linux("MADV_COLLAPSE in at most a third of Linux", &["collapse"], 3.0),
        of_linux("a fault of a huge page of a pool in at most a third of Linux", &["hugetlb-fault"], 3.0),
        of_linux("a program started by a shell in at most half of Linux", &["shell/*"], 2.0),
        Goal::new("four threads twice as fast as on Linux", "quire", &["threads"], Times(2.0)).over(LINUX),
        Goal::new("one interrupt for each unmapping and CPU", "quire", &["threads/ipis"], AtMost(1.0))
            .metric("interrupts"),
        count("the first program after 50 ms, an instruction being a nanosecond", &["boot"], AtMost(50e6)),
        Goal::new("the first program after 50 ms", "quire", &["boot/time"], AtMost(50e6)),
        Goal::new("under 4 MiB of 1 GiB in use", "quire", &["memory", "memory/libc"], AtMost(4096.0))
            .metric("memory"),
    ],
    file: file!(),
    code: &[code::LIBRARY, &["kernel/src/", "crates/interop/src/", "crates/lab/src/bench/guest/"]],
    run: guest::measure,
    appendix: None,
};

/// Linux 6.1 has no folios of 64 KiB in anonymous memory.
const LINUX: Over = Over::FirstOf(&["linux-6.1", "linux-6.12"]);

const fn count(what: &'static str, cases: &'static [&'static str], bound: crate::bench::goal::Bound) -> Goal {
    Goal::new(what, "quire", cases, bound).metric("instructions")
}

/// At most one part in `parts` of Linux.
const fn of_linux(what: &'static str, cases: &'static [&'static str], parts: f64) -> Goal {
    count(what, cases, AtMost(1.0 / parts)).over(LINUX)
}
