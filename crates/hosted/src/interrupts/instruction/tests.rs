use super::*;

const RAX: u64 = 0x1000;
const RDI: u64 = 0x2000;
const RSI: u64 = 0x3000;
const RSP: u64 = 0x4000;

fn value(register: Register) -> Option<u64> {
    match register {
        Register::RAX => Some(RAX),
        Register::RDI => Some(RDI),
        Register::RSI => Some(RSI),
        Register::RSP => Some(RSP),
        Register::RCX => Some(2),
        Register::DS | Register::ES | Register::SS => Some(0),
        _ => None,
    }
}

/// Whether it is locked, and address, size and direction of what it touches.
fn look(bytes: &[u8]) -> (bool, Vec<(u64, usize, bool)>) {
    let mut reader = Reader::new();
    assert_eq!(reader.decode(bytes, 0x50_0000), Ok(()), "{bytes:x?}");
    let mut told = Vec::new();
    let count =
        reader.accesses(value, &mut |access| told.push((access.at as u64, access.bytes, access.write)));
    assert_eq!(count, told.len());
    (reader.is_locked(), told)
}

#[test]
fn locked_instructions_have_the_prefix_or_exchange_with_memory() {
    let writes = |at, bytes| vec![(at, bytes, true)];
    // lock add [rax], ebx; lock xadd [rax], rbx; lock cmpxchg [rdi + 8], cl
    assert_eq!(look(&[0xf0, 0x01, 0x18]), (true, writes(RAX, 4)));
    assert_eq!(look(&[0xf0, 0x48, 0x0f, 0xc1, 0x18]), (true, writes(RAX, 8)));
    assert_eq!(look(&[0xf0, 0x0f, 0xb0, 0x4f, 0x08]), (true, writes(RDI + 8, 1)));
    // The prefix behind another one: lock add word ptr [rax], 1, both ways round.
    assert_eq!(look(&[0x66, 0xf0, 0x83, 0x00, 0x01]), (true, writes(RAX, 2)));
    assert_eq!(look(&[0xf0, 0x66, 0x83, 0x00, 0x01]), (true, writes(RAX, 2)));
    // xchg [rdi], rbx and xchg [rax], bl lock by themselves; xchg rax, rbx and nop (xchg eax, eax) do not.
    assert_eq!(look(&[0x48, 0x87, 0x1f]), (true, writes(RDI, 8)));
    assert_eq!(look(&[0x86, 0x18]), (true, writes(RAX, 1)));
    assert_eq!(look(&[0x48, 0x87, 0xd8]), (false, vec![]));
    assert_eq!(look(&[0x90]), (false, vec![]));
    // add [rax], ebx; and the byte f0 where it is no prefix: mov al, 0xf0 and and rax, -16.
    assert_eq!(look(&[0x01, 0x18]), (false, writes(RAX, 4)));
    assert_eq!(look(&[0xb0, 0xf0]), (false, vec![]));
    assert_eq!(look(&[0x48, 0x83, 0xe0, 0xf0]), (false, vec![]));
    // The bytes of vector instructions hold none either: vmovdqu ymm0, [rax].
    assert_eq!(look(&[0xc5, 0xfe, 0x6f, 0x00]), (false, vec![(RAX, 32, false)]));
}

#[test]
fn accesses_are_those_of_the_instruction() {
    // mov rbx, [rax + rdi * 8 + 16]; lea rbx, of the same; prefetcht0 [rax]; nop dword ptr [rax]
    assert_eq!(look(&[0x48, 0x8b, 0x5c, 0xf8, 0x10]), (false, vec![(RAX + 8 * RDI + 16, 8, false)]));
    assert_eq!(look(&[0x48, 0x8d, 0x5c, 0xf8, 0x10]), (false, vec![]));
    assert_eq!(look(&[0x0f, 0x18, 0x08]), (false, vec![]));
    assert_eq!(look(&[0x0f, 0x1f, 0x00]), (false, vec![]));
    // Relative to the instruction's end: mov eax, [rip + 0x10].
    assert_eq!(look(&[0x8b, 0x05, 0x10, 0, 0, 0]), (false, vec![(0x50_0016, 4, false)]));
    // The stack: push [rax]; and 16 bytes at once: movups [rdi], xmm0.
    let (_, mut both) = look(&[0xff, 0x30]);
    both.sort_unstable();
    assert_eq!(both, [(RAX, 8, false), (RSP - 8, 8, true)]);
    assert_eq!(look(&[0x0f, 0x11, 0x07]), (false, vec![(RDI, 16, true)]));
    // A variable of the thread, whose address the instruction does not name: mov rax, fs:[0].
    assert_eq!(look(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0]).1, vec![]);
    // One turn of a repeated instruction: rep movsb and rep stosq.
    let (_, mut both) = look(&[0xf3, 0xa4]);
    both.sort_unstable();
    assert_eq!(both, [(RDI, 1, true), (RSI, 1, false)]);
    assert_eq!(look(&[0xf3, 0x48, 0xab]), (false, vec![(RDI, 8, true)]));
}

#[test]
fn a_piece_of_an_instruction_is_none() {
    let mut reader = Reader::new();
    assert_eq!(reader.decode(&[0xf0, 0x48, 0x0f], 0), Err(DecoderError::NoMoreBytes));
    assert_eq!(reader.decode(&[0x06; LONGEST], 0), Err(DecoderError::InvalidInstruction));
    assert_eq!(reader.decode(&[0xf0, 0x48, 0x0f, 0xc1, 0x18, 0x90], 0), Ok(()));
}
