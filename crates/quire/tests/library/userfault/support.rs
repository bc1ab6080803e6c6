//! Programs that fault beside handlers that answer, and a watchdog.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use hosted::{Hosted, HostedConfig};
use quire::addr::{VirtAddr, VirtRange};
use quire::error::UserfaultError;
use quire::limits::FRAME_SIZE;
use quire::vm::{
    AnswerMode, Backing, File, MapRequest, PageWord, Sharing, Userfault, UserfaultChanges, UserfaultEvent,
    UserfaultFault, UserfaultModes,
};

use crate::userfault::world::{MIB, Manager, Space, anonymous, with_manager};

pub(crate) const PAGE: u64 = FRAME_SIZE;
pub(crate) const BASE: u64 = 0x4000_0000;
pub(crate) const MISSING: UserfaultModes = UserfaultModes::MISSING;
pub(crate) const MINOR: UserfaultModes = UserfaultModes::MINOR;
pub(crate) const PROTECT: UserfaultModes = UserfaultModes::WRITE_PROTECT;
pub(crate) const WAKE: AnswerMode = AnswerMode::WAKE;

pub(crate) type Handler<'m> = Userfault<'m, Hosted>;

/// Ends the process with a message if `action` takes too long: a thread that waits for ever can only be
/// detected from outside.
pub(crate) fn watched(name: &str, seconds: u64, action: impl FnOnce()) {
    watched_boxed(name, seconds, Box::new(action));
}

/// [`watched`], compiled once for all tests.
fn watched_boxed(name: &str, seconds: u64, action: Box<dyn FnOnce() + '_>) {
    let (done, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
                // Past the test's capture, which an abort discards.
                let text = format!(
                    "{name}: a thread still waits after {seconds} s: a fault or a wake-up was lost\n"
                );
                let _said = std::io::stderr().write_all(text.as_bytes());
                std::process::abort();
            }
        });
        let _done = done;
        action();
    });
}

/// A machine of 64 MiB and so many CPUs, with a watchdog.
pub(crate) fn machine_of(name: &str, cpus: usize, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    watched(name, 60, || with_manager(HostedConfig::new(64 * MIB).with_cpus(cpus), test));
}

/// Runs `program` on CPU 0 in the address space, and its handler on CPU 1, with `answer` for each event,
/// until the program is done.
pub(crate) fn program_and_handler(
    machine: &Hosted,
    mm: &Space<'_>,
    handler: &Handler<'_>,
    program: impl Fn() + Sync,
    answer: impl Fn(UserfaultEvent) + Sync,
) {
    machine.spawn_cpus(2, |cpu| {
        if cpu.0 == 0 {
            let _ends = OnDrop(|| handler.close());
            mm.switch_in();
            program();
            mm.switch_out();
            return;
        }
        while let Some(event) = handler.wait_event() {
            answer(event.keep());
        }
    });
}

/// Calls a function when it is dropped, also by a panic.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

pub(crate) fn fault_of(event: UserfaultEvent) -> UserfaultFault {
    match event {
        UserfaultEvent::Fault(fault) => fault,
        other => panic!("{other:?} is no fault"),
    }
}

/// A handler of faults alone.
pub(crate) fn handler<'m>(manager: &'m Manager<'_>) -> Handler<'m> {
    manager.userfault(UserfaultChanges::NONE).expect("few handlers")
}

/// Copies a page every word of which is `word`.
pub(crate) fn copy(mm: &Space<'_>, addr: u64, word: u64, mode: AnswerMode) -> Result<u64, UserfaultError> {
    let fill = |offset: u64, bytes: &mut [u8; FRAME_SIZE as usize]| {
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&(word + offset / PAGE).to_le_bytes());
        }
    };
    mm.userfault_copy(VirtAddr(addr), PAGE, mode, fill).all()
}

/// A mapping of `file` from its first page on.
pub(crate) fn of_file<'f>(
    file: &'f File<'_, Hosted>,
    sharing: Sharing,
    addr: u64,
    len: u64,
) -> MapRequest<'f> {
    MapRequest { sharing, backing: Backing::File { file, page_offset: 0 }, ..anonymous(addr, len) }
}

pub(crate) fn register(mm: &Space<'_>, handler: &Handler<'_>, addr: u64, len: u64, modes: UserfaultModes) {
    mm.userfault_register(handler, VirtAddr(addr), len, modes).expect("can be registered");
}

/// Which of the first four pages are marked.
pub(crate) fn marked(mm: &Space<'_>) -> [bool; 4] {
    let mut marked = [false; 4];
    mm.pagemap(VirtRange::from_len(VirtAddr(BASE), 4 * PAGE), |at, word| {
        marked[((at.0 - BASE) / PAGE) as usize] = word.has(PageWord::UFFD_WP);
    });
    marked
}
