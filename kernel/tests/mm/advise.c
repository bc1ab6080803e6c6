/* madvise, mincore, msync, mlock, membarrier. */
#include "case.h"
#include <sys/uio.h>

enum { COLD = 20, PAGEOUT, POPULATE_READ, POPULATE_WRITE, DONTNEED_LOCKED, COLLAPSE };

static void madvise_errors(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    FAILS(EINVAL, madvise(memory, PAGE, 99));
    FAILS(EINVAL, madvise(memory + 1, PAGE, MADV_DONTNEED));
    FAILS(EINVAL, madvise(memory, -1UL, MADV_DONTNEED));
    OK(madvise(memory, 0, MADV_DONTNEED));
    FAILS(EINVAL, madvise(memory, 0, 99));
    OK(munmap(memory + PAGE, PAGE));
    static const int advices[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_FREE,
        MADV_DONTFORK, MADV_DOFORK, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_WIPEONFORK,
        MADV_KEEPONFORK, COLD, PAGEOUT, POPULATE_READ, POPULATE_WRITE, DONTNEED_LOCKED };
    for (size_t at = 0; at < sizeof advices / sizeof *advices; at++) {
        FAILS(ENOMEM, madvise(memory, 4 * PAGE, advices[at]));
        OK(madvise(memory + 2 * PAGE, 2 * PAGE, advices[at]));
        OK(madvise(memory, 1, advices[at]));
    }
    FAILS(EINVAL, madvise(memory, PAGE, MADV_REMOVE));
}

static void contents(void)
{
    char *memory = map(4 * PAGE, RW, ANON), *shared = map(4 * PAGE, RW, SHARED);
    memset(memory, 1, 4 * PAGE);
    memset(shared, 1, 4 * PAGE);
    OK(madvise(memory, 2 * PAGE, MADV_DONTNEED));
    CHECK(memory[0] == 0 && memory[PAGE] == 0 && memory[2 * PAGE] == 1);
    OK(madvise(shared, 2 * PAGE, MADV_DONTNEED));
    CHECK(shared[0] == 1);
    OK(madvise(shared + PAGE, 2 * PAGE, MADV_REMOVE));
    CHECK(shared[0] == 1 && shared[PAGE] == 0 && shared[2 * PAGE] == 0 && shared[3 * PAGE] == 1);
    FAILS(EINVAL, madvise(shared, PAGE, MADV_FREE));
    FAILS(EINVAL, madvise(shared, PAGE, MADV_WIPEONFORK));
    OK(mprotect(shared, PAGE, PROT_READ));
    OK(madvise(shared, PAGE, MADV_REMOVE));
    CHECK(shared[0] == 0);
    memset(memory, 2, 4 * PAGE);
    OK(madvise(memory, 4 * PAGE, MADV_FREE));
    CHECK(memory[0] == 2 || memory[0] == 0);
    memory[PAGE] = 3;
    CHECK(memory[PAGE] == 3);
}

static void populate(void)
{
    unsigned char in[4];
    char *memory = map(4 * PAGE, RW, ANON);
    OK(madvise(memory, 2 * PAGE, POPULATE_WRITE));
    OK(mincore(memory, 4 * PAGE, in));
    CHECK(in[0] == 1 && in[1] == 1 && in[2] == 0);
    OK(mprotect(memory + 2 * PAGE, PAGE, PROT_READ));
    FAILS(EINVAL, madvise(memory + 2 * PAGE, PAGE, POPULATE_WRITE));
    OK(madvise(memory + 2 * PAGE, PAGE, POPULATE_READ));
    OK(mprotect(memory + 3 * PAGE, PAGE, PROT_NONE));
    FAILS(EINVAL, madvise(memory + 3 * PAGE, PAGE, POPULATE_READ));
}

static char *memory_of_parent;

static void check_fork(void *unused)
{
    (void)unused;
    CHECK(memory_of_parent[0] == 1 && memory_of_parent[2 * PAGE] == 0 && memory_of_parent[3 * PAGE] == 1);
    FAILS(ENOMEM, msync(memory_of_parent + PAGE, PAGE, MS_ASYNC));
    OK(msync(memory_of_parent + 2 * PAGE, 2 * PAGE, MS_ASYNC));
}

static void forks(void)
{
    memory_of_parent = map(4 * PAGE, RW, ANON);
    memset(memory_of_parent, 1, 4 * PAGE);
    OK(madvise(memory_of_parent + PAGE, PAGE, MADV_DONTFORK));
    OK(madvise(memory_of_parent + 2 * PAGE, PAGE, MADV_WIPEONFORK));
    CHECK(in_child(check_fork, NULL) == 0);
    CHECK(memory_of_parent[PAGE] == 1 && memory_of_parent[2 * PAGE] == 1);
}

static void in_core(void)
{
    unsigned char in[4];
    char *memory = map(4 * PAGE, RW, ANON);
    memory[PAGE] = 1;
    FAILS(EINVAL, mincore(memory + 1, PAGE, in));
    FAILS(EFAULT, mincore(memory, PAGE, (void *)-PAGE));
    FAILS(EFAULT, mincore(memory, PAGE, (void *)8));
    FAILS(ENOMEM, mincore(memory, -PAGE, in));
    OK(mincore(memory, 3 * PAGE + 1, in));
    CHECK(in[0] == 0 && in[1] == 1 && in[2] == 0 && in[3] == 0);
    OK(munmap(memory + 3 * PAGE, PAGE));
    FAILS(ENOMEM, mincore(memory, 4 * PAGE, in));
    OK(mincore(memory, 0, in));
}

static void synced(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    FAILS(EINVAL, msync(memory, PAGE, 8));
    FAILS(EINVAL, msync(memory, PAGE, MS_SYNC | MS_ASYNC));
    FAILS(EINVAL, msync(memory + 1, PAGE, MS_SYNC));
    FAILS(ENOMEM, msync(memory, -PAGE, MS_SYNC));
    OK(msync(memory, 0, 0));
    OK(msync(memory, 4 * PAGE, MS_SYNC | MS_INVALIDATE));
    OK(mlock(memory, PAGE));
    FAILS(EBUSY, msync(memory, 4 * PAGE, MS_SYNC | MS_INVALIDATE));
    OK(munmap(memory + PAGE, PAGE));
    FAILS(ENOMEM, msync(memory, 4 * PAGE, MS_SYNC));
    FAILS(ENOMEM, msync(memory, 4 * PAGE, MS_ASYNC));
}

static void locked(void)
{
    unsigned char in[4];
    char *memory = map(4 * PAGE, RW, ANON);
    OK(mlock(memory + 1, PAGE));
    OK(mincore(memory, 4 * PAGE, in));
    CHECK(in[0] == 1 && in[1] == 1 && in[2] == 0);
    FAILS(EINVAL, madvise(memory, PAGE, MADV_DONTNEED));
    FAILS(EINVAL, madvise(memory, PAGE, MADV_FREE));
    FAILS(EINVAL, madvise(memory, PAGE, COLD));
    OK(madvise(memory, PAGE, DONTNEED_LOCKED));
    OK(munlock(memory, 2 * PAGE));
    OK(madvise(memory, PAGE, MADV_DONTNEED));
    FAILS(EINVAL, syscall(SYS_mlock2, memory, PAGE, 2));
    OK(syscall(SYS_mlock2, memory + 2 * PAGE, PAGE, 1));
    OK(mincore(memory, 4 * PAGE, in));
    CHECK(in[2] == 0);
    FAILS(EINVAL, mlock((void *)-PAGE, 2 * PAGE));
    FAILS(ENOMEM, mlock((void *)(4 * PAGE), PAGE));
    FAILS(ENOMEM, munlock((void *)(4 * PAGE), PAGE));
    FAILS(EINVAL, mlockall(0));
    FAILS(EINVAL, mlockall(8));
    FAILS(EINVAL, mlockall(4));
    OK(mlockall(MCL_FUTURE));
    char *later = map(2 * PAGE, RW, ANON);
    OK(mincore(later, 2 * PAGE, in));
    CHECK(in[0] == 1 && in[1] == 1);
    OK(munlockall());
    OK(mlockall(MCL_CURRENT));
    FAILS(EINVAL, madvise(memory, PAGE, MADV_DONTNEED));
    OK(munlockall());
    OK(madvise(memory, PAGE, MADV_DONTNEED));
}

static void barriers(void)
{
    long commands = syscall(SYS_membarrier, 0, 0, 0);
    CHECK(commands > 0 && (commands & 1));
    FAILS(EINVAL, syscall(SYS_membarrier, 0, 1, 0));
    FAILS(EINVAL, syscall(SYS_membarrier, 3, 0, 0));
    FAILS(EINVAL, syscall(SYS_membarrier, 1 << 20, 0, 0));
    FAILS(EPERM, syscall(SYS_membarrier, 8, 0, 0));
    OK(syscall(SYS_membarrier, 1, 0, 0));
    OK(syscall(SYS_membarrier, 2, 0, 0));
    OK(syscall(SYS_membarrier, 16, 0, 0));
    OK(syscall(SYS_membarrier, 8, 0, 0));
    FAILS(EPERM, syscall(SYS_membarrier, 32, 0, 0));
    CHECK(syscall(SYS_membarrier, 512, 0, 0) == 16);
}

/* How many KiB of the mapping of this address are in large leaves. */
static long huge_kib(char *at)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long start, end;
    long found = -1;
    bool is_here = false;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_here = start <= (uintptr_t)at && (uintptr_t)at < end;
        else if (is_here)
            sscanf(line, "AnonHugePages: %ld", &found);
    }
    fclose(file);
    return found;
}

static void collapsed(void)
{
    char *block = map(4 * MIB, RW, ANON);
    char *at = (char *)(((uintptr_t)block + 2 * MIB - 1) & ~(2 * MIB - 1));
    FAILS(EINVAL, madvise(at, PAGE, COLLAPSE) == 0 ? (errno = EINVAL, -1) : -1);
    OK(madvise(at, 2 * MIB, MADV_NOHUGEPAGE));
    memset(at, 5, 2 * MIB);
    CHECK(huge_kib(at) == 0);
    FAILS(EINVAL, madvise(at, 2 * MIB, COLLAPSE));
    OK(madvise(at, 2 * MIB, MADV_HUGEPAGE));
    OK(madvise(at, 2 * MIB, COLLAPSE));
    CHECK(huge_kib(at) == 2048);
    for (size_t page = 0; page < 512; page++)
        CHECK(at[page * PAGE] == 5);
    FAILS(EINVAL, madvise(at + 1, PAGE, COLLAPSE));
}

/* Advices about the memory of another process. */
static void of_others(void)
{
    char *block = map(4 * MIB, RW, ANON);
    char *at = (char *)(((uintptr_t)block + 2 * MIB - 1) & ~(2 * MIB - 1));
    struct iovec ranges[2] = { { at, 2 * MIB }, { at, PAGE } };
    OK(madvise(at, 2 * MIB, MADV_NOHUGEPAGE));
    memset(at, 5, 2 * MIB);
    OK(madvise(at, 2 * MIB, MADV_HUGEPAGE));
    int ends[2];
    OK(pipe(ends));
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        int process = syscall(SYS_pidfd_open, parent, 0);
        CHECK(process >= 0);
        FAILS(EBADF, syscall(SYS_process_madvise, ends[0], ranges, 1, COLD, 0));
        FAILS(EINVAL, syscall(SYS_process_madvise, process, ranges, 1, COLD, 1));
        FAILS(EINVAL, syscall(SYS_process_madvise, process, ranges, 1, MADV_DONTNEED, 0));
        FAILS(EINVAL, syscall(SYS_process_madvise, process, ranges, 1025, COLD, 0));
        if (geteuid() == 0) {
            CHECK(syscall(SYS_process_madvise, process, ranges, 2, MADV_WILLNEED, 0) == (long)(2 * MIB + PAGE));
            CHECK(syscall(SYS_process_madvise, process, ranges, 1, COLD, 0) == (long)(2 * MIB));
            CHECK(syscall(SYS_process_madvise, process, ranges, 1, COLLAPSE, 0) == (long)(2 * MIB));
            ranges[1].iov_base = (void *)(PAGE + 1);
            CHECK(syscall(SYS_process_madvise, process, ranges, 2, COLD, 0) == (long)(2 * MIB));
            FAILS(EINVAL, syscall(SYS_process_madvise, process, ranges + 1, 1, COLD, 0));
            OK(setresuid(1000, 1000, 1000));
        }
        FAILS(geteuid() == 1000 ? EACCES : EPERM, syscall(SYS_process_madvise, process, ranges, 1, COLD, 0));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(geteuid() != 0 || huge_kib(at) == 2048);
    for (size_t page = 0; page < 512; page++)
        CHECK(at[page * PAGE] == 5);
    int own = syscall(SYS_pidfd_open, getpid(), 0);
    CHECK(syscall(SYS_process_madvise, own, ranges, 1, COLD, 0) == (long)(2 * MIB));
}

static void ruined(void *memory)
{
    *(volatile char *)memory = 1;
}

/* Not every user may take memory out of use. */
static void poison_as_user(void *memory)
{
    OK(setuid(65534));
    for (int advice = 100; advice < 102; advice++) {
        FAILS(EPERM, madvise(memory, PAGE, advice));
        FAILS(EINVAL, madvise((char *)memory + 1, PAGE, advice));
        OK(madvise(memory, 0, advice));
    }
}

/* The only test that takes memory out of use: not on a machine that others need. */
static void poisoned(void)
{
    if (!is_quire())
        return;
    char *memory = map(2 * PAGE, RW, ANON);
    memset(memory, 1, 2 * PAGE);
    CHECK(in_child(poison_as_user, memory) == 0);
    OK(madvise(memory, PAGE, 101));
    CHECK(memory[0] == 1);
    OK(madvise(memory, PAGE, 100));
    CHECK(in_child(ruined, memory) == SIGBUS);
    CHECK(memory[PAGE] == 1);
    FAILS(EINVAL, madvise(memory + 1, PAGE, 100));
}

MAIN(CASE(madvise_errors), CASE(contents), CASE(populate), CASE(forks), CASE(in_core), CASE(synced), CASE(locked),
     CASE(barriers), CASE(collapsed), CASE(of_others), CASE(poisoned))
