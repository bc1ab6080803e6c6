//! What start-up asks of the machine before it uses any memory.
#![forbid(unsafe_code)]

use crate::arch::PagingMode;
use crate::error::InitError;
use crate::limits::START_STACK_BYTES;
use crate::platform::TablePlatform;

/// Checks the stack and the state of the running processor.
///
/// # Errors
/// [`InitError::SmallStack`], [`InitError::BadProcessor`].
pub(crate) fn check_start(platform: &impl TablePlatform, paging: PagingMode) -> Result<(), InitError> {
    let needed = START_STACK_BYTES;
    if let Some(left) = platform.stack_left().filter(|&left| left < needed) {
        return Err(InitError::SmallStack { left, needed });
    }
    Ok(platform.processor_state().check(paging)?)
}
