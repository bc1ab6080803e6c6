/* Program files whose parts are in unusual places, made byte by byte; kernel/test runs each case on Linux too.
 *
 * The first argument chooses the case, or all of them. Each one has a process of its own.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "child.h"

#define PAGE 4096UL
#define BASE 0x10000000UL
/* Where the headers are, or the name of the interpreter, behind what is read first of a file. */
#define FAR (3 * PAGE)

/* A program file: code in its second page, and its headers at its end. */
struct image {
    Elf64_Ehdr header;
    char padding[PAGE - sizeof(Elf64_Ehdr)];
    uint8_t code[2 * PAGE];
    Elf64_Phdr segments[3];
    char interpreter[4200];
};

/* exit(42) */
static const uint8_t LEAVE[] = { 0xb8, 60, 0, 0, 0, 0xbf, 42, 0, 0, 0, 0x0f, 0x05 };
/* Stores `mov eax, 60; ret` on the stack and calls it; then edi = 42, syscall. */
static const uint8_t ON_STACK[] = {
    0x48, 0xb8, 0xb8, 60, 0, 0, 0, 0xc3, 0x90, 0x90, /* mov rax, code */
    0x50, 0xff, 0xd4,                                /* push rax; call rsp */
    0xbf, 42, 0, 0, 0, 0x0f, 0x05,
};

static struct image *image_of(const uint8_t *code, size_t bytes, uint64_t at)
{
    static struct image image;
    memset(&image, 0, sizeof image);
    memcpy(image.code, code, bytes);
    image.header = (Elf64_Ehdr){
        .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
        .e_type = ET_EXEC, .e_machine = EM_X86_64, .e_version = EV_CURRENT, .e_entry = at, .e_phoff = FAR,
        .e_ehsize = sizeof(Elf64_Ehdr), .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 3,
    };
    image.segments[0] = (Elf64_Phdr){
        .p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = PAGE, .p_vaddr = at, .p_filesz = PAGE,
        .p_memsz = PAGE, .p_align = PAGE,
    };
    return &image;
}

static void store(const char *path, const struct image *image, size_t bytes)
{
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0755);
    CHECK(file >= 0 && write(file, image, bytes) == (ssize_t)bytes && close(file) == 0);
}

/* A child that executes the file; its status is the error if it cannot. */
static pid_t run(const struct image *image)
{
    store("image", image, sizeof *image);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("./image", "image", NULL);
        _exit(errno);
    }
    return child;
}

/* The headers are far from the start of the file, and in no segment. */
static void headers(void)
{
    struct image *image = image_of(LEAVE, sizeof LEAVE, BASE);
    CHECK(exits_with(run(image), 42));
    image->header.e_phentsize = sizeof(Elf64_Phdr) + 8;
    CHECK(exits_with(run(image), ENOEXEC));
    image->header.e_phentsize = sizeof(Elf64_Phdr);
    image->header.e_phnum = 0;
    CHECK(exits_with(run(image), ENOEXEC));
    image->header.e_phnum = 1171;
    CHECK(exits_with(run(image), ENOEXEC));
}

/* So is the name of the interpreter, which is a file of the same kind. */
static void interpreter(void)
{
    store("interpreter", image_of(LEAVE, sizeof LEAVE, BASE), sizeof(struct image));
    /* What the interpreter is for would stop at an instruction that there is not. */
    struct image *image = image_of((const uint8_t *)"\x0f\x0b", 2, 2 * BASE);
    char path[512];
    CHECK(getcwd(path, sizeof path - 16));
    strcat(path, "/interpreter");
    strcpy(image->interpreter, path);
    Elf64_Phdr *named = &image->segments[1];
    named->p_type = PT_INTERP;
    named->p_offset = offsetof(struct image, interpreter);
    named->p_filesz = strlen(path) + 1;
    CHECK(exits_with(run(image), 42));
    /* A name without an end, a longer one than a path can be, one that the file does not have, and a missing file. */
    named->p_filesz = strlen(path);
    CHECK(exits_with(run(image), ENOEXEC));
    named->p_filesz = 4097;
    CHECK(exits_with(run(image), ENOEXEC));
    named->p_filesz = strlen(path) + 1;
    CHECK(unlink("interpreter") == 0 && exits_with(run(image), ENOENT));
}

/* Instructions run on a stack whose program asks for that, and on no other one. */
static void stacks(void)
{
    struct image *image = image_of(ON_STACK, sizeof ON_STACK, BASE);
    Elf64_Phdr *stack = &image->segments[1];
    *stack = (Elf64_Phdr){ .p_type = PT_GNU_STACK, .p_flags = PF_R | PF_W | PF_X };
    CHECK(exits_with(run(image), 42));
    stack->p_flags = PF_R | PF_W;
    CHECK(is_killed_by(run(image), SIGSEGV));
}

/* A program of many segments whose first instruction is at no address of a program. What was mapped for it goes while
 * another program wants the processor. The caller goes on where the kernel can still return to it. */
static void refused(void)
{
    enum { COUNT = 1100 };
    static Elf64_Phdr segments[COUNT];
    pid_t busy = fork();
    if (busy == 0)
        for (;;)
            ;
    struct image *image = image_of(LEAVE, sizeof LEAVE, BASE);
    for (int at = 0; at < COUNT; at++) {
        segments[at] = image->segments[0];
        segments[at].p_vaddr = BASE + at * (1UL << 30);
        segments[at].p_filesz = 100;
        segments[at].p_flags = PF_R | PF_W | PF_X;
    }
    image->header.e_entry = -PAGE;
    image->header.e_phnum = COUNT;
    image->header.e_phoff = sizeof *image;
    for (int round = 0; round < 10; round++) {
        store("image", image, sizeof *image);
        int file = open("image", O_WRONLY | O_APPEND);
        CHECK(file >= 0 && write(file, segments, sizeof segments) == sizeof segments && close(file) == 0);
        pid_t child = fork();
        if (child == 0) {
            execl("./image", "image", NULL);
            _exit(9);
        }
        int status = status_of(child);
        CHECK(status == 9 << 8 || status == SIGSEGV);
    }
    CHECK(kill(busy, SIGKILL) == 0 && is_killed_by(busy, SIGKILL));
}

static const struct test_case CASES[] = {
    { "refused", refused }, { "headers", headers }, { "interpreter", interpreter }, { "stacks", stacks },
};

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    char folder[] = "/tmp/images-XXXXXX";
    if (!mkdtemp(folder) || chdir(folder))
        return 1;
    int code = run_cases(CASES, sizeof CASES / sizeof *CASES, name, 40);
    unlink("image");
    return rmdir(folder) ? 1 : code;
}
