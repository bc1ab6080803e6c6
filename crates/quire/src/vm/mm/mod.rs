//! [`Mm`](crate::vm::Mm), the address space as callers hold it. It passes each call to a handle.

pub(super) mod facade;
mod observe;
pub(super) mod secondary;
mod userfault;
mod verbs;
mod whole;
