//! Steps from one address space to the next.
#![forbid(unsafe_code)]

use super::cursor::Cursor;
use crate::addr::VirtAddr;
use crate::platform::Platform;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::MmShared;

/// The address space at the cursor, or the next one; `None` at the end of all.
pub(super) fn next_space<P: Platform>(cursor: &mut Cursor, memory: &MmShared<'_, P>) -> Option<FoundBody> {
    let (family, number) = cursor.key;
    let (body, key) = FoundBody::next_of_all(memory, (family, number.saturating_sub(1)))?;
    if key != cursor.key {
        *cursor = Cursor { key, at: VirtAddr(0) };
    }
    Some(body)
}
