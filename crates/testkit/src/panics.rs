//! Messages of panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The message of the panic of `action`.
///
/// # Panics
/// When `action` does not panic, or panics without a message.
pub fn panic_message<R>(action: impl FnOnce() -> R) -> String {
    let payload = catch_unwind(AssertUnwindSafe(action)).err().expect("nothing panicked");
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).expect("panics carry text")
}
