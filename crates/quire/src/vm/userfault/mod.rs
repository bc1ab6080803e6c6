//! Faults that a handler answers (Linux: `userfaultfd`): it supplies missing pages, and may hold back stores.
//!
//! A [`Userfault`] is a handler; [`Mm::userfault_register`](crate::vm::Mm::userfault_register) registers a
//! range with it. A thread that faults there enters its fault into one of the handler's places and sleeps
//! ([`fault`]). Handler threads read these events ([`handle`]) and answer with verbs of [`Mm`](crate::vm::Mm)
//! ([`copy`], [`zeropage`], [`resume`], [`poison`], [`write_protect`], [`wake`]), which map a page where none
//! is mapped, and then wake. Verbs that change an address space tell its handlers ([`changes`]).
//!
//! After a handler has closed, accesses to its missing pages get an error. (Linux lets them find zeroes.)
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
