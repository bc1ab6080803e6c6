use std::sync::mpsc;

use nix::unistd::gettid;

use super::*;

#[test]
fn a_name_may_look_like_a_state() {
    let at = |state| parse(&format!("7 (a) R (b) {state} 1 7 7"), "30 20 4\n");
    let look = |state| Some(Sample { state, ran_ns: 30, slices: 4 });
    assert_eq!(at("R"), look(State::Ready));
    assert_eq!((at("S"), at("D")), (look(State::Sleeps), look(State::Sleeps)));
    assert_eq!((at("t"), at("Z")), (look(State::Stopped), look(State::Stopped)));
    assert_eq!(parse("7 (a) R 1", "30"), None);
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
