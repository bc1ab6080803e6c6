//! The memory that one machine instruction is about to read and write, and whether it is a locked one.

use iced_x86::{
    Decoder, DecoderError, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions,
    MemorySize, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

/// The longest instruction.
pub(super) const LONGEST: usize = 15;

/// A piece of memory that an instruction reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Address of the first byte.
    pub at: usize,
    /// Bytes; 1 where the instruction does not say.
    pub bytes: usize,
    /// Whether it writes; it may read as well.
    pub write: bool,
}

/// Reads instructions one after the other. It allocates when it is made and never again.
pub(super) struct Reader {
    instruction: Instruction,
    factory: InstructionInfoFactory,
}

impl Reader {
    pub(super) fn new() -> Self {
        // Decodes once, so that the decoder's tables and the factory's lists exist.
        let mut reader = Self { instruction: Instruction::new(), factory: InstructionInfoFactory::new() };
        let push = [0x55];
        let read = reader.decode(&push, 0).map(|()| reader.accesses(|_| Some(64), &mut |_| ()));
        assert_eq!(read, Ok(1), "`push rbp` writes to one place");
        reader
    }

    /// Reads the instruction at the start of `bytes`, which are at address `at`.
    pub(super) fn decode(&mut self, bytes: &[u8], at: usize) -> Result<(), DecoderError> {
        let mut decoder = Decoder::with_ip(64, bytes, at as u64, DecoderOptions::NONE);
        decoder.decode_out(&mut self.instruction);
        match decoder.last_error() {
            DecoderError::None => Ok(()),
            error => Err(error),
        }
    }

    /// Whether the last read instruction is a locked one: with the prefix, or an exchange with memory, which
    /// needs none.
    pub(super) fn is_locked(&self) -> bool {
        let with_memory =
            (0..self.instruction.op_count()).any(|at| self.instruction.op_kind(at) == OpKind::Memory);
        self.instruction.has_lock_prefix() || self.instruction.mnemonic() == Mnemonic::Xchg && with_memory
    }

    /// Calls back with all memory that the last read instruction is about to touch; returns the number of
    /// pieces. Accesses through a register without a `value` are left out.
    pub(super) fn accesses(
        &mut self,
        value: impl Fn(Register) -> Option<u64>,
        tell: &mut impl FnMut(Access),
    ) -> usize {
        let instruction = &self.instruction;
        // A repeated instruction executes turn by turn, and the last turn does nothing.
        let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if instruction.is_string_instruction() && repeated && value(Register::RCX) == Some(0) {
            return 0;
        }
        let info = self.factory.info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
        let of = |memory: &UsedMemory| {
            let write = match memory.access() {
                OpAccess::None | OpAccess::NoMemAccess => return None,
                OpAccess::Read | OpAccess::CondRead => false,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => true,
            };
            let size = match memory.memory_size() {
                MemorySize::Unknown => instruction.memory_size(),
                known => known,
            };
            let at = memory.virtual_address(0, |register, _, _| value(register))?;
            Some(Access { at: at as usize, bytes: size.size().max(1), write })
        };
        info.used_memory().iter().filter_map(of).map(tell).count()
    }
}

#[cfg(test)]
mod tests;
