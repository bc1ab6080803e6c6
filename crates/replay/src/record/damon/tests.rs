use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::MutexGuard;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use perf_event_open_sys::bindings::{PERF_RECORD_LOST, PERF_RECORD_SAMPLE};
use tempfile::TempDir;

use super::kdamond::Kdamond;
use super::reports::{Fields, Gathered};
use super::targets::Targets;
use crate::host::thp::selected;
use crate::record::tracefs::Field;
use crate::settings::{Left, Places, one_at_a_time, put_back_left};
use crate::trace::Region;

/// A copy of DAMON's files, as a kernel has them that DAMON does nothing on.
struct Copy {
    places: Places,
    _directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

fn copy() -> Copy {
    let alone = one_at_a_time();
    let directory = TempDir::new().unwrap();
    let places = Places::under(directory.path().to_owned());
    fs::create_dir_all(&places.state).unwrap();
    fs::create_dir_all(&places.kdamonds).unwrap();
    fs::write(places.kdamonds.join("nr_kdamonds"), "0\n").unwrap();
    Copy { places, _directory: directory, _alone: alone }
}

impl Copy {
    fn number(&self) -> String {
        selected(&self.places.kdamonds.join("nr_kdamonds")).unwrap()
    }

    fn state(&self) -> String {
        selected(&self.places.kdamonds.join("0/state")).unwrap()
    }
}

/// The kernel's side, played by a thread that has the name of DAMON's: it makes the files that a write brings, and answers. `log`
/// has what was written, in order.
struct Kernel {
    asks: Sender<(std::path::PathBuf, String, Sender<io::Result<()>>)>,
    log: RefCell<Vec<String>>,
}

impl Kernel {
    fn with(operations: &'static str) -> Self {
        let (asks, asked) = mpsc::channel::<(std::path::PathBuf, String, Sender<io::Result<()>>)>();
        let serve = move || {
            let own = fs::read_link("/proc/thread-self").unwrap();
            let tid = own.file_name().unwrap().to_str().unwrap().to_owned();
            for (path, value, answer) in asked {
                let _ = answer.send(Self::take(&path, &value, operations, &tid));
            }
        };
        thread::Builder::new().name("kdamond.0".to_owned()).spawn(serve).unwrap();
        Self { asks, log: RefCell::default() }
    }

    /// Of another directory or file than the kernel has by now, writing fails.
    fn take(path: &Path, value: &str, operations: &str, tid: &str) -> io::Result<()> {
        if !path.exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let beside = path.parent().unwrap();
        let make = |name: &str, value: &str| {
            let file = beside.join(name);
            fs::create_dir_all(file.parent().unwrap())?;
            fs::write(file, format!("{value}\n"))
        };
        match path.file_name().and_then(|name| name.to_str()).unwrap() {
            "nr_contexts" => {
                make("0/avail_operations", &operations.replace(' ', "\n"))?;
                make("0/operations", "")?;
                for name in ["intervals/sample_us", "intervals/aggr_us", "intervals/update_us"] {
                    make(&format!("0/monitoring_attrs/{name}"), "1")?;
                }
                make("0/monitoring_attrs/nr_regions/min", "10")?;
                make("0/monitoring_attrs/nr_regions/max", "1000")?;
                make("0/targets/nr_targets", "0")?;
            }
            "nr_targets" => {
                for target in 0..value.parse::<usize>().unwrap() {
                    make(&format!("{target}/pid_target"), "0")?;
                }
            }
            "state" => make("pid", if value == "on" { tid } else { "-1" })?,
            _ => {}
        }
        fs::write(path, format!("{value}\n"))
    }

    /// The write of [`Kdamond::claim`], below the directory of all threads.
    fn write<'a>(&'a self, places: &'a Places) -> impl Fn(&Path, &str) -> io::Result<()> + 'a {
        let first = places.kdamonds.join("0");
        // The real one makes these when the number is written.
        fs::create_dir_all(first.join("contexts")).unwrap();
        for (name, value) in [("state", "off"), ("pid", "-1"), ("contexts/nr_contexts", "0")] {
            fs::write(first.join(name), format!("{value}\n")).unwrap();
        }
        move |path, value| {
            let name = path.strip_prefix(&places.kdamonds).unwrap().to_str().unwrap();
            self.log.borrow_mut().push(format!("{name} {value}"));
            let (answer, answered) = mpsc::channel();
            self.asks.send((path.to_owned(), value.to_owned(), answer)).unwrap();
            answered.recv().unwrap()
        }
    }
}

#[test]
fn the_thread_is_set_up_started_and_put_back() {
    let copy = copy();
    let kernel = Kernel::with("vaddr fvaddr paddr");
    let kdamond = Kdamond::claim(&copy.places, kernel.write(&copy.places)).unwrap();
    assert_eq!((copy.number().as_str(), kdamond.is_on()), ("1", false));
    let thread = kdamond.start(&[41, 42]).unwrap();
    assert!(kdamond.is_on() && thread > 0);
    kdamond.stop();
    assert!(!kdamond.is_on());
    let expected = [
        "contexts/nr_contexts 1",
        "contexts/0/operations vaddr",
        "contexts/0/monitoring_attrs/intervals/sample_us 5000",
        "contexts/0/monitoring_attrs/intervals/aggr_us 100000",
        "contexts/0/monitoring_attrs/intervals/update_us 500000",
        "contexts/0/monitoring_attrs/nr_regions/min 50",
        "contexts/0/monitoring_attrs/nr_regions/max 1000",
        "contexts/0/targets/nr_targets 2",
        "contexts/0/targets/0/pid_target 41",
        "contexts/0/targets/1/pid_target 42",
        "state on",
        "state off",
    ];
    assert_eq!(*kernel.log.borrow(), expected.map(|line| format!("0/{line}")));
    assert!(copy.places.journal().exists(), "a killed run leaves a journal");
    drop(kdamond);
    assert_eq!(copy.number(), "0");
    assert!(!copy.places.journal().exists());
}

#[test]
fn a_thread_that_a_killed_run_left_is_stopped_before_its_number_goes_back() {
    let copy = copy();
    let kernel = Kernel::with("vaddr");
    let kdamond = Kdamond::claim(&copy.places, kernel.write(&copy.places)).unwrap();
    kdamond.start(&[41]).unwrap();
    // The state after a kill: the journal, and a thread that runs.
    let journal = fs::read(copy.places.journal()).unwrap();
    drop(kdamond);
    let after_a_kill = || {
        fs::write(copy.places.journal(), &journal).unwrap();
        fs::write(copy.places.kdamonds.join("nr_kdamonds"), "1\n").unwrap();
        fs::write(copy.places.kdamonds.join("0/state"), "on\n").unwrap();
    };
    after_a_kill();
    assert!(matches!(put_back_left(&copy.places), Ok(Left::PutBack(told)) if told.len() == 2));
    assert_eq!((copy.number(), copy.state()), ("0".to_owned(), "off".to_owned()));
    // A recording that wants DAMON next does the same, and then has it.
    after_a_kill();
    let next = Kdamond::claim(&copy.places, kernel.write(&copy.places)).unwrap();
    assert_eq!(copy.number(), "1");
    drop(next);
    assert_eq!(copy.number(), "0");
    // Two threads are not what the killed run had made: they stay, and run on.
    after_a_kill();
    fs::write(copy.places.kdamonds.join("nr_kdamonds"), "2\n").unwrap();
    assert!(matches!(put_back_left(&copy.places), Ok(Left::PutBack(_))));
    assert_eq!((copy.number(), copy.state()), ("2".to_owned(), "on".to_owned()));
}

#[test]
fn the_reason_is_said_where_damon_cannot_be_had() {
    let copy = copy();
    let claim = |kernel: &Kernel| {
        let claimed = Kdamond::claim(&copy.places, kernel.write(&copy.places));
        claimed.map(|_| ()).unwrap_err()
    };
    let said = claim(&Kernel::with("paddr"));
    assert!(said.contains("CONFIG_DAMON_VADDR") && said.ends_with("only paddr"), "{said}");
    assert_eq!(copy.number(), "0", "it is given back");
    // The thread of another program is neither stopped nor counted on.
    fs::write(copy.places.kdamonds.join("nr_kdamonds"), "1\n").unwrap();
    let kernel = Kernel::with("vaddr");
    assert_eq!(claim(&kernel), "DAMON is in use (nr_kdamonds is 1)");
    assert!(kernel.log.borrow().is_empty());
    assert!(!copy.places.journal().exists() && copy.number() == "1");
    fs::write(copy.places.kdamonds.join("nr_kdamonds"), "0\n").unwrap();
    let lock = fs::File::create(copy.places.state.join("quire-settings.lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(claim(&Kernel::with("vaddr")), "another run has changed settings of the kernel");
    drop(lock);
    fs::remove_dir_all(&copy.places.kdamonds).unwrap();
    assert!(claim(&Kernel::with("vaddr")).contains("no DAMON"));
}

#[test]
fn a_thread_in_another_namespace_is_not_taken_for_a_process_of_this_one() {
    let copy = copy();
    let kernel = Kernel::with("vaddr");
    let write = kernel.write(&copy.places);
    // The number that the kernel tells is that of this test.
    let own = |path: &Path, value: &str| {
        write(path, value)?;
        if value == "on" {
            fs::write(path.with_file_name("pid"), std::process::id().to_string())?;
        }
        Ok(())
    };
    let kdamond = Kdamond::claim(&copy.places, own).unwrap();
    assert_eq!(kdamond.start(&[41]).unwrap_err(), "DAMON's thread is not seen from this PID namespace");
}

/// The fields of Linux 6.12.
const FIELDS: Fields = {
    const fn field(offset: usize, size: usize) -> Field {
        Field { offset, size }
    }
    Fields {
        target: field(8, 8),
        number: field(16, 4),
        start: field(24, 8),
        end: field(32, 8),
        accessed: field(40, 4),
    }
};

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = (8 + body.len()) as u16;
    [&kind.to_le_bytes()[..], &[0; 2], &size.to_le_bytes(), body].concat()
}

/// A report of a region at a time.
fn report(time: u64, (target, number): (u64, u32), range: [u64; 2], accessed: u32) -> Vec<u8> {
    let mut data = [0; 48];
    data[8..16].copy_from_slice(&target.to_le_bytes());
    data[16..20].copy_from_slice(&number.to_le_bytes());
    data[24..32].copy_from_slice(&range[0].to_le_bytes());
    data[32..40].copy_from_slice(&range[1].to_le_bytes());
    data[40..44].copy_from_slice(&accessed.to_le_bytes());
    let head = [7u64.to_le_bytes(), 9u64.to_le_bytes(), time.to_le_bytes()].concat();
    record(PERF_RECORD_SAMPLE, &[&head[..], &48u32.to_le_bytes(), &data].concat())
}

#[test]
fn regions_are_gathered_until_all_of_a_target_are_there() {
    let mut gathered = Gathered::new(FIELDS);
    assert_eq!(gathered.record(&report(5, (0, 2), [0x1000, 0x3000], 20)), None);
    let whole = gathered.record(&report(5, (0, 2), [0x3000, 0x9000], 1)).unwrap();
    let regions = [(0x1000, 0x2000, 20), (0x3000, 0x6000, 1)];
    assert_eq!((whole.time_ns, whole.target), (5, 0));
    assert_eq!(whole.regions, regions.map(|(start, len, accessed)| Region { start, len, accessed }));
    // The second report of target 1 is lost: none of it is told, and the next interval is whole again.
    assert_eq!(gathered.record(&report(6, (1, 2), [0x1000, 0x2000], 3)), None);
    assert_eq!(gathered.record(&report(7, (1, 2), [0x1000, 0x2000], 4)), None);
    let whole = gathered.record(&report(7, (1, 2), [0x2000, 0x3000], 5)).unwrap();
    assert_eq!((whole.time_ns, whole.target, whole.regions[0].accessed), (7, 1, 4));
    // The kernel says that it lost some.
    assert_eq!(gathered.record(&report(8, (0, 2), [0x1000, 0x2000], 3)), None);
    assert_eq!(gathered.record(&record(PERF_RECORD_LOST, &[0; 40])), None);
    assert_eq!(gathered.record(&report(8, (0, 2), [0x2000, 0x3000], 3)), None);
    // Neither a record that is cut nor an empty region is one.
    assert_eq!(gathered.record(&report(9, (0, 1), [0x2000, 0x2000], 3)), None);
    assert_eq!(gathered.record(&report(9, (0, 1), [0x1000, 0x2000], 3)[..40]), None);
}

#[test]
fn the_largest_processes_are_watched_and_newcomers_wait() {
    let start = Instant::now();
    let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
    let resident = |pid: i32| if pid == 99 { 0 } else { pid as u64 };
    let mut targets = Targets::default();
    assert!(targets.look(&[1, 99], at(0), resident).is_empty(), "seen for the first time");
    let wanted = targets.look(&[1, 99], at(1), resident);
    assert_eq!(wanted, [1], "one without memory has ended");
    assert!(targets.is_change_due(&wanted, false, at(1)));
    targets.watched(wanted, at(1));
    assert_eq!((targets.pid(0), targets.pid(1)), (Some(1), None));
    let living: Vec<i32> = (1..=12).collect();
    targets.look(&living, at(2), resident);
    let wanted = targets.look(&living, at(3), resident);
    assert_eq!(wanted, [12, 11, 10, 9, 8, 7, 6, 5]);
    assert!(!targets.is_change_due(&wanted, true, at(3)), "they may end at once");
    assert!(targets.is_change_due(&wanted, true, at(12)));
    targets.watched(wanted, at(12));
    // One that ends changes nothing, and another joins a second after the change before.
    let wanted = targets.look(&living[..11], at(13), resident);
    assert_eq!(wanted, [11, 10, 9, 8, 7, 6, 5, 4]);
    assert!(!targets.is_change_due(&wanted, true, at(13)));
    assert!(targets.is_change_due(&wanted, true, at(22)));
    assert!(!targets.is_change_due(&[], false, at(22)));
}
