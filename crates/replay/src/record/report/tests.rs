use std::os::fd::OwnedFd;

use nix::unistd::pipe;

use super::*;

fn told(reports: &[Report]) -> Vec<String> {
    let (read, write): (OwnedFd, OwnedFd) = pipe().expect("a pipe");
    let mut teller = Reporter::new(write);
    reports.iter().for_each(|report| teller.tell(report));
    drop(teller);
    let mut listener = Listener::new(read);
    let mut heard = Vec::new();
    while listener.listen(|report| heard.push(format!("{report:?}"))).expect("they are well formed") {}
    heard
}

#[test]
fn reports_arrive_as_they_were_told() {
    let raw = |kind| Report::Raw(Raw { time_ns: u64::MAX, pid: 0, tid: 7, kind });
    let reports = [
        Report::Ready(Pid::from_raw(17)),
        Report::Refused(Errno::EPERM),
        raw(RawKind::Enter { number: 192, call: Call::Mmap, args: [1, 2, 3, 4, u64::MAX, 6] }),
        raw(RawKind::Leave { number: 9, result: -12 }),
        raw(RawKind::NewTask { flags: 0x100 }),
        raw(RawKind::Dropped { device: 1 << 32 | 5, inode: 77 }),
        Report::Unprivileged { name: *b"fifteen_letters\0" },
        Report::Ended { exit_code: 137, faults: 5 },
        Report::AllEnded { faults: 6 },
    ];
    let expected: Vec<String> = reports.iter().map(|report| format!("{report:?}")).collect();
    assert_eq!(told(&reports), expected);
}

#[test]
fn a_recorder_that_has_gone_is_told_nothing() {
    let (read, write) = pipe().expect("a pipe");
    drop(read);
    let mut teller = Reporter::new(write);
    assert!(teller.is_heard());
    teller.tell(&Report::AllEnded { faults: 0 });
    assert!(!teller.is_heard());
}
