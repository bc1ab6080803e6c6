/* What kernel/test runs in the kernel: memory used as programs use it. Each case checks what it reads back.
 *
 * The first argument chooses the case. Status 0 is success, 1 a wrong answer, 2 an unknown case.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            return 1; \
        } \
    } while (0)

static uint64_t *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void number(uint64_t *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes / 8; at += PAGE / 8)
        memory[at] = at + 1;
}

static int numbered(const uint64_t *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes / 8; at += PAGE / 8)
        if (memory[at] != at + 1)
            return 0;
    return 1;
}

/* Maps, touches and unmaps more memory in all than the machine has. */
static int churn(void)
{
    for (int round = 0; round < 8; round++) {
        size_t bytes = 64UL << 20;
        uint64_t *memory = map(bytes);
        CHECK(memory);
        for (size_t at = 0; at < bytes / 8; at += PAGE / 8)
            CHECK(memory[at] == 0);
        number(memory, bytes);
        CHECK(numbered(memory, bytes));
        CHECK(munmap(memory, bytes) == 0);
    }
    return 0;
}

/* mremap keeps contents; mprotect is enforced for the kernel's accesses too. Runs on several machines, so it also shows
 * that the kernel starts there (X1). */
static int verbs(void)
{
    size_t bytes = 8UL << 20;
    uint64_t *memory = map(bytes);
    CHECK(memory);
    number(memory, bytes);
    uint64_t *moved = mremap(memory, bytes, 2 * bytes, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    CHECK(numbered(moved, bytes) && moved[bytes / 8] == 0);
    CHECK(mprotect(moved, PAGE, PROT_READ) == 0);
    CHECK(numbered(moved, bytes));
    CHECK(write(1, (char *)8, 1) == -1 && errno == EFAULT);
    int self = open("/bin/memory", O_RDONLY);
    CHECK(self >= 0 && read(self, moved, 8) == -1 && errno == EFAULT);
    CHECK(mprotect(moved, PAGE, PROT_NONE) == 0);
    CHECK(write(1, moved, 1) == -1 && errno == EFAULT);
    CHECK(read(self, moved, 8) == -1 && errno == EFAULT);
    CHECK(mprotect(moved, PAGE, PROT_READ) == 0);
    CHECK(moved[0] == 1);
    CHECK(mprotect(moved, PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(madvise(moved, bytes, MADV_DONTNEED) == 0);
    for (size_t at = 0; at < bytes / 8; at += PAGE / 8)
        CHECK(moved[at] == 0);
    CHECK(munmap((char *)moved + PAGE, PAGE) == 0);
    CHECK(munmap(moved, 2 * bytes) == 0);
    CHECK(mmap((void *)1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
    CHECK(errno == EINVAL);
    return 0;
}

/* After each change the old translation must not be used. */
static int flushes(void)
{
    for (int round = 0; round < 1000; round++) {
        volatile uint64_t *memory = map(PAGE);
        CHECK(memory);
        memory[0] = round;
        CHECK(madvise((void *)memory, PAGE, MADV_DONTNEED) == 0);
        CHECK(memory[0] == 0);
        memory[0] = round;
        CHECK(munmap((void *)memory, PAGE) == 0);
    }
    return 0;
}

static int heap(void)
{
    uint64_t *blocks[64];
    for (int at = 0; at < 64; at++) {
        blocks[at] = malloc(100000);
        CHECK(blocks[at]);
        number(blocks[at], 100000);
    }
    for (int at = 0; at < 64; at++) {
        CHECK(numbered(blocks[at], 100000));
        free(blocks[at]);
    }
    return 0;
}

/* A private mapping of a file shows what reading gives; stores to it stay private. */
static int file(void)
{
    static char bytes[8 * PAGE];
    int one = open("/bin/memory", O_RDONLY), two = open("/bin/memory", O_RDONLY);
    CHECK(one >= 3 && two == one + 1);
    CHECK(read(one, bytes, sizeof bytes) == sizeof bytes);
    char *mapped = mmap(NULL, sizeof bytes - PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, one, PAGE);
    CHECK(mapped != MAP_FAILED);
    CHECK(close(one) == 0 && close(one) == -1 && errno == EBADF);
    CHECK(memcmp(mapped, bytes + PAGE, sizeof bytes - PAGE) == 0);
    mapped[0] ^= 1;
    CHECK(read(two, bytes, sizeof bytes) == sizeof bytes);
    CHECK(mapped[0] == (bytes[PAGE] ^ 1));
    CHECK(mapped[1] == bytes[PAGE + 1]);
    CHECK(open("/missing", O_RDONLY) == -1 && errno == ENOENT);
    return 0;
}

/* A program that can stand anywhere stands where its alignment wants it. */
extern const char __ehdr_start;
static int aligned(const char *wanted)
{
    uintptr_t start = (uintptr_t)&__ehdr_start;
    CHECK(start && start % strtoul(wanted, NULL, 0) == 0);
    return 0;
}

/* Grows the stack far beyond what is mapped at first. */
static int stack(int depth)
{
    volatile char frame[16384];
    memset((char *)frame, depth, sizeof frame);
    return depth == 0 ? frame[0] : stack(depth - 1) + frame[5] - (char)depth;
}

static int overflow(volatile char *above)
{
    volatile char frame[65536];
    frame[0] = above[0];
    return overflow(frame) + frame[0];
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    if (!strcmp(name, "churn"))
        return churn();
    if (!strcmp(name, "verbs"))
        return verbs();
    if (!strcmp(name, "flushes"))
        return flushes();
    if (!strcmp(name, "file"))
        return file();
    if (!strcmp(name, "heap"))
        return heap();
    if (!strcmp(name, "aligned") && count > 2)
        return aligned(arguments[2]);
    if (!strcmp(name, "stack")) {
        /* Programs keep marks in the bits of addresses that four levels of page tables leave free. */
        if ((uintptr_t)&count >> 47)
            return 2;
        return stack(400) != 0;
    }
    if (!strcmp(name, "overflow"))
        return overflow((volatile char *)name);
    if (!strcmp(name, "null"))
        return *(volatile char *)NULL;
    if (!strcmp(name, "text"))
        *(volatile char *)(uintptr_t)main = 0;
    if (!strcmp(name, "kernel"))
        return *(volatile char *)0xffff800000000000UL;
    if (!strcmp(name, "execute")) {
        uint64_t *memory = map(PAGE);
        memset(memory, 0xc3, 16);
        ((void (*)(void))memory)();
    }
    if (!strcmp(name, "trap"))
        __builtin_trap();
    return 2;
}
