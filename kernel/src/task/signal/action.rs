//! What a process does with a signal.

use linux_raw_sys::general as abi;

use super::{COUNT, SignalSet};

/// `SIG_DFL` and `SIG_IGN`.
const DEFAULT: u64 = 0;
const IGNORE: u64 = 1;

/// An action as `rt_sigaction(2)` sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// The handler's address, `SIG_DFL` or `SIG_IGN`.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// What is blocked while it runs.
    pub mask: SignalSet,
}

/// What happens when a signal is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    Ignore,
    /// The process ends.
    Terminate,
    /// It stops.
    Stop,
    /// It goes on if it is stopped.
    Continue,
    /// A handler runs.
    Handle,
}

impl Action {
    /// What the action does for this signal.
    pub fn effect(&self, signal: u32) -> Effect {
        match self.handler {
            DEFAULT => default_effect(signal),
            IGNORE => Effect::Ignore,
            _ => Effect::Handle,
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// Whether children that end are forgotten at once.
    pub fn reaps_children(&self) -> bool {
        self.handler == IGNORE || self.has(abi::SA_NOCLDWAIT)
    }
}

fn default_effect(signal: u32) -> Effect {
    match signal {
        abi::SIGCHLD | abi::SIGURG | abi::SIGWINCH => Effect::Ignore,
        abi::SIGCONT => Effect::Continue,
        abi::SIGSTOP | abi::SIGTSTP | abi::SIGTTIN | abi::SIGTTOU => Effect::Stop,
        _ => Effect::Terminate,
    }
}

/// Whether a process that a signal ends leaves a core dump.
pub fn dumps_core(signal: u32) -> bool {
    matches!(
        signal,
        abi::SIGQUIT
            | abi::SIGILL
            | abi::SIGTRAP
            | abi::SIGABRT
            | abi::SIGFPE
            | abi::SIGSEGV
            | abi::SIGBUS
            | abi::SIGSYS
            | abi::SIGXCPU
            | abi::SIGXFSZ
    )
}

/// The actions of a process.
#[derive(Clone)]
pub struct Actions([Action; COUNT as usize]);

impl Default for Actions {
    fn default() -> Self {
        Self([Action::default(); COUNT as usize])
    }
}

impl Actions {
    /// That of a signal, from 1 to [`COUNT`].
    pub fn get(&self, signal: u32) -> Action {
        self.0[signal as usize - 1]
    }

    /// Sets it.
    pub fn set(&mut self, signal: u32, action: Action) {
        self.0[signal as usize - 1] = action;
    }

    /// A new program has no handlers. What was ignored stays so.
    pub fn reset_handlers(&mut self) {
        for action in &mut self.0 {
            let handler = if action.handler == IGNORE { IGNORE } else { DEFAULT };
            *action = Action { handler, ..Action::default() };
        }
    }
}
