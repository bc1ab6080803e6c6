// Programs with several threads and processes, for machines with several CPUs.
//
//   cpus threads   locks, sleeps and wake-ups of threads
//   cpus flushes   what one thread unmaps or protects, another must not reach by an old translation
//   cpus forks     processes that come and go on all CPUs
//   cpus slices    more threads than CPUs that never sleep
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, PAGE = 4096 };

#define CHECK(condition) do { if (!(condition)) { printf("line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long shared, turn;

static void start(void *(*work)(void *), int count) {
    pthread_t threads[2 * THREADS];
    for (long at = 0; at < count; at++)
        CHECK(pthread_create(&threads[at], NULL, work, (void *)at) == 0);
    for (int at = 0; at < count; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
}

static void *count_up(void *at) {
    (void)at;
    for (int round = 0; round < 2000; round++) {
        pthread_mutex_lock(&lock);
        shared++;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void *take_turns(void *at) {
    for (int round = 0; round < 100; round++) {
        pthread_mutex_lock(&lock);
        while (turn % THREADS != (long)at)
            pthread_cond_wait(&changed, &lock);
        turn++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void threads(void) {
    start(count_up, THREADS);
    CHECK(shared == 2000 * THREADS);
    start(take_turns, THREADS);
    CHECK(turn == 100 * THREADS);
}

// One page, and a number that says what the other threads do with it.
static volatile char *_Atomic page;
static atomic_int round_number, answers, stale;
static __thread sigjmp_buf after_fault;

static void on_fault(int signal) {
    (void)signal;
    siglongjmp(after_fault, 1);
}

// Emulators let other CPUs run at a pause.
static void let_others_run(void) {
    __builtin_ia32_pause();
    sched_yield();
}

static int can_read(volatile char *at) {
    if (sigsetjmp(after_fault, 1))
        return 0;
    (void)*at;
    return 1;
}

static int can_write(volatile char *at) {
    if (sigsetjmp(after_fault, 1))
        return 0;
    *at = 2;
    return 1;
}

enum { ROUNDS = 150 };

// Even rounds use the page, odd ones try what must fail.
static void *probe(void *at) {
    (void)at;
    for (int seen = 1; seen <= 2 * ROUNDS; seen++) {
        while (atomic_load(&round_number) < seen)
            let_others_run();
        volatile char *there = page;
        if (seen & 1)
            CHECK(*there == 1);
        else if (seen % 4 == 0 ? can_read(there) : can_write(there))
            atomic_fetch_add(&stale, 1);
        atomic_fetch_add(&answers, 1);
    }
    return NULL;
}

static void ask(int round) {
    atomic_store(&answers, 0);
    atomic_store(&round_number, round);
    while (atomic_load(&answers) < THREADS)
        let_others_run();
}

static void *change(void *unused) {
    (void)unused;
    for (int round = 1; round <= 2 * ROUNDS; round += 2) {
        char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED);
        *at = 1;
        page = at;
        ask(round);
        if ((round + 1) % 4 == 0)
            CHECK(munmap(at, PAGE) == 0);
        else
            CHECK(mprotect(at, PAGE, PROT_READ) == 0);
        ask(round + 1);
        if ((round + 1) % 4 != 0)
            CHECK(munmap(at, PAGE) == 0);
    }
    return NULL;
}

static void *probe_or_change(void *at) {
    return (long)at < THREADS ? probe(at) : change(at);
}

static void flushes(void) {
    struct sigaction action = { .sa_handler = on_fault };
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    start(probe_or_change, THREADS + 1);
    if (stale > 0)
        printf("%d stale translations\n", (int)stale);
    CHECK(stale == 0);
}

static void forks(void) {
    for (int round = 0; round < 10; round++) {
        pid_t children[2 * THREADS];
        for (int at = 0; at < 2 * THREADS; at++) {
            children[at] = fork();
            CHECK(children[at] >= 0);
            if (children[at] == 0) {
                char *memory = malloc(64 * PAGE);
                memset(memory, at, 64 * PAGE);
                _exit(memory[63 * PAGE] == at ? at : 99);
            }
        }
        for (int at = 0; at < 2 * THREADS; at++) {
            int status;
            CHECK(waitpid(children[at], &status, 0) == children[at]);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == at);
        }
    }
}

static atomic_int running;

// Ends when all threads have begun, so each must get the CPU although no thread gives it up.
static void *spin(void *at) {
    (void)at;
    atomic_fetch_add(&running, 1);
    while (atomic_load(&running) < 2 * THREADS)
        __builtin_ia32_pause();
    return NULL;
}

static void slices(void) {
    start(spin, 2 * THREADS);
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } all[] = {
        { "threads", threads }, { "flushes", flushes }, { "forks", forks }, { "slices", slices },
    };
    for (unsigned at = 0; count == 2 && at < sizeof all / sizeof *all; at++)
        if (strcmp(arguments[1], all[at].name) == 0) {
            all[at].run();
            return 0;
        }
    return 2;
}
