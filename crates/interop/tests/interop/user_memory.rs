//! Copies from and to user memory: this process is the program, and a signal handler ([`crate::traps`]) is the
//! page-fault handler of a kernel whose address space refuses every access.

use quire::addr::VirtAddr;
use quire::arch::{CpuFeatures, Feature, PagingMode};
use quire_interop::user_memory::{UserFault, UserMemory, fixup};

use crate::traps::{FAULTS, OPEN, PAIRS, catch};

const PAGE: usize = 4096;
/// Bytes on each side of a fault that are tried one by one.
const NEAR: usize = 20;

/// Pages of a program, some of which cannot be accessed.
struct Program {
    start: *mut u8,
    pages: usize,
}

impl Program {
    /// All pages can be read and written, and hold bytes that tell their places.
    fn new(pages: usize) -> Self {
        catch();
        // SAFETY: K3: a new mapping, which nothing else of this process knows.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let program = Self { start: start.cast(), pages };
        (0..pages * PAGE).for_each(|at| program.set(at, place(at)));
        program
    }

    fn protect(&self, page: usize, rights: i32) {
        assert!(page < self.pages);
        // SAFETY: K3: the page belongs to the mapping, of which no reference exists.
        assert_eq!(unsafe { libc::mprotect(self.start.add(page * PAGE).cast(), PAGE, rights) }, 0);
    }

    fn at(&self, byte: usize) -> VirtAddr {
        VirtAddr(self.start as u64 + byte as u64)
    }

    fn set(&self, at: usize, value: u8) {
        // SAFETY: K3: a byte of the mapping that can be written.
        unsafe { self.start.add(at).write_volatile(value) }
    }

    fn get(&self, at: usize) -> u8 {
        // SAFETY: K3: a byte of the mapping that can be read.
        unsafe { self.start.add(at).read_volatile() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: K3: the mapping is this value's, and no reference to it exists.
        unsafe { libc::munmap(self.start.cast(), self.pages * PAGE) };
    }
}

/// A byte that tells its place, and is never zero.
fn place(at: usize) -> u8 {
    (at % 251 + 1) as u8
}

/// With string instructions of words, of bytes, and with the instructions of SMAP.
fn all_ways() -> [UserMemory; 3] {
    // SAFETY: K3: the tests pass addresses of `Program` alone, or none that is mapped. K2: `rep movsb` works on
    // every processor, and a handler emulates the instructions of SMAP.
    unsafe {
        let fast = CpuFeatures::assume(&[Feature::Erms]);
        let mode = PagingMode::FourLevel;
        [
            UserMemory::new(mode, CpuFeatures::NONE, false),
            UserMemory::new(mode, fast, false),
            UserMemory::new(mode, CpuFeatures::NONE, true),
        ]
    }
}

/// Each start and length near the end of the first of two pages, of which the second cannot be accessed.
fn near_the_hole(mut check: impl FnMut(UserMemory, &Program, usize, usize, usize)) {
    let program = Program::new(3);
    program.protect(1, libc::PROT_NONE);
    for user in all_ways() {
        for start in PAGE - NEAR..=PAGE + NEAR {
            for bytes in 0..=2 * NEAR {
                let missing = bytes - bytes.min(PAGE.saturating_sub(start));
                let before = FAULTS.get();
                check(user, &program, start, bytes, missing);
                assert_eq!(FAULTS.get() > before, missing > 0, "{bytes} bytes at {start}");
                assert_eq!(OPEN.get(), 0, "user memory stays open");
            }
        }
    }
    assert!(PAIRS.get() > 1000, "SMAP was opened {} times", PAIRS.get());
}

#[test]
fn a_copy_from_user_ends_at_the_first_inaccessible_byte() {
    near_the_hole(|user, program, start, bytes, missing| {
        let mut target = [0xee; 2 * NEAR + 1];
        assert_eq!(user.copy_from_user(&mut target[..bytes], program.at(start)), missing);
        for (at, &byte) in target.iter().enumerate() {
            let expected = match at {
                _ if at < bytes - missing => place(start + at),
                _ if at < bytes => 0,
                _ => 0xee,
            };
            assert_eq!(byte, expected, "byte {at} of {bytes} at {start}");
        }
    });
}

/// What a call to write wrote, before the hole and nowhere else.
fn written(program: &Program, start: usize, bytes: usize, expected: impl Fn(usize) -> u8) {
    for at in PAGE - 2 * NEAR..PAGE {
        let inside = (start..start + bytes).contains(&at);
        assert_eq!(program.get(at), if inside { expected(at - start) } else { place(at) }, "byte {at}");
        program.set(at, place(at));
    }
}

#[test]
fn a_copy_to_user_ends_at_the_first_inaccessible_byte() {
    let source: Vec<u8> = (0..=2 * NEAR).map(|at| 0x80 | at as u8).collect();
    near_the_hole(|user, program, start, bytes, missing| {
        assert_eq!(user.copy_to_user(program.at(start), &source[..bytes]), missing);
        written(program, start, bytes, |at| source[at]);
    });
}

#[test]
fn clearing_ends_at_the_first_inaccessible_byte() {
    near_the_hole(|user, program, start, bytes, missing| {
        assert_eq!(user.clear_user(program.at(start), bytes), missing);
        written(program, start, bytes, |_| 0);
    });
}

#[test]
fn a_read_only_page_can_be_copied_from_and_not_to() {
    let program = Program::new(2);
    program.protect(1, libc::PROT_READ);
    for user in all_ways() {
        let mut target = [0; 100];
        assert_eq!(user.copy_from_user(&mut target, program.at(PAGE - 50)), 0);
        assert!((0..100).all(|at| target[at] == place(PAGE - 50 + at)));
        assert_eq!(user.copy_to_user(program.at(PAGE - 50), &target), 50);
        assert_eq!(user.clear_user(program.at(PAGE), 100), 100);
    }
}

#[test]
fn a_string_ends_at_its_zero_its_room_or_its_fault() {
    near_the_hole(|user, program, start, room, missing| {
        let mut target = [0xee; 2 * NEAR + 1];
        let result = user.strncpy_from_user(&mut target[..room], program.at(start));
        assert_eq!(result, if missing == 0 { Ok(room) } else { Err(UserFault) }, "{room} bytes at {start}");
        assert!((0..room - missing).all(|at| target[at] == place(start + at)));
        assert!(target[room - missing..].iter().all(|&byte| byte == 0xee));
    });
    let program = Program::new(2);
    program.protect(1, libc::PROT_NONE);
    for user in all_ways() {
        for length in 0..NEAR {
            let start = PAGE - length - 1;
            program.set(PAGE - 1, 0);
            for room in 0..2 * NEAR {
                let mut target = [0xee; 2 * NEAR];
                let result = user.strncpy_from_user(&mut target[..room], program.at(start));
                assert_eq!(result, Ok(length.min(room)));
                assert_eq!(target[length], if length < room { 0 } else { 0xee });
            }
        }
    }
}

#[test]
fn addresses_outside_of_user_memory_are_refused_without_an_access() {
    const GUARD: u64 = 0x7fff_ffff_f000;
    catch();
    let faults = FAULTS.get();
    for user in all_ways() {
        let wrapping = [(u64::MAX, 1), (u64::MAX - 7, 9), (u64::MAX - 7, 8), (1, usize::MAX)];
        let kernel = [(GUARD, 1), (GUARD - 1, 2), (1 << 47, 8), (0xffff_8000_0000_0000, 16)];
        for (start, bytes) in wrapping.into_iter().chain(kernel) {
            assert_eq!(user.clear_user(VirtAddr(start), bytes), bytes, "{bytes} bytes at {start:#x}");
            let mut buffer = [0xee; 16];
            let bytes = bytes.min(16);
            if start != 1 {
                assert_eq!(user.copy_to_user(VirtAddr(start), &buffer[..bytes]), bytes);
                assert_eq!(user.copy_from_user(&mut buffer[..bytes], VirtAddr(start)), bytes);
                assert!(buffer[..bytes].iter().all(|&byte| byte == 0), "nothing of the caller leaks");
            }
        }
        for start in [GUARD, 1 << 47, u64::MAX] {
            assert_eq!(user.strncpy_from_user(&mut [0; 8], VirtAddr(start)), Err(UserFault));
        }
    }
    assert_eq!(FAULTS.get(), faults);
}

#[test]
fn a_word_is_exchanged_if_it_is_expected_and_accessible() {
    let program = Program::new(2);
    program.protect(1, libc::PROT_READ);
    let bytes = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| program.get(at + byte)));
    for user in all_ways() {
        let (first, last) = (bytes(0), bytes(PAGE - 4));
        assert_eq!(user.compare_exchange_u32(program.at(0), first, 17), Ok(first));
        assert_eq!(bytes(0), 17);
        assert_eq!(user.compare_exchange_u32(program.at(PAGE - 4), !last, 3), Ok(last), "another value");
        assert_eq!(bytes(PAGE - 4), last);
        for at in [PAGE, 2 * PAGE - 4] {
            assert_eq!(user.compare_exchange_u32(program.at(at), bytes(at), 3), Err(UserFault));
        }
        assert_eq!(user.compare_exchange_u32(program.at(2), 0, 3), Err(UserFault), "not a multiple of 4");
        assert_eq!(user.compare_exchange_u32(VirtAddr(1 << 47), 0, 3), Err(UserFault));
        assert_eq!(OPEN.get(), 0, "user memory stays open");
    }
}

#[test]
fn a_string_may_not_leave_user_memory() {
    const END: usize = 0x7fff_ffff_f000;
    // SAFETY: K3: a new mapping at a place where nothing stands, which nothing else of this process knows.
    let last = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap((END - PAGE) as *mut _, PAGE, rights, flags, -1, 0)
    };
    assert_eq!(last.addr(), END - PAGE, "the last page of user memory is in use");
    catch();
    let program = Program { start: last.cast(), pages: 1 };
    (0..PAGE).for_each(|at| program.set(at, place(at)));
    let faults = FAULTS.get();
    for user in all_ways() {
        let mut target = [0; 2 * NEAR];
        assert_eq!(user.strncpy_from_user(&mut target, program.at(PAGE - NEAR)), Err(UserFault));
        assert_eq!(user.strncpy_from_user(&mut target[..NEAR], program.at(PAGE - NEAR)), Ok(NEAR));
        assert_eq!(user.copy_from_user(&mut target[..NEAR], program.at(PAGE - NEAR)), 0);
        assert_eq!(user.copy_from_user(&mut target[..=NEAR], program.at(PAGE - NEAR)), NEAR + 1);
    }
    assert_eq!(FAULTS.get(), faults, "nothing beyond the end was accessed");
}

#[test]
fn other_instructions_have_no_fixup() {
    let other = other_instructions_have_no_fixup as *const () as u64;
    assert!((0..64).all(|at| fixup(other + at).is_none()));
    assert_eq!(fixup(0), None);
}
