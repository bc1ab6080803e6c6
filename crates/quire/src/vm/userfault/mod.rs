//! Faults that a handler answers, as Linux's `userfaultfd`: what is missing in a range comes from elsewhere, page by page, and
//! stores to it may be held back.
//!
//! A [`Userfault`] is a handler; [`Mm::userfault_register`](crate::vm::space::mm::Mm::userfault_register) makes it that of a range. A fault there is put into one of the
//! handler's places, and the thread sleeps ([`fault`]). Handler threads read what there is ([`handle`]) and answer with
//! the verbs of [`Mm`](crate::vm::space::mm::Mm) ([`copy`], [`zeropage`], [`resume`], [`poison`], [`write_protect`], [`wake`]), which put something where
//! nothing is and then wake. Verbs that change an address space tell its handlers ([`changes`]).
//!
//! Nothing is made up: while a handler is gone, what only it knows stays missing, and accesses get an error. (Linux lets them
//! through, to zeroes.)
//!
//! Source: Linux, `Documentation/admin-guide/mm/userfaultfd.rst`.

mod answer;
mod bytes;
mod changes;
mod context;
mod copy;
mod event;
mod fault;
mod handle;
mod huge;
mod poison;
mod reader;
mod register;
mod registration;
mod resume;
mod wake;
mod write_protect;
mod zeropage;

pub(in crate::vm) use context::{Contexts, Waiting};

pub use answer::{Answer, AnswerMode};
pub use event::{Ticket, UserfaultChanges, UserfaultEvent, UserfaultFault, UserfaultKind};
pub use handle::{TakenEvent, Userfault};
pub use reader::UserfaultInfo;
pub use registration::{Registration, UserfaultModes};
