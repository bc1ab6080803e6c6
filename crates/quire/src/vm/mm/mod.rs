//! The address space as callers hold it.
//!
//! [`Mm`](crate::vm::Mm) does nothing itself: each of its calls goes to the value with that duty in another
//! room.

pub(super) mod facade;
mod observe;
pub(super) mod secondary;
mod userfault;
mod verbs;
mod whole;
