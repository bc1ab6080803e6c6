//! The switch of the bugs, compiled only into the copy of the library. A process has the bug whose number is
//! in `QUIRE_MUTANT`, and marks each bug's place that it executes in the file `QUIRE_MUTANTS_REACHED`, if it
//! is set. The loader calls a constructor before `main`, since the library has neither a start nor an
//! environment of its own.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// A byte for each number, shared with the program that runs the tests; null without a file.
static REACHED: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());

/// Size of the file.
const REACHED_BYTES: usize = 4096;
const READ_WRITE: c_int = 2;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;

unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(file: c_int) -> c_int;
    fn mmap(address: *mut c_void, bytes: usize, prot: c_int, flags: c_int, file: c_int, at: i64) -> *mut c_void;
}

/// Whether this process has the bug of this number. Marks it as reached.
#[inline]
pub fn on(number: u32) -> bool {
    let reached = REACHED.load(Ordering::Relaxed);
    if !reached.is_null() {
        // SAFETY: C1: the mapping has `REACHED_BYTES`, stays until the process ends, and numbers are below that.
        unsafe { (*reached.add(number as usize)).store(1, Ordering::Relaxed) }
    }
    ACTIVE.load(Ordering::Relaxed) == number
}

#[used]
#[unsafe(link_section = ".init_array")]
static READ_ENVIRONMENT: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = read_environment;

extern "C" fn read_environment(_: c_int, _: *const *const c_char, mut variable: *const *const c_char) {
    // SAFETY: C3: the loader hands over the environment, an array of strings that ends with null.
    unsafe {
        while !(*variable).is_null() {
            let text = CStr::from_ptr(*variable).to_bytes();
            if let Some(digits) = text.strip_prefix(b"QUIRE_MUTANT=") {
                let number = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
                ACTIVE.store(number, Ordering::Relaxed);
            }
            let name = b"QUIRE_MUTANTS_REACHED=";
            if text.starts_with(name) {
                share((*variable).add(name.len()));
            }
            variable = variable.add(1);
        }
    }
}

/// # Safety
/// `path` is a string that ends with zero.
unsafe fn share(path: *const c_char) {
    // SAFETY: C3: the caller's string; a mapping wherever the kernel puts it overwrites nothing.
    unsafe {
        let file = open(path, READ_WRITE);
        let at = mmap(ptr::null_mut(), REACHED_BYTES, PROT_READ_WRITE, MAP_SHARED, file, 0);
        if at as isize != -1 {
            REACHED.store(at.cast(), Ordering::Relaxed);
        }
        close(file);
    }
}
