//! An assembler for BPF programs: registers and labels by name, one method for each kind of instruction.
//!
//! The programs are short and never change with the machine, save by a few offsets. So they need no compiler,
//! neither when this command is built nor when it runs.

/// A register. `R0` has results, `R1` to `R5` arguments, which a call destroys; `Fp` is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    Fp,
}

/// The size of a load or store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
    Double = 0x18,
}

/// When to jump; comparisons are unsigned.
#[derive(Clone, Copy, Debug)]
pub(super) enum If {
    Equal = 0x10,
    AtLeast = 0x30,
    /// They have a bit in common.
    AnyBit = 0x40,
    NotEqual = 0x50,
}

/// A function of the kernel that programs call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Helper {
    MapLookup = 1,
    Now = 5,
    Random = 7,
    Cpu = 8,
    PidTgid = 14,
    ReadUser = 112,
    ReadKernel = 113,
    RingOutput = 130,
    CurrentTask = 158,
}

/// A place to jump to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// What `bpf(2)` calls `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instruction {
    operation: u8,
    /// Destination in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Classes and modes of operations.
mod operation {
    pub(super) const LOAD_IMMEDIATE: u8 = 0x18;
    pub(super) const LOAD: u8 = 0x61;
    pub(super) const STORE_IMMEDIATE: u8 = 0x62;
    pub(super) const STORE: u8 = 0x63;
    pub(super) const ATOMIC: u8 = 0xc3;
    pub(super) const JUMP: u8 = 0x05;
    pub(super) const JUMP_32: u8 = 0x06;
    pub(super) const ARITHMETIC: u8 = 0x07;
    pub(super) const MOVE_32: u8 = 0xbc;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x95;
    /// Of arithmetic and jumps: the second operand is a register.
    pub(super) const REGISTER: u8 = 0x08;
    pub(super) const ADD: u8 = 0x00;
    pub(super) const OR: u8 = 0x40;
    pub(super) const AND: u8 = 0x50;
    pub(super) const SHIFT_LEFT: u8 = 0x60;
    pub(super) const SHIFT_RIGHT: u8 = 0x70;
    pub(super) const MOVE: u8 = 0xb0;
}

/// What the first half of a load of a map's descriptor says it is.
const IS_MAP: u8 = 1;
const IS_MAP_VALUE: u8 = 2;

/// Kinds of atomic operations.
const FETCH_ADD: i32 = 0x01;
const ONLY_ADD: i32 = 0x00;
const COMPARE_EXCHANGE: i32 = 0xf1;

/// A program that is being written.
#[derive(Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    /// The place of each label, once it has one.
    labels: Vec<Option<usize>>,
    /// Jumps, with their labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn put(&mut self, operation: u8, to: Reg, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { operation, registers: to as u8 | from << 4, offset, immediate });
    }

    /// A label without a place.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Here is the label.
    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Reg, from: Reg) {
        self.put(operation::ARITHMETIC | operation::MOVE | operation::REGISTER, to, from as u8, 0, 0);
    }

    /// `to = from`, without the upper 32 bits.
    pub(super) fn copy_32(&mut self, to: Reg, from: Reg) {
        self.put(operation::MOVE_32, to, from as u8, 0, 0);
    }

    /// `to = value`
    pub(super) fn set(&mut self, to: Reg, value: i32) {
        self.put(operation::ARITHMETIC | operation::MOVE, to, 0, 0, value);
    }

    /// `to = value`, of 64 bits.
    pub(super) fn set_64(&mut self, to: Reg, value: u64) {
        self.put(operation::LOAD_IMMEDIATE, to, 0, 0, value as i32);
        self.put(0, Reg::R0, 0, 0, (value >> 32) as i32);
    }

    /// `to` = the map, as functions take it.
    pub(super) fn map(&mut self, to: Reg, descriptor: i32) {
        self.put(operation::LOAD_IMMEDIATE, to, IS_MAP, 0, descriptor);
        self.put(0, Reg::R0, 0, 0, 0);
    }

    /// `to` = the address of a byte of the map's only value.
    pub(super) fn map_value(&mut self, to: Reg, descriptor: i32, offset: usize) {
        self.put(operation::LOAD_IMMEDIATE, to, IS_MAP_VALUE, 0, descriptor);
        self.put(0, Reg::R0, 0, 0, offset as i32);
    }

    /// `to += from`
    pub(super) fn add(&mut self, to: Reg, from: Reg) {
        self.put(operation::ARITHMETIC | operation::ADD | operation::REGISTER, to, from as u8, 0, 0);
    }

    /// `to |= from`
    pub(super) fn or(&mut self, to: Reg, from: Reg) {
        self.put(operation::ARITHMETIC | operation::OR | operation::REGISTER, to, from as u8, 0, 0);
    }

    /// `to += value`
    pub(super) fn add_value(&mut self, to: Reg, value: i32) {
        self.put(operation::ARITHMETIC | operation::ADD, to, 0, 0, value);
    }

    /// `to &= value`, which is sign-extended.
    pub(super) fn and_value(&mut self, to: Reg, value: i32) {
        self.put(operation::ARITHMETIC | operation::AND, to, 0, 0, value);
    }

    /// `to <<= bits`
    pub(super) fn shift_left(&mut self, to: Reg, bits: i32) {
        self.put(operation::ARITHMETIC | operation::SHIFT_LEFT, to, 0, 0, bits);
    }

    /// `to >>= bits`
    pub(super) fn shift_right(&mut self, to: Reg, bits: i32) {
        self.put(operation::ARITHMETIC | operation::SHIFT_RIGHT, to, 0, 0, bits);
    }

    /// `to = base[offset]`
    pub(super) fn load(&mut self, size: Size, to: Reg, base: Reg, offset: i16) {
        self.put(operation::LOAD | size as u8, to, base as u8, offset, 0);
    }

    /// `base[offset] = from`
    pub(super) fn store(&mut self, size: Size, base: Reg, offset: i16, from: Reg) {
        self.put(operation::STORE | size as u8, base, from as u8, offset, 0);
    }

    /// `base[offset] = value`
    pub(super) fn store_value(&mut self, size: Size, base: Reg, offset: i16, value: i32) {
        self.put(operation::STORE_IMMEDIATE | size as u8, base, 0, offset, value);
    }

    /// `base[offset] += from`, atomically.
    pub(super) fn atomic_add(&mut self, base: Reg, offset: i16, from: Reg) {
        self.put(operation::ATOMIC | Size::Double as u8, base, from as u8, offset, ONLY_ADD);
    }

    /// `base[offset] += both`, atomically; then `both` is the former value.
    pub(super) fn atomic_fetch_add(&mut self, base: Reg, offset: i16, both: Reg) {
        self.put(operation::ATOMIC | Size::Double as u8, base, both as u8, offset, FETCH_ADD);
    }

    /// If `base[offset]` is `R0`, it becomes `from`, atomically; `R0` is the former value.
    pub(super) fn atomic_exchange_if(&mut self, base: Reg, offset: i16, from: Reg) {
        self.put(operation::ATOMIC | Size::Double as u8, base, from as u8, offset, COMPARE_EXCHANGE);
    }

    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(operation::JUMP, Reg::R0, 0, 0, 0);
    }

    /// Jumps if this holds for the register and the value.
    pub(super) fn jump_if(&mut self, first: Reg, holds: If, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(operation::JUMP | holds as u8, first, 0, 0, value);
    }

    /// As [`Assembler::jump_if`], for the lower 32 bits of the register.
    pub(super) fn jump_if_32(&mut self, first: Reg, holds: If, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(operation::JUMP_32 | holds as u8, first, 0, 0, value);
    }

    /// Jumps if this holds for two registers.
    pub(super) fn jump_if_both(&mut self, first: Reg, holds: If, second: Reg, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(operation::JUMP | holds as u8 | operation::REGISTER, first, second as u8, 0, 0);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.put(operation::CALL, Reg::R0, 0, 0, helper as i32);
    }

    /// Returns 0.
    pub(super) fn exit(&mut self) {
        self.set(Reg::R0, 0);
        self.put(operation::EXIT, Reg::R0, 0, 0, 0);
    }

    /// The program, with all jumps resolved.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0].expect("each label has a place");
            let distance = to as i64 - (at as i64 + 1);
            self.code[at].offset = i16::try_from(distance).expect("programs are short");
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_kernels_encoding() {
        let bytes = |write: fn(&mut Assembler)| {
            let mut assembler = Assembler::default();
            write(&mut assembler);
            let all = assembler
                .finish()
                .into_iter()
                .map(|it| (it.operation, it.registers, it.offset, it.immediate));
            all.collect::<Vec<_>>()
        };
        // As `llvm-mc` and the kernel's `Documentation/bpf/standardization/instruction-set.rst` have them.
        assert_eq!(bytes(|it| it.copy(Reg::R6, Reg::R1)), [(0xbf, 0x16, 0, 0)]);
        assert_eq!(bytes(|it| it.load(Size::Double, Reg::R2, Reg::R6, 8)), [(0x79, 0x62, 8, 0)]);
        assert_eq!(bytes(|it| it.load(Size::Half, Reg::R2, Reg::R6, 8)), [(0x69, 0x62, 8, 0)]);
        assert_eq!(bytes(|it| it.load(Size::Word, Reg::R2, Reg::R6, 8)), [(0x61, 0x62, 8, 0)]);
        assert_eq!(bytes(|it| it.load(Size::Byte, Reg::R2, Reg::R6, 8)), [(0x71, 0x62, 8, 0)]);
        assert_eq!(bytes(|it| it.store(Size::Double, Reg::Fp, -8, Reg::R1)), [(0x7b, 0x1a, -8, 0)]);
        assert_eq!(bytes(|it| it.store_value(Size::Double, Reg::Fp, -8, 7)), [(0x7a, 0x0a, -8, 7)]);
        assert_eq!(bytes(|it| it.atomic_fetch_add(Reg::R1, 16, Reg::R2)), [(0xdb, 0x21, 16, 1)]);
        assert_eq!(bytes(|it| it.exit()), [(0xb7, 0, 0, 0), (0x95, 0, 0, 0)]);
        let value = bytes(|it| it.map_value(Reg::R1, 5, 64));
        assert_eq!(value, [(0x18, 0x21, 0, 5), (0, 0, 0, 64)]);
    }

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let mut it = Assembler::default();
        let (start, end) = (it.label(), it.label());
        it.bind(start);
        it.jump_if(Reg::R1, If::NotEqual, 3, end);
        it.jump(start);
        it.bind(end);
        it.exit();
        let offsets: Vec<i16> = it.finish().iter().map(|it| it.offset).collect();
        assert_eq!(offsets, [1, -2, 0, 0]);
    }
}
