//! The first instructions: from the state that the PVH protocol gives to Rust code in the higher half.
//!
//! PVH (Xen, "x86/HVM direct boot ABI") enters in 32-bit mode without paging, with the physical address of the
//! start info in EBX. The page tables here are static data: they map the first GiB twice, at 0, where this code
//! runs, and at `KERNEL_BASE`, where the rest is linked. [`super::tables`] replaces them by the real ones.

use core::arch::global_asm;

/// The first stack: as large as a task's, or with checks as large as Quire asks for when it starts, and what is called
/// before that.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 64 << 10 } else { 32 << 10 };

global_asm!(
    // The ELF note by which QEMU finds the entry: name "Xen", type 18 (XEN_ELFNOTE_PHYS32_ENTRY).
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long pvh_entry
    "#,
    r#"
    .section .boot.text, "ax"
    .code32
    .global pvh_entry
pvh_entry:
    cli
    cld
    jmp require_processor
has_processor:
    // Long mode, with NX, because the kernel's own tables use it (SDM volume 3, 10.8.5).
    movl %cr4, %eax
    orl ${cr4_pae}, %eax
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl ${msr_efer}, %ecx
    rdmsr
    orl ${efer_lme_nxe}, %eax
    wrmsr
    movl %cr0, %eax
    orl ${cr0_pg_wp_pe}, %eax
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $8, $long_mode

    .code64
    .global long_mode
long_mode:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movabsq $stack_end, %rsp
    xorl %ebp, %ebp
    movl %ebx, %edi
    movabsq $kernel_entry, %rax
    call *%rax
    ud2
    "#,
    r#"
    .section .boot.text, "ax"
    .code32
    // What the compiler was told that the processor has (`.cargo/config.toml`), and what the kernel needs besides. Before
    // the first function, which may have such an instruction. EBX is kept.
require_processor:
    movl %ebx, %ebp
    xorl %eax, %eax
    cpuid
    cmpl $7, %eax
    jb lacks_processor
    movl $1, %eax
    cpuid
    notl %ecx
    testl ${leaf_1}, %ecx
    jnz lacks_processor
    movl $7, %eax
    xorl %ecx, %ecx
    cpuid
    notl %ebx
    testl ${leaf_7}, %ebx
    jnz lacks_processor
    movl $0x80000001, %eax
    cpuid
    testl ${lzcnt}, %ecx
    jz lacks_processor
    // Nothing is cut off where the index is not below the size. Earlier versions of QEMU cut a bit off.
    movl $-1, %eax
    movl $32, %ecx
    bzhil %ecx, %eax, %edx
    cmpl %eax, %edx
    jne lacks_processor
    movl %ebp, %ebx
    jmp has_processor
lacks_processor:
    movl $text_of_lack, %esi
    movl $(end_of_lack - text_of_lack), %ecx
    // As `crate::device::log` and `exit` do.
    movw $0xe9, %dx
    inb %dx, %al
    cmpb $0xe9, %al
    je 1f
    movw $0x3f8, %dx
1:
    rep outsb
    movl $0x7f, %eax
    movw $0xf4, %dx
    outl %eax, %dx
2:
    hlt
    jmp 2b
text_of_lack:
    .ascii "[quire] the processor lacks SMEP, SMAP, XSAVE, POPCNT, LZCNT or a right BZHI: "
    .ascii "run a newer QEMU with -cpu max\n"
    .ascii "[quire] end: failed\n"
end_of_lack:
    .code64
    "#,
    r#"
    .section .boot.tables, "a"
    .balign 4096
    // For `five_levels`.
    .global boot_pml5
boot_pml5:
    .quad boot_pml4 + 3
    .fill 510, 8, 0
    .quad boot_pml4 + 3
boot_pml4:
    .quad boot_pdpt_low + 3
    .fill 510, 8, 0
    .quad boot_pdpt_high + 3
boot_pdpt_low:
    .quad boot_pd + 3
    .fill 511, 8, 0
boot_pdpt_high:
    .fill 510, 8, 0
    .quad boot_pd + 3
    .quad 0
boot_pd:
    .set block, 0
    .rept 512
    .quad (block << 21) + 0x83
    .set block, block + 1
    .endr

    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00209b0000000000
    .quad 0x00cf9b000000ffff
    .global boot_gdt_pointer
boot_gdt_pointer:
    .word boot_gdt_pointer - boot_gdt - 1
    .quad boot_gdt
    "#,
    r#"
    .section .stack, "aw", @nobits
    .balign 4096
    .skip {stack_bytes}
    .text
    "#,
    stack_bytes = const STACK_BYTES,
    // POPCNT and XSAVE.
    leaf_1 = const 1 << 23 | 1 << 26,
    // BMI1, SMEP, BMI2, SMAP.
    leaf_7 = const 1 << 3 | 1 << 7 | 1 << 8 | 1 << 20,
    lzcnt = const 1 << 5,
    cr4_pae = const 1 << 5,
    msr_efer = const 0xc000_0080_u32,
    efer_lme_nxe = const (1 << 8) | (1 << 11),
    cr0_pg_wp_pe = const 0x8001_0001_u32,
    options(att_syntax)
);
