/* After each call that changes translations, four threads, each on a CPU of its own, look through those that they had:
 * nothing may be seen, or stored to, that the call took away. It passes on Linux too.
 *
 *   flushes [ROUNDS]
 *
 * Status 0: as many rounds as wanted in which the threads were on as many CPUs as there are, up to four. Status 1: a
 * stale translation.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define PAGE 4096UL
#define BLOCK (2UL << 20)
#define MADV_COLLAPSE_NUMBER 25
#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            exit(2); \
        } \
    } while (0)

/* What all threads do with a word of the memory. */
enum look {
    HAS,        /* read it: it has the value */
    ZERO,       /* read it: it is zero */
    GONE,       /* read it: it faults */
    READ_ONLY,  /* it has the value, and a store faults */
    STORE,      /* store the value into the thread's own word */
    STORED,     /* read the words that all threads have stored */
    END,
};

static struct {
    enum look look;
    volatile uint64_t *at;
    uint64_t value;
} question;
static atomic_uint asked, answered, stale, cpus;
static __thread sigjmp_buf after_fault;

static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(after_fault, 1);
}

static int read_faults(volatile uint64_t *at, uint64_t *value)
{
    if (sigsetjmp(after_fault, 0))
        return 1;
    *value = *at;
    return 0;
}

static int store_faults(volatile uint64_t *at, uint64_t value)
{
    if (sigsetjmp(after_fault, 0))
        return 1;
    *at = value;
    return 0;
}

/* Whether the answer is wrong. */
static int look(unsigned thread)
{
    volatile uint64_t *at = question.at;
    uint64_t value = question.value, found = 0;
    switch (question.look) {
    case HAS: return read_faults(at, &found) || found != value;
    case ZERO: return read_faults(at, &found) || found != 0;
    case GONE: return !read_faults(at, &found);
    case READ_ONLY: return read_faults(at, &found) || found != value || !store_faults(at, ~value);
    case STORE: return store_faults(at + thread, value + thread);
    case STORED:
        for (unsigned other = 0; other < THREADS; other++)
            if (read_faults(at + other, &found) || found != value + other)
                return 1;
        return 0;
    case END: break;
    }
    return 0;
}

/* Waits until a number is at least this. It sleeps after a while: another thread may need the CPU. */
static void wait_for(atomic_uint *number, unsigned least)
{
    for (unsigned turns = 0, found; (found = atomic_load(number)) < least; turns++)
        if (turns < 20000)
            __builtin_ia32_pause();
        else
            syscall(SYS_futex, number, FUTEX_WAIT_PRIVATE, found, NULL, NULL, 0);
}

static void add(atomic_uint *number)
{
    atomic_fetch_add(number, 1);
    syscall(SYS_futex, number, FUTEX_WAKE_PRIVATE, THREADS, NULL, NULL, 0);
}

static void answer(unsigned thread)
{
    if (look(thread))
        atomic_fetch_add(&stale, 1);
    atomic_fetch_or(&cpus, 1u << sched_getcpu());
    add(&answered);
}

static void ask(enum look what, void *at, uint64_t value)
{
    question.look = what;
    question.at = at;
    question.value = value;
    atomic_store(&answered, 0);
    add(&asked);
    answer(0);
    wait_for(&answered, THREADS);
    if (stale) {
        printf("a stale translation at %p: question %d for %#lx\n", at, what, value);
        exit(1);
    }
}

/* Runs on a CPU of its own, with that CPU's area (X2). */
static void *serve(void *number)
{
    for (unsigned seen = 1;; seen++) {
        wait_for(&asked, seen);
        enum look what = question.look;
        answer((uintptr_t)number);
        if (what == END)
            return NULL;
    }
}

static char *map(size_t bytes, int flags, int file)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

/* All threads store to the memory and read it, so that they have translations. */
static void use(void *at, uint64_t value)
{
    ask(STORE, at, value);
    ask(STORED, at, value);
}

static void unmapped(uint64_t value)
{
    char *at = map(PAGE, ANONYMOUS, -1);
    use(at, value);
    CHECK(munmap(at, PAGE) == 0);
    ask(GONE, at, 0);
}

static void protected(uint64_t value)
{
    char *at = map(PAGE, ANONYMOUS, -1);
    use(at, value);
    CHECK(mprotect(at, PAGE, PROT_READ) == 0);
    ask(READ_ONLY, at, value);
    CHECK(mprotect(at, PAGE, PROT_NONE) == 0);
    ask(GONE, at, 0);
    CHECK(mprotect(at, PAGE, PROT_READ | PROT_WRITE) == 0);
    use(at, value + 1);
    CHECK(munmap(at, PAGE) == 0);
}

static void moved(uint64_t value)
{
    char *at = map(PAGE, ANONYMOUS, -1), *to = map(PAGE, ANONYMOUS, -1);
    use(at, value);
    use(to, ~value);
    CHECK(mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    ask(STORED, to, value);
    ask(GONE, at, 0);
    CHECK(munmap(to, PAGE) == 0);
}

static void discarded(uint64_t value)
{
    char *at = map(PAGE, ANONYMOUS, -1);
    use(at, value);
    CHECK(madvise(at, PAGE, MADV_DONTNEED) == 0);
    ask(ZERO, at, 0);
    use(at, value);
    CHECK(mmap(at, PAGE, PROT_READ, ANONYMOUS | MAP_FIXED, -1, 0) == at);
    ask(ZERO, at, 0);
    CHECK(munmap(at, PAGE) == 0);
}

/* What is freed of a file, or cut off, is gone from all mappings. */
static void file(uint64_t value)
{
    int fd = memfd_create("flushes", 0);
    CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
    char *at = map(PAGE, MAP_SHARED, fd), *private = map(PAGE, MAP_PRIVATE, fd);
    use(at, value);
    ask(STORED, private, value);
    CHECK(madvise(at, PAGE, MADV_REMOVE) == 0);
    ask(ZERO, at, 0);
    use(at, value);
    ask(STORED, private, value);
    CHECK(ftruncate(fd, 0) == 0);
    ask(GONE, at, 0);
    ask(GONE, private, 0);
    CHECK(munmap(at, PAGE) == 0 && munmap(private, PAGE) == 0 && close(fd) == 0);
}

/* After a fork a store makes a copy: the child keeps what was there. */
static void forked(uint64_t value)
{
    char *at = map(PAGE, ANONYMOUS, -1);
    int go[2], status;
    CHECK(pipe(go) == 0);
    use(at, value);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        if (read(go[0], &byte, 1) != 1)
            _exit(2);
        for (unsigned thread = 0; thread < THREADS; thread++)
            if (((uint64_t *)at)[thread] != value + thread)
                _exit(1);
        _exit(0);
    }
    use(at, ~value);
    CHECK(write(go[1], "", 1) == 1 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status)) {
        printf("a stale translation: a store after the fork is seen by the child\n");
        exit(1);
    }
    CHECK(close(go[0]) == 0 && close(go[1]) == 0 && munmap(at, PAGE) == 0);
}

/* Small pages become a large one, parts of which change then. Stores of any CPU must be there afterwards. */
static void collapsed(uint64_t value)
{
    char *space = map(2 * BLOCK, ANONYMOUS, -1);
    char *at = (char *)(((uintptr_t)space + BLOCK - 1) & -BLOCK), *part = at + 7 * PAGE;
    CHECK(madvise(at, BLOCK, MADV_NOHUGEPAGE) == 0);
    use(at, value);
    use(part, value);
    CHECK(madvise(at, BLOCK, MADV_HUGEPAGE) == 0);
    if (madvise(at, BLOCK, MADV_COLLAPSE_NUMBER) == 0) {
        use(part, value + 1);
        ask(STORED, at, value);
    }
    CHECK(mprotect(part, PAGE, PROT_READ) == 0);
    ask(READ_ONLY, part, ((uint64_t *)part)[0]);
    use(at, value + 2);
    CHECK(munmap(part, PAGE) == 0);
    ask(GONE, part, 0);
    ask(STORED, at, value + 2);
    CHECK(munmap(space, 2 * BLOCK) == 0);
    ask(GONE, at, 0);
}

static void (*const CASES[])(uint64_t) = { unmapped, protected, moved, discarded, file, forked, collapsed };

int main(int count, char **arguments)
{
    int rounds = count > 1 ? atoi(arguments[1]) : 10, good = 0;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int wanted = online < THREADS ? (int)online : THREADS;
    struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    pthread_t threads[THREADS];
    for (uintptr_t number = 1; number < THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, serve, (void *)number) == 0);
    int most = rounds * 20;
    for (int round = 0; good < rounds && round < most; round++) {
        atomic_store(&cpus, 0);
        for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++)
            CASES[at](((uint64_t)round << 32) + (at << 16) + 1);
        good += __builtin_popcount(cpus) >= wanted;
    }
    ask(END, NULL, 0);
    for (int number = 1; number < THREADS; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    CHECK(good == rounds);
    printf("%d rounds on %d CPUs without a stale translation\n", rounds, wanted);
    return 0;
}
