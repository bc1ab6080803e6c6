//! A call that ends only when another thread has done calls of its own: a handler brings the pages that it populates.

use std::ffi::c_void;
use std::ptr::null_mut;

use linux_raw_sys::general::{
    UFFD_API, UFFDIO_REGISTER_MODE_MISSING, uffd_msg, uffdio_api, uffdio_range, uffdio_register,
    uffdio_zeropage,
};
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE};
use nix::libc;

/// How often the handler is asked.
const ROUNDS: usize = 3;

const PAGE: usize = super::PAGE as usize;

/// Populates a page again and again; false if this user may not handle the faults of calls.
pub(super) fn run() -> bool {
    let memory = super::ARENA as *mut c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the address is the script's own; the descriptor is the kernel's answer.
    let handler = unsafe {
        libc::mmap(memory, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32
    };
    if handler < 0 {
        return false;
    }
    let range = uffdio_range { start: super::ARENA, len: PAGE as u64 };
    let mut api = uffdio_api { api: u64::from(UFFD_API), features: 0, ioctls: 0 };
    let mode = u64::from(UFFDIO_REGISTER_MODE_MISSING);
    let mut register = uffdio_register { range, mode, ioctls: 0 };
    control(handler, UFFDIO_API, &mut api);
    control(handler, UFFDIO_REGISTER, &mut register);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..ROUNDS).for_each(|_| bring(handler, range)));
        for _ in 0..ROUNDS {
            // SAFETY: the page is the script's own, and holds nothing.
            unsafe {
                assert_eq!(libc::madvise(memory, PAGE, libc::MADV_POPULATE_WRITE), 0);
                assert_eq!(libc::madvise(memory, PAGE, libc::MADV_DONTNEED), 0);
            }
        }
    });
    true
}

/// Waits for a fault, maps and unmaps something, and only then brings the page.
fn bring(handler: i32, range: uffdio_range) {
    let mut message = [0_u8; size_of::<uffd_msg>()];
    // SAFETY: the buffer has the size of a message; the mappings are made here.
    unsafe {
        assert!(libc::read(handler, message.as_mut_ptr().cast(), message.len()) > 0);
        for _ in 0..3 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let made = libc::mmap(null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_eq!(libc::munmap(made, PAGE), 0);
        }
    }
    control(handler, UFFDIO_ZEROPAGE, &mut uffdio_zeropage { range, mode: 0, zeropage: 0 });
}

fn control<T>(handler: i32, request: u32, argument: &mut T) {
    // SAFETY: each request is called with its own structure.
    assert_eq!(unsafe { libc::ioctl(handler, request.into(), std::ptr::from_mut(argument)) }, 0);
}
