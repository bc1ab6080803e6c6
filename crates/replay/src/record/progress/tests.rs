use std::process::Command;
use std::sync::mpsc;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::gettid;

use super::*;

#[test]
fn a_stopped_program_is_seen_as_such() {
    let mut program = Command::new("sleep").arg("100").spawn().expect("it starts");
    let pid = Pid::from_raw(program.id() as i32);
    kill(pid, Signal::SIGSTOP).expect("it lives");
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("it stops");
    let state = look(pid).map(|sample| sample.state);
    program.kill().expect("it lives");
    program.wait().expect("it ends");
    assert!(state.is_none_or(|state| state == State::Stopped), "{state:?}");
}

#[test]
fn a_thread_that_waits_does_not_get_on_and_one_that_runs_does() {
    let (tell, hear) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            tell.send(gettid()).expect("the test hears");
            let _ = ended.recv();
        });
        let other = hear.recv().expect("the thread tells");
        let Some(mut first) = look(other) else { return eprintln!("not tested: no schedstat here") };
        // Until it has come to its wait.
        while first.state != State::Sleeps {
            first = look(other).expect("it lives");
        }
        let before = look(gettid()).expect("this thread lives");
        assert_eq!(before.state, State::Ready);
        let mut now = before;
        while now.ran_ns == before.ran_ns {
            now = look(gettid()).expect("this thread lives");
        }
        assert!(now.slices >= before.slices);
        assert_eq!(look(other), Some(first));
        drop(end);
    });
}
