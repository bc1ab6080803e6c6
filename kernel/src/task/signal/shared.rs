//! The signals of a process: those that any of its tasks may take, and the actions.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::action::{Action, Actions};
use super::queue::Pending;
use crate::sync::Mutex;

/// See the module.
#[derive(Default)]
pub struct SharedSignals {
    /// What was sent to the process.
    pub pending: Mutex<Pending>,
    actions: Mutex<Arc<Mutex<Actions>>>,
}

impl SharedSignals {
    /// Those of a new child: nothing is pending, and it shares the actions or has a copy, without handlers if asked.
    pub fn for_child(&self, share: bool, clear_handlers: bool) -> Self {
        let actions = self.handle();
        let actions = match share {
            true => actions,
            false => {
                let mut copy = actions.lock().clone();
                if clear_handlers {
                    copy.reset_handlers();
                }
                Arc::new(Mutex::new(copy))
            }
        };
        Self { pending: Mutex::default(), actions: Mutex::new(actions) }
    }

    /// The action for a signal.
    pub fn action(&self, signal: u32) -> Action {
        self.handle().lock().get(signal)
    }

    /// Sets the action for a signal and returns the old one.
    pub fn set_action(&self, signal: u32, action: Action) -> Action {
        let handle = self.handle();
        let mut actions = handle.lock();
        let old = actions.get(signal);
        actions.set(signal, action);
        old
    }

    /// Whether children that end leave nothing to wait for.
    pub fn reaps_children(&self) -> bool {
        self.action(abi::SIGCHLD).reaps_children()
    }

    /// A new program starts: the process has actions of its own, without handlers.
    pub fn reset_for_program(&self) {
        let mut copy = self.handle().lock().clone();
        copy.reset_handlers();
        *self.actions.lock() = Arc::new(Mutex::new(copy));
    }

    /// Whether other processes share the actions.
    pub fn shares_actions(&self) -> bool {
        // The process has one reference, and the handle is one.
        Arc::strong_count(&self.handle()) > 2
    }

    /// A number by which processes that share their actions know that.
    pub fn actions_number(&self) -> usize {
        Arc::as_ptr(&self.handle()).addr()
    }

    fn handle(&self) -> Arc<Mutex<Actions>> {
        self.actions.lock().clone()
    }
}
