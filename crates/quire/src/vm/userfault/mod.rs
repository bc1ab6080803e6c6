//! Faults that a handler answers, as Linux's `userfaultfd`: what is missing in a range comes from elsewhere,
//! page by page, and stores to it may be held back.
//!
//! A [`Userfault`] is a handler; [`Mm::userfault_register`](crate::vm::Mm::userfault_register) makes it that
//! of a range. A fault there is put into one of the handler's places, and the thread sleeps ([`fault`]).
//! Handler threads read what there is ([`handle`]) and answer with the verbs of [`Mm`](crate::vm::Mm)
//! ([`copy`], [`zeropage`], [`resume`], [`poison`], [`write_protect`], [`wake`]), which put something where
//! nothing is and then wake. Verbs that change an address space tell its handlers ([`changes`]).
//!
//! Nothing is made up: while a handler is gone, what only it knows stays missing, and accesses get an error.
//! (Linux lets them through, to zeroes.)
//!
//! Source: Linux, `Documentation/admin-guide/mm/userfaultfd.rst`.

pub(super) mod answer;
pub(super) mod bytes;
pub(super) mod changes;
pub(super) mod context;
pub(super) mod copy;
pub(super) mod event;
pub(super) mod fault;
pub(super) mod handle;
pub(super) mod huge;
pub(super) mod poison;
pub(super) mod reader;
pub(super) mod register;
pub(super) mod registration;
pub(super) mod resume;
pub(super) mod wake;
pub(super) mod write_protect;
pub(super) mod zeropage;

pub(in crate::vm) use context::{Contexts, Waiting};

pub use answer::{Answer, AnswerMode};
pub use event::{Ticket, UserfaultChanges, UserfaultEvent, UserfaultFault, UserfaultKind};
pub use handle::{TakenEvent, Userfault};
pub use reader::UserfaultInfo;
pub use registration::{Registration, UserfaultModes};
