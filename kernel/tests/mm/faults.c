/* What a handler learns of an access that cannot be: the signal, why, and the address. */
#include "case.h"
#include <setjmp.h>

static sigjmp_buf back;
static siginfo_t seen;

static void handler(int signal, siginfo_t *info, void *context)
{
    (void)context;
    seen = *info;
    seen.si_signo = signal;
    siglongjmp(back, 1);
}

enum access { LOAD, STORE, CALL };

/* Makes the access. Whether it raises this signal, for this reason, at this address. */
static bool raises(enum access access, volatile char *at, int signal, int code, const volatile void *shown)
{
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER };
    OK(sigaction(SIGSEGV, &action, NULL));
    OK(sigaction(SIGBUS, &action, NULL));
    seen.si_signo = 0;
    if (!sigsetjmp(back, 1)) {
        if (access == LOAD)
            (void)*at;
        else if (access == STORE)
            *at = 1;
        else
            ((void (*)(void))(uintptr_t)at)();
    }
    bool is_right = seen.si_signo == signal && seen.si_code == code && seen.si_addr == shown;
    if (!is_right)
        printf("signal %d, code %d, address %p\n", seen.si_signo, seen.si_code, seen.si_addr);
    return is_right;
}

/* Nothing is mapped there. */
static void nothing(void)
{
    char *hole = map(3 * PAGE, RW, ANON);
    OK(munmap(hole + PAGE, PAGE));
    CHECK(raises(LOAD, hole + PAGE + 77, SIGSEGV, SEGV_MAPERR, hole + PAGE + 77));
    CHECK(raises(STORE, hole + 2 * PAGE - 1, SIGSEGV, SEGV_MAPERR, hole + 2 * PAGE - 1));
    CHECK(raises(CALL, hole + PAGE + 16, SIGSEGV, SEGV_MAPERR, hole + PAGE + 16));
    CHECK(raises(LOAD, NULL, SIGSEGV, SEGV_MAPERR, NULL));
    /* The kernel's half, and what is no address: the processor names none. */
    char *kernel = (char *)0xffff800000000123;
    CHECK(raises(LOAD, kernel, SIGSEGV, SEGV_MAPERR, kernel));
    CHECK(raises(STORE, (char *)0x8000000000000000, SIGSEGV, SI_KERNEL, NULL));
}

/* The mapping forbids it, whether the page is there or not. */
static void forbidden(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    memory[0] = memory[2 * PAGE] = 1;
    OK(mprotect(memory, 2 * PAGE, PROT_READ));
    OK(mprotect(memory + 2 * PAGE, 2 * PAGE, PROT_NONE));
    for (size_t page = 0; page < 4; page++) {
        char *at = memory + page * PAGE + 5;
        CHECK(raises(STORE, at, SIGSEGV, SEGV_ACCERR, at) && raises(CALL, at, SIGSEGV, SEGV_ACCERR, at));
        CHECK(page < 2 || raises(LOAD, at, SIGSEGV, SEGV_ACCERR, at));
    }
    char *shared = map(PAGE, PROT_READ, SHARED);
    CHECK(raises(STORE, shared + 9, SIGSEGV, SEGV_ACCERR, shared + 9));
}

/* The file has no such page. */
static void behind_the_end(void)
{
    int file = memfd_create("short", 0);
    CHECK(file >= 0);
    OK(ftruncate(file, PAGE));
    for (int kind = 0; kind < 2; kind++) {
        char *memory = mmap(NULL, 3 * PAGE, RW, kind ? MAP_PRIVATE : MAP_SHARED, file, 0);
        CHECK(memory != MAP_FAILED);
        memory[PAGE - 1] = 1;
        CHECK(raises(LOAD, memory + PAGE, SIGBUS, BUS_ADRERR, memory + PAGE));
        CHECK(raises(STORE, memory + 2 * PAGE + 50, SIGBUS, BUS_ADRERR, memory + 2 * PAGE + 50));
    }
}

/* The frame of the page has failed. Not on Linux, which would lose a frame in each run. */
static void failed_memory(void)
{
    if (!is_quire())
        return;
    char *memory = map(2 * PAGE, RW, ANON);
    memory[0] = memory[PAGE] = 1;
    OK(madvise(memory, PAGE, MADV_HWPOISON));
    CHECK(raises(LOAD, memory + 33, SIGBUS, BUS_MCEERR_AR, memory + 33) && seen.si_addr_lsb == 12);
    CHECK(raises(STORE, memory + 33, SIGBUS, BUS_MCEERR_AR, memory + 33) && memory[PAGE] == 1);
    /* A huge page is lost as a whole. */
    int pool = open("/proc/sys/vm/nr_hugepages", O_WRONLY);
    CHECK(pool >= 0 && write(pool, "1", 1) == 1);
    memory = map(2 * MIB, RW, ANON | MAP_HUGETLB);
    memory[0] = 1;
    OK(madvise(memory + PAGE, PAGE, MADV_HWPOISON));
    CHECK(raises(LOAD, memory + MIB, SIGBUS, BUS_MCEERR_AR, memory + MIB) && seen.si_addr_lsb == 21);
    CHECK(write(pool, "0", 1) == 1);
}

MAIN(CASE(nothing), CASE(forbidden), CASE(behind_the_end), CASE(failed_memory))
