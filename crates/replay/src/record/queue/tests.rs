use super::*;

fn draft(tid: u32) -> Draft {
    Draft { pid: 1, tid, kind: DraftKind::Event(EventKind::ThreadExit) }
}

fn drain(queue: &mut Queue, horizon: u64) -> Vec<u32> {
    std::iter::from_fn(|| queue.pop(horizon)).map(|(_, draft)| draft.tid).collect()
}

#[test]
fn a_hold_keeps_back_what_is_behind_it_only() {
    let mut queue = Queue::default();
    queue.put((30, 3, 0), draft(3));
    queue.put((10, 1, 0), draft(1));
    queue.hold((20, 2, 0));
    assert_eq!(drain(&mut queue, 100), [1]);
    queue.put((20, 2, 0), draft(2));
    assert!(drain(&mut queue, 100).is_empty());
    queue.release((20, 2, 0));
    assert_eq!(drain(&mut queue, 25), [2]);
    assert_eq!(drain(&mut queue, 100), [3]);
}

#[test]
fn an_endless_hold_is_broken_when_too_much_waits() {
    let mut queue = Queue::default();
    queue.hold((0, 0, 0));
    for sequence in 0..MOST_WAITING as u64 {
        queue.put((1, sequence, 0), draft(1));
    }
    assert!(queue.pop(1).is_none());
    queue.put((1, u64::MAX, 0), draft(1));
    assert!(queue.pop(1).is_some());
}
