//! A static 32-bit program, assembled here: no machine that tests needs a compiler for i386.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Where the program's one segment lies: code at its start, data behind it.
const BASE: u32 = 0x0804_8000;
const CODE: u32 = BASE + 0x100;
/// The text `/proc/self/exe`: a file that can be mapped.
pub(crate) const OWN_PATH: u32 = BASE + 0x80;
/// Results of the calls, in their order.
const RESULTS: u32 = BASE + 0x2000;
/// Where `shmat` puts the address.
pub(crate) const SCRATCH: u32 = BASE + 0x2f00;
/// The argument block of an old `mmap` that does not lie on the stack.
const BLOCK: u32 = BASE + 0x2e00;
const END: u32 = BASE + 0x4000;

/// What goes into a register before a call.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    Number(u32),
    /// The result of the call with this number, counted from 0, and an offset to it.
    Result(usize, u32),
    /// What `shmat` put into the scratch word.
    Scratch,
    /// The stack pointer.
    Stack,
}

use Value::{Number, Scratch, Stack};

/// A program that grows call by call.
#[derive(Default)]
pub(crate) struct Program {
    code: Vec<u8>,
    calls: usize,
}

impl Program {
    /// A call by `int 0x80` with arguments in ebx, ecx, edx, esi, edi, ebp; gives the number of its result.
    pub(crate) fn call(&mut self, number: u32, arguments: &[Value]) -> usize {
        for (argument, register) in arguments.iter().zip([3u8, 1, 2, 6, 7, 5]) {
            self.load(register, *argument);
        }
        self.load(0, Number(number));
        self.code.extend([0xcd, 0x80]);
        // mov [result], eax
        self.code.push(0xa3);
        self.code.extend((RESULTS + 4 * self.calls as u32).to_le_bytes());
        self.calls += 1;
        self.calls - 1
    }

    fn load(&mut self, register: u8, value: Value) {
        // mov r32, [address]
        let mut from = |address: u32| {
            self.code.extend([0x8b, 0x05 | register << 3]);
            self.code.extend(address.to_le_bytes());
        };
        match value {
            Number(number) => {
                self.code.push(0xb8 + register);
                self.code.extend(number.to_le_bytes());
            }
            Value::Result(call, offset) => {
                from(RESULTS + 4 * call as u32);
                // add r32, imm32
                self.code.extend([0x81, 0xc0 | register]);
                self.code.extend(offset.to_le_bytes());
            }
            Scratch => from(SCRATCH),
            // mov r32, esp
            Stack => self.code.extend([0x89, 0xe0 | register]),
        }
    }

    /// The `mmap` of old, with its arguments on the stack.
    pub(crate) fn old_mmap(&mut self, arguments: [u32; 6]) -> usize {
        for argument in arguments.iter().rev() {
            self.code.push(0x68);
            self.code.extend(argument.to_le_bytes());
        }
        let result = self.call(90, &[Stack]);
        // add esp, 24
        self.code.extend([0x83, 0xc4, 24]);
        result
    }

    /// The same with its arguments elsewhere.
    pub(crate) fn old_mmap_by_block(&mut self, arguments: [u32; 6]) -> usize {
        for (index, argument) in (0..).zip(arguments) {
            self.code.extend([0xc7, 0x05]);
            self.code.extend((BLOCK + 4 * index).to_le_bytes());
            self.code.extend(argument.to_le_bytes());
        }
        self.call(90, &[Number(BLOCK)])
    }

    /// A store to the address that a call returned.
    pub(crate) fn store(&mut self, result: usize, offset: u32) {
        self.load(0, Value::Result(result, offset));
        // mov byte [eax], 1
        self.code.extend([0xc6, 0x00, 0x01]);
    }

    /// Forks; the child ends at once.
    pub(crate) fn fork(&mut self) -> usize {
        let child = self.call(2, &[]);
        // test eax, eax; jnz over the child's exit
        self.code.extend([0x85, 0xc0, 0x75, 12]);
        self.code.extend([0xb8, 1, 0, 0, 0, 0xbb, 0, 0, 0, 0, 0xcd, 0x80]);
        self.call(7, &[Value::Result(child, 0), Number(0), Number(0)]);
        child
    }

    /// Makes a thread, which goes on alone: the first one ends.
    pub(crate) fn leave_to_a_thread(&mut self) {
        const LIKE_A_THREAD: u32 = 0x5_0f00;
        self.call(120, &[Number(LIKE_A_THREAD), Stack, Number(0), Number(0), Number(0)]);
        // test eax, eax; jz over the exit
        self.code.extend([0x85, 0xc0, 0x74, 7]);
        self.code.extend([0xb8, 1, 0, 0, 0, 0xcd, 0x80]);
    }

    /// Writes the file: the program ends with all results on its standard output, as words of 32 bits.
    pub(crate) fn write(mut self, path: &Path) {
        let bytes = 4 * self.calls as u32;
        self.call(4, &[Number(1), Number(RESULTS), Number(bytes)]);
        self.call(1, &[Number(0)]);
        let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0];
        file.resize(16, 0);
        let halves = |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        // An executable for i386; entry, program headers, no sections; sizes of the headers.
        file.extend(halves(&[2, 3]));
        file.extend(words(&[1, CODE, 52, 0, 0]));
        file.extend(halves(&[52, 32, 1, 40, 0, 0]));
        // One segment that may be read, written and executed.
        file.extend(words(&[1, 0, BASE, BASE, END - BASE, END - BASE, 7, 0x1000]));
        file.resize((OWN_PATH - BASE) as usize, 0);
        file.extend(b"/proc/self/exe");
        file.resize((CODE - BASE) as usize, 0);
        file.extend(self.code);
        assert!(file.len() < (BLOCK - BASE) as usize && file.len() < (RESULTS - BASE) as usize);
        file.resize((END - BASE) as usize, 0);
        std::fs::write(path, file).expect("the directory is ours");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, executable).expect("the file is ours");
    }
}
