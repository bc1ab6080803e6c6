//! A program that a recording attaches to. It is this test binary itself, asked to by a variable, and does what files in
//! its directory tell it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memmap2::{Advice, MmapMut};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// Name of the test below.
const TEST: &str = "attach_script::the_script_itself";

pub(crate) const PAGE: u64 = 4096;

/// Pages of its first mapping. The even ones are written at the start.
pub(crate) const PAGES: u64 = 64;

/// Pages that it writes, and forbids to write then; and pages that it only reads.
pub(crate) const OTHERS: u64 = 4;

/// How the script goes about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Manner {
    /// It uses memory only when it is told to.
    Calm,
    /// Threads and children of it use memory all the time.
    Busy,
}

/// The script, running in a directory.
pub(crate) struct Script {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The addresses of the mapping, of the pages that are written no more, and of those that are read.
    pub(crate) at: [u64; 3],
}

impl Script {
    /// Starts it.
    pub(crate) fn start(directory: &Path, manner: Manner) -> Script {
        let mut script = Command::new(std::env::current_exe().expect("this test has a path"));
        script.args(["--exact", TEST, "--nocapture"]).current_dir(directory);
        script.env("QUIRE_ATTACH_SCRIPT", format!("{manner:?}"));
        script.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = script.spawn().expect("the script starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut script = Script { child, output, at: [0; 3] };
        let ready = script.line("READY");
        let numbers: Vec<u64> = ready.split(' ').map(|number| number.parse().expect("a number")).collect();
        script.at = numbers.try_into().expect("three addresses");
        script
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The rest of the next line that contains this word.
    pub(crate) fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("the output is readable");
            assert!(read > 0, "the script ended before {word}");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Tells it to end; it must have done all its work undisturbed.
    pub(crate) fn end(&mut self, directory: &Path, touched: bool) {
        std::fs::write(directory.join("end"), "").expect("the directory is ours");
        let sum = if touched { PAGES } else { PAGES / 2 };
        assert_eq!(self.line("SUM"), sum.to_string());
        assert!(self.child.wait().expect("it is ours").success());
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // Only a test that failed leaves it running, with its children.
        let _ = nix::sys::signal::killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pages(count: u64) -> MmapMut {
    let memory = MmapMut::map_anon((count * PAGE) as usize).expect("memory");
    memory.advise(Advice::NoHugePage).expect("a mapping of pages");
    memory
}

#[test]
fn the_script_itself() {
    // Only a recording asks for it; the test that records checks what it does.
    match std::env::var("QUIRE_ATTACH_SCRIPT").as_deref() {
        Ok("Busy") => work(true),
        Ok(_) => work(false),
        Err(_) => {}
    }
}

fn work(busy: bool) {
    // Other tests change the folio sizes of the machine, and pages that it does not touch would be present.
    nix::sys::prctl::set_thp_disable(true).expect("any process may");
    let (mut memory, mut closed, read) = (pages(PAGES), pages(OTHERS), pages(OTHERS));
    memory.iter_mut().step_by(2 * PAGE as usize).for_each(|byte| *byte = 1);
    closed.iter_mut().step_by(PAGE as usize).for_each(|byte| *byte = 1);
    let closed = closed.make_read_only().expect("a protection");
    let zeroes = read.iter().step_by(PAGE as usize).filter(|byte| **byte == 0).count();
    assert_eq!(zeroes as u64, OTHERS);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if busy {
            for _ in 0..3 {
                scope.spawn(|| churn(&end));
            }
        }
        println!("READY {} {} {}", memory.as_ptr() as u64, closed.as_ptr() as u64, read.as_ptr() as u64);
        let mut is_touched = false;
        while !Path::new("end").exists() {
            if !is_touched && Path::new("touch").exists() {
                memory.iter_mut().skip(PAGE as usize).step_by(2 * PAGE as usize).for_each(|byte| *byte = 1);
                println!("TOUCHED");
                is_touched = true;
            }
            if busy {
                assert!(Command::new("true").status().expect("a child").success());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        end.store(true, Ordering::Release);
    });
    println!("SUM {}", memory.iter().step_by(PAGE as usize).map(|byte| u64::from(*byte)).sum::<u64>());
}

/// Maps, writes and unmaps in turn.
fn churn(end: &AtomicBool) {
    while !end.load(Ordering::Acquire) {
        let mut memory = pages(8);
        memory.iter_mut().step_by(PAGE as usize).for_each(|byte| *byte = 1);
        drop(memory);
        std::thread::sleep(Duration::from_micros(200));
    }
}
