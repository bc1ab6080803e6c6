//! Sections and grace periods: a CPU that makes a value unreachable and lets a grace period pass may use it
//! alone (W4).

use loom::sync::Arc;
use loom::thread;

use crate::atomic::Orders::{NotTotal, Relaxed};
use crate::atomic::{AtomicU32, Ordering};
use crate::holds_but_not;
use crate::machine::Cpu;
use crate::sync::Sections;
use crate::watched::Watched;

struct Shared {
    sections: Sections,
    /// Zero once no reader may begin to use the value.
    count: AtomicU32,
    value: Watched,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { sections: Sections::new(), count: AtomicU32::new(1), value: Watched::new() })
}

fn read(shared: &Shared, cpu: &Cpu) {
    let _section = shared.sections.enter(cpu);
    if shared.count.load(Ordering::SeqCst) != 0 {
        shared.value.get();
    }
}

fn change(shared: &Shared, cpu: &Cpu) {
    shared.count.store(0, Ordering::SeqCst);
    shared.sections.wait(cpu);
    shared.value.increment();
}

/// Two readers on CPUs of one slot or of two, and a writer that waits for both.
#[test]
fn a_value_is_exclusive_after_a_grace_period() {
    for cpus in [[0, 1], [0, 2]] {
        holds_but_not(&[Relaxed, NotTotal], move || {
            let shared = shared();
            let readers = cpus.map(|cpu| {
                let shared = shared.clone();
                thread::spawn(move || read(&shared, &Cpu(cpu)))
            });
            change(&shared, &Cpu(1));
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}

/// An earlier grace period switches the current counter while a reader uses it.
#[test]
fn a_reader_that_was_overtaken_is_waited_for() {
    holds_but_not(&[Relaxed], || {
        let shared = shared();
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || read(&shared, &Cpu(0)))
        };
        shared.sections.wait(&Cpu(1));
        change(&shared, &Cpu(1));
        reader.join().unwrap();
    });
}
