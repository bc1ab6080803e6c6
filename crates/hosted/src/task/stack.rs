//! How much of the running thread's stack is left.
#![allow(unsafe_code)]

/// Bytes between the caller and the end of the thread's stack; unknown if the C library does not say.
#[cfg(not(miri))]
pub(crate) fn stack_left() -> Option<usize> {
    use std::mem::MaybeUninit;
    use std::ptr;

    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: H8: the call fills the structure that it is given, of the type that it names.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: H8: the structure was filled, as the result says, and is destroyed once, after its last use; the
    // places for the results are locals.
    let found = unsafe {
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        found
    };
    let here = (&raw const bytes).addr();
    (found == 0).then(|| here.saturating_sub(lowest.addr()))
}

/// Miri has no such call.
#[cfg(miri)]
pub(crate) fn stack_left() -> Option<usize> {
    None
}
