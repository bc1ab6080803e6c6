/* Limits of memory, and process_vm_readv and process_vm_writev. */
#include "case.h"
#include <sys/uio.h>

static void set(int resource, rlim_t bytes)
{
    struct rlimit limit;
    OK(getrlimit(resource, &limit));
    limit.rlim_cur = bytes;
    OK(setrlimit(resource, &limit));
}

static void limits(void)
{
    struct rlimit limit;
    FAILS(EINVAL, syscall(SYS_getrlimit, 16, &limit));
    FAILS(EFAULT, syscall(SYS_getrlimit, RLIMIT_AS, (void *)8));
    FAILS(ESRCH, syscall(SYS_prlimit64, 999999, RLIMIT_AS, NULL, &limit));
    limit = (struct rlimit){ 2, 1 };
    FAILS(EINVAL, syscall(SYS_setrlimit, RLIMIT_AS, &limit));
    FAILS(EINVAL, syscall(SYS_prlimit64, 0, 99, NULL, &limit));
    limit = (struct rlimit){ 4 * MIB, RLIM_INFINITY };
    OK(setrlimit(RLIMIT_CORE, &limit));
    OK(getrlimit(RLIMIT_CORE, &limit));
    CHECK(limit.rlim_cur == 4 * MIB);
}

static void address_space(void)
{
    char *block = map(4 * MIB, PROT_READ, ANON);
    set(RLIMIT_AS, 64 * MIB);
    FAILS(ENOMEM, mmap(NULL, 64 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0));
    FAILS(ENOMEM, mremap(block, 4 * MIB, 80 * MIB, MREMAP_MAYMOVE));
    char *more = map(16 * MIB, RW, ANON);
    set(RLIMIT_AS, 1);
    FAILS(ENOMEM, mmap(NULL, PAGE, PROT_READ, ANON, -1, 0));
    CHECK(mmap(more, PAGE, PROT_READ, ANON | MAP_FIXED, -1, 0) == more || errno == ENOMEM);
    void *end = (void *)syscall(SYS_brk, 0);
    CHECK((void *)syscall(SYS_brk, (char *)end + MIB) == end);
    OK(munmap(more, 16 * MIB));
}

static void data(void)
{
    char *block = map(64 * MIB, PROT_READ, ANON | MAP_NORESERVE);
    set(RLIMIT_DATA, 32 * MIB);
    FAILS(ENOMEM, mmap(NULL, 33 * MIB, RW, ANON, -1, 0));
    CHECK(mmap(NULL, 33 * MIB, PROT_READ, ANON | MAP_NORESERVE, -1, 0) != MAP_FAILED);
    CHECK(mmap(NULL, 33 * MIB, RW, SHARED, -1, 0) != MAP_FAILED);
    FAILS(ENOMEM, mprotect(block, 64 * MIB, RW));
    OK(mprotect(block, 16 * MIB, RW));
    FAILS(ENOMEM, mremap(block, 16 * MIB, 40 * MIB, MREMAP_MAYMOVE));
    void *end = (void *)syscall(SYS_brk, 0);
    CHECK((void *)syscall(SYS_brk, (char *)end + 40 * MIB) == end);
    CHECK((void *)syscall(SYS_brk, (char *)end + MIB) == (char *)end + MIB);
}

/* Memory that a user without rights may lock. The sum of what is locked and what is asked for has no overflow. */
static void locked(void)
{
    if (geteuid() != 0)
        return;
    set(RLIMIT_MEMLOCK, 16 * PAGE);
    OK(setuid(65534));
    char *memory = map(2 * PAGE, RW, ANON);
    OK(mlock(memory, PAGE));
    FAILS(ENOMEM, mmap(NULL, -PAGE, RW, ANON | MAP_LOCKED, -1, 0));
    FAILS(EAGAIN, mmap(NULL, 16 * PAGE, RW, ANON | MAP_LOCKED, -1, 0));
    map(15 * PAGE, RW, ANON | MAP_LOCKED);
}

/* The limit holds for memory that is locked because a mapping grows, or because all new ones are locked. */
static void locked_later(void)
{
    if (geteuid() != 0)
        return;
    set(RLIMIT_MEMLOCK, 16 * PAGE);
    OK(setuid(65534));
    char *memory = map(PAGE, RW, ANON | MAP_LOCKED);
    FAILS(EAGAIN, mremap(memory, PAGE, 64 * PAGE, MREMAP_MAYMOVE));
    CHECK(mremap(memory, PAGE, 2 * PAGE, MREMAP_MAYMOVE) != MAP_FAILED);
    char *end = (char *)syscall(SYS_brk, 0);
    OK(mlockall(MCL_FUTURE));
    FAILS(EAGAIN, mmap(NULL, 64 * PAGE, RW, ANON, -1, 0));
    CHECK((char *)syscall(SYS_brk, end + 64 * PAGE) == end);
    map(2 * PAGE, RW, ANON);
    CHECK((char *)syscall(SYS_brk, end + 2 * PAGE) == end + 2 * PAGE);
    set(RLIMIT_MEMLOCK, 0);
    FAILS(EAGAIN, mmap(NULL, PAGE, RW, ANON, -1, 0));
    FAILS(EPERM, mmap(NULL, PAGE, RW, ANON | MAP_LOCKED, -1, 0));
}

static char *theirs;

static void other_process(void)
{
    char *mine = map(4 * PAGE, RW, ANON);
    theirs = map(4 * PAGE, RW, ANON);
    strcpy(theirs, "parent");
    char *word = map(PAGE, RW, SHARED);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        strcpy(theirs, "child");
        strcpy(theirs + PAGE - 2, "edge");
        OK(mprotect(theirs + 2 * PAGE, PAGE, PROT_READ));
        OK(munmap(theirs + 3 * PAGE, PAGE));
        *(volatile char *)word = 1;
        while (*(volatile char *)word != 2)
            sched_yield();
        _exit(strcmp(theirs, "written") != 0);
    }
    while (*(volatile char *)word != 1)
        sched_yield();
    struct iovec own[2] = { { mine, 16 }, { mine + PAGE, 16 } };
    struct iovec other[2] = { { theirs, 8 }, { theirs + PAGE - 2, 24 } };
    CHECK(process_vm_readv(child, own, 2, other, 2, 0) == 32);
    CHECK(!strcmp(mine, "child") && !memcmp(mine + 8, "edge", 5));
    struct iovec write = { "written", 8 };
    CHECK(process_vm_writev(child, &write, 1, other, 1, 0) == 8);
    CHECK(!strcmp(theirs, "parent"));
    FAILS(EINVAL, process_vm_readv(child, own, 2, other, 2, 1));
    FAILS(EINVAL, process_vm_readv(child, own, 2000, other, 2, 0));
    FAILS(ESRCH, process_vm_readv(999999, own, 2, other, 2, 0));
    FAILS(EFAULT, process_vm_readv(child, (void *)8, 1, other, 1, 0));
    CHECK(process_vm_readv(child, own, 0, other, 2, 0) == 0);
    struct iovec hole = { theirs + 3 * PAGE, 8 }, edge = { theirs + 2 * PAGE, 2 * PAGE }, big = { mine, 4 * PAGE };
    FAILS(EFAULT, process_vm_readv(child, own, 1, &hole, 1, 0));
    CHECK(process_vm_readv(child, &big, 1, &edge, 1, 0) == PAGE);
    FAILS(EFAULT, process_vm_writev(child, &big, 1, &edge, 1, 0));
    struct iovec self = { theirs, 8 };
    CHECK(process_vm_readv(getpid(), own, 1, &self, 1, 0) == 8 && !strcmp(mine, "parent"));
    *(volatile char *)word = 2;
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FAILS(ESRCH, process_vm_readv(child, own, 2, other, 2, 0));
}

MAIN(CASE(limits), CASE(address_space), CASE(data), CASE(locked), CASE(locked_later), CASE(other_process))
