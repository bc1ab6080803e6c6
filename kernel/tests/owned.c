/* Futexes with an owner, as kernel/test runs them in the kernel; it passes on Linux too.
 *
 *   owned all | CASE
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "child.h"

#define THREADS 6
#define ROUNDS 2000
#define MILLISECOND 1000000L
#define SECOND 1000000000L

static uint32_t word, other;

static long futex(uint32_t *at, int operation, uint32_t value, void *fourth, uint32_t *second, uint32_t third)
{
    return syscall(SYS_futex, at, operation, value, fourth, second, third);
}

static void fails(int error, long result)
{
    CHECK(result == -1 && errno == error);
}

static long lock(uint32_t *at, struct timespec *until)
{
    return futex(at, FUTEX_LOCK_PI_PRIVATE, 0, until, NULL, 0);
}

static long unlock(uint32_t *at)
{
    return futex(at, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0);
}

static struct timespec after(clockid_t clock, long nanoseconds)
{
    struct timespec time;
    CHECK(clock_gettime(clock, &time) == 0);
    nanoseconds += time.tv_nsec;
    time.tv_sec += nanoseconds / SECOND;
    time.tv_nsec = nanoseconds % SECOND;
    return time;
}

static uint32_t load(uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

/* Waits until a task waits for the lock. */
static void await_waiter(uint32_t *at)
{
    while (!(load(at) & FUTEX_WAITERS))
        usleep(1000);
    usleep(10000);
}

static uint32_t sleeper;

static void *sleep_long(void *unused)
{
    __atomic_store_n(&sleeper, gettid(), __ATOMIC_RELEASE);
    sleep(1000);
    return unused;
}

static void errors(void)
{
    uint32_t self = gettid();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sleep_long, NULL) == 0);
    while (!load(&sleeper))
        usleep(1000);
    word = 0;
    fails(EPERM, unlock(&word));
    CHECK(lock(&word, NULL) == 0 && word == self);
    fails(EDEADLK, lock(&word, NULL));
    CHECK(unlock(&word) == 0 && word == 0);
    CHECK(futex(&word, FUTEX_TRYLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0 && word == self);
    /* A task that does not exist. */
    word = 0x3fffff00;
    fails(ESRCH, lock(&word, NULL));
    word = sleeper;
    fails(EAGAIN, futex(&word, FUTEX_TRYLOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    fails(EPERM, unlock(&word));
    struct timespec end = after(CLOCK_REALTIME, 20 * MILLISECOND);
    fails(ETIMEDOUT, lock(&word, &end));
    end = after(CLOCK_MONOTONIC, 20 * MILLISECOND);
    fails(ETIMEDOUT, futex(&word, FUTEX_LOCK_PI2_PRIVATE, 0, &end, NULL, 0));
    CHECK(word == (sleeper | FUTEX_WAITERS));
    word = FUTEX_OWNER_DIED;
    CHECK(lock(&word, NULL) == 0 && word == (self | FUTEX_OWNER_DIED));
    CHECK(unlock(&word) == 0 && word == 0);
    fails(EINVAL, futex((uint32_t *)((char *)&word + 1), FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    fails(EFAULT, futex((uint32_t *)16, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    fails(ENOSYS, futex(&word, FUTEX_LOCK_PI_PRIVATE | FUTEX_CLOCK_REALTIME, 0, NULL, NULL, 0));
    fails(EINVAL, futex(&word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 0, NULL, &word, 0));
    fails(EAGAIN, futex(&word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 1, NULL, &other, 0));
    fails(EINVAL, futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, NULL, &word, 0));
    fails(EINVAL, futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 2, NULL, &other, 0));
    fails(EAGAIN, futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, NULL, &other, 1));
    CHECK(futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, NULL, &other, 0) == 0);
}

static long counted;
static volatile int inside;

static void take(uint32_t *at)
{
    uint32_t free = 0;
    if (!__atomic_compare_exchange_n(at, &free, gettid(), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        CHECK(lock(at, NULL) == 0);
}

static void give(uint32_t *at)
{
    uint32_t self = gettid();
    if (!__atomic_compare_exchange_n(at, &self, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        CHECK(unlock(at) == 0);
}

static void *count(void *unused)
{
    for (int round = 0; round < ROUNDS; round++) {
        take(&word);
        CHECK(inside++ == 0 && (load(&word) & FUTEX_TID_MASK) == (uint32_t)gettid());
        counted++;
        if (round % 64 == 0)
            sched_yield();
        inside--;
        give(&word);
    }
    return unused;
}

static void excludes(void)
{
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, count, NULL) == 0);
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(counted == (long)THREADS * ROUNDS && (word & FUTEX_TID_MASK) == 0);
}

static pthread_mutex_t mutex;

static void *hold_and_end(void *unused)
{
    CHECK(pthread_mutex_lock(&mutex) == 0);
    usleep(50000);
    return unused;
}

/* libc's mutexes, robust ones too: a waiter gets what a thread held at its end. */
static void mutexes(void)
{
    pthread_mutexattr_t kind;
    pthread_t thread;
    CHECK(pthread_mutexattr_init(&kind) == 0 && pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT) == 0);
    CHECK(pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0);
    for (int waits = 0; waits < 2; waits++) {
        CHECK(pthread_mutex_init(&mutex, &kind) == 0);
        CHECK(pthread_create(&thread, NULL, hold_and_end, NULL) == 0);
        usleep(waits ? 10000 : 100000);
        CHECK(pthread_mutex_lock(&mutex) == EOWNERDEAD);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(pthread_mutex_consistent(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
        CHECK(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
        CHECK(pthread_mutex_destroy(&mutex) == 0);
    }
}

static int ready;

static void *take_lock(void *result)
{
    __atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
    *(long *)result = lock(&word, NULL) ? errno : (long)load(&word);
    return NULL;
}

static void *end_with_lock(void *unused)
{
    CHECK(lock(&word, NULL) == 0);
    while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) < 2)
        usleep(1000);
    usleep(200000);
    return unused;
}

/* Without a robust list too, if another thread waits. */
static void inherited(void)
{
    pthread_t owner, threads[2];
    long got[2] = {0, 0};
    word = 0, ready = 0;
    CHECK(pthread_create(&owner, NULL, end_with_lock, NULL) == 0);
    while (!load(&word))
        usleep(1000);
    for (int at = 0; at < 2; at++)
        CHECK(pthread_create(&threads[at], NULL, take_lock, &got[at]) == 0);
    CHECK(pthread_join(owner, NULL) == 0);
    /* The one that has it ends too. */
    for (int at = 0; at < 2; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    for (int at = 0; at < 2; at++)
        CHECK(got[at] & FUTEX_OWNER_DIED && got[at] & FUTEX_TID_MASK);
}

static volatile sig_atomic_t signals;

static void note(int signal)
{
    (void)signal;
    signals++;
}

/* A signal does not end the wait for a lock. */
static void interrupted(void)
{
    struct sigaction action = {.sa_handler = note};
    pthread_t thread;
    long got = 0;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    word = 0;
    CHECK(lock(&word, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, take_lock, &got) == 0);
    await_waiter(&word);
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
    while (!signals)
        usleep(1000);
    usleep(10000);
    CHECK(!got && unlock(&word) == 0 && pthread_join(thread, NULL) == 0);
    CHECK((got & FUTEX_TID_MASK) != 0 && !(got & FUTEX_OWNER_DIED));
}

static void *wait_for_other(void *result)
{
    __atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
    long got = futex(&word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 7, NULL, &other, 0);
    *(long *)result = got ? errno : (long)(load(&other) & FUTEX_TID_MASK) - gettid();
    if (!got)
        CHECK(unlock(&other) == 0);
    return NULL;
}

/* Waiters of one word become those of a lock, whether it is free or held. */
static void requeued(void)
{
    for (int held = 0; held < 2; held++) {
        pthread_t threads[4];
        long got[4] = {-1, -1, -1, -1};
        word = 7, other = 0, ready = 0;
        for (int at = 0; at < 4; at++)
            CHECK(pthread_create(&threads[at], NULL, wait_for_other, &got[at]) == 0);
        while (ready < 4)
            usleep(1000);
        usleep(200000);
        /* No other operation reaches them. */
        fails(EINVAL, futex(&word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
        fails(EINVAL, futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 0, (void *)1L, &other, 7));
        uint32_t third = 0;
        fails(EINVAL, futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, NULL, &third, 7));
        if (held)
            CHECK(lock(&other, NULL) == 0);
        CHECK(futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, (void *)1L, &other, 7) == 2);
        word = 8;
        CHECK(futex(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, (void *)100L, &other, 8) == 2);
        if (held) {
            usleep(10000);
            CHECK(got[0] == -1 && got[1] == -1 && got[2] == -1 && got[3] == -1);
            CHECK(load(&other) == (gettid() | FUTEX_WAITERS) && unlock(&other) == 0);
        }
        for (int at = 0; at < 4; at++)
            CHECK(pthread_join(threads[at], NULL) == 0 && got[at] == 0);
        CHECK((load(&other) & FUTEX_TID_MASK) == 0);
    }
    /* Its time may be up before. */
    pid_t child = fork();
    if (child == 0) {
        struct timespec end = after(CLOCK_MONOTONIC, 50 * MILLISECOND);
        word = 7, other = 0;
        fails(ETIMEDOUT, futex(&word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 7, &end, &other, 0));
        _exit(0);
    }
    CHECK(exits_with(child, 0));
}

/* Between processes, in shared memory. */
static void shared(void)
{
    uint32_t *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && futex(at, FUTEX_LOCK_PI, 0, NULL, NULL, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(futex(at, FUTEX_LOCK_PI, 0, NULL, NULL, 0) == 0);
        CHECK((*at & FUTEX_TID_MASK) == (uint32_t)getpid());
        CHECK(futex(at, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0);
        _exit(0);
    }
    await_waiter(at);
    CHECK(futex(at, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0);
    CHECK(exits_with(child, 0) && *at == 0);
}

/* An owner that ends while another process comes for the lock: that one gets it, or hears that there is no owner. */
static void ends(void)
{
    uint32_t *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (int round = 0; round < 300; round++) {
        struct timespec until = after(CLOCK_REALTIME, 10 * SECOND);
        *at = 0;
        pid_t child = fork();
        if (child == 0) {
            CHECK(futex(at, FUTEX_LOCK_PI, 0, NULL, NULL, 0) == 0);
            for (volatile int turn = 0; turn < round * 50; turn++)
                ;
            _exit(0);
        }
        while (!load(at))
            sched_yield();
        if (futex(at, FUTEX_LOCK_PI, 0, &until, NULL, 0) == 0)
            CHECK((load(at) & FUTEX_TID_MASK) == (uint32_t)getpid());
        else
            CHECK(errno == ESRCH);
        CHECK(exits_with(child, 0));
    }
}

static const struct test_case cases[] = {
    {"errors", errors},         {"excludes", excludes},       {"mutexes", mutexes},
    {"inherited", inherited},   {"interrupted", interrupted}, {"requeued", requeued},
    {"shared", shared},         {"ends", ends},
};

int main(int count, char **arguments)
{
    return run_cases(cases, sizeof cases / sizeof *cases, count > 1 ? arguments[1] : "all", 60);
}
