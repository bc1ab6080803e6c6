/* Threads, signals and timers where two of them meet, as kernel/test runs them in the kernel; it passes on Linux too.
 *
 *   threads all     every case
 *   threads CASE    one of them
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"

#define PAGE 4096UL
#define ROUNDS 100
#define WAITERS 4
#define CHILDREN 400
#define REPORTS 200
#define DRAINED 200

static char *program;

/* A lost wake-up ends the test, and not only its time. */
static void limit(void)
{
    alarm(30);
}

static pid_t forked(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        limit();
    return child;
}

static void *pause_thread(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static pid_t fork_of_thread;
static volatile int may_end;

static void *end_later(void *unused)
{
    while (!may_end)
        usleep(1000);
    return unused;
}

static void *fork_meanwhile(void *unused)
{
    usleep(50000);
    fork_of_thread = forked();
    if (fork_of_thread == 0)
        pause_thread(NULL);
    may_end = 1;
    return unused;
}

/* A thread waits for another one while a third one forks: every page is then copied at the next store. pthread_join waits
 * without FUTEX_PRIVATE_FLAG. */
static void joins(void)
{
    pthread_t joined, forking;
    CHECK(pthread_create(&joined, NULL, end_later, NULL) == 0);
    CHECK(pthread_create(&forking, NULL, fork_meanwhile, NULL) == 0);
    CHECK(pthread_join(joined, NULL) == 0 && pthread_join(forking, NULL) == 0);
    CHECK(kill(fork_of_thread, SIGKILL) == 0 && is_killed_by(fork_of_thread, SIGKILL));
}

static long futex(uint32_t *word, int operation, uint32_t value)
{
    return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

/* Two mappings of one byte of a file are one futex; other bytes are others. */
static void shared(void)
{
    int file = memfd_create("words", 0);
    CHECK(file >= 0 && ftruncate(file, 3 * PAGE) == 0);
    char *all = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *last = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 2 * PAGE);
    char *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 2 * PAGE);
    CHECK(all != MAP_FAILED && last != MAP_FAILED && own != MAP_FAILED);
    pid_t child = forked();
    if (child == 0) {
        while (futex((uint32_t *)(all + 2 * PAGE + 8), FUTEX_WAIT, 0) != 0)
            ;
        _exit(5);
    }
    usleep(50000);
    CHECK(futex((uint32_t *)(all + PAGE + 8), FUTEX_WAKE, 1) == 0);
    CHECK(futex((uint32_t *)(last + 4), FUTEX_WAKE, 1) == 0);
    *(volatile char *)own = 1;
    CHECK(futex((uint32_t *)(own + 8), FUTEX_WAKE, 1) == 0);
    while (futex((uint32_t *)(last + 8), FUTEX_WAKE, 1) == 0)
        ;
    CHECK(exits_with(child, 5));
    CHECK(mprotect(last, PAGE, PROT_NONE) == 0 && futex((uint32_t *)last, FUTEX_WAKE, 1) == -1 && errno == EFAULT);
    CHECK(munmap(last, PAGE) == 0 && futex((uint32_t *)last, FUTEX_WAKE, 1) == -1 && errno == EFAULT);
    CHECK(munmap(all, 3 * PAGE) == 0 && munmap(own, PAGE) == 0 && close(file) == 0);
}

static void spin(int turns)
{
    for (volatile int i = 0; i < turns; i++)
        ;
}

static void *make_threads(void *unused)
{
    pthread_attr_t small;
    pthread_t thread;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 4 * PAGE) == 0);
    CHECK(pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED) == 0);
    for (int made = 0; made < 2000; made++)
        pthread_create(&thread, &small, pause_thread, NULL);
    return unused;
}

static void execute(void)
{
    execl(program, program, "child", NULL);
    _exit(9);
}

/* A thread that is made while the others are ended ends too: at exit, at a deadly signal, and before another program. */
static void made_late(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = forked();
        if (child == 0) {
            pthread_t makers[2];
            for (int i = 0; i < 2; i++)
                CHECK(pthread_create(&makers[i], NULL, make_threads, NULL) == 0);
            spin(round * 1000);
            if (round % 3 == 0)
                _exit(7);
            if (round % 3 == 1)
                execute();
            kill(getpid(), SIGKILL);
        }
        CHECK(round % 3 == 2 ? is_killed_by(child, SIGKILL) : exits_with(child, 7));
    }
}

static pthread_barrier_t together;

static void *execute_together(void *unused)
{
    pthread_barrier_wait(&together);
    execute();
    return unused;
}

/* One of two threads that execute a program at once ends the other. */
static void executions(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = forked();
        if (child == 0) {
            pthread_t thread;
            CHECK(pthread_barrier_init(&together, NULL, 2) == 0);
            CHECK(pthread_create(&thread, NULL, execute_together, NULL) == 0);
            execute_together(NULL);
        }
        CHECK(exits_with(child, 7));
    }
}

static long reaped;

static void *reap(void *unused)
{
    while (waitpid(-1, NULL, 0) > 0)
        __atomic_fetch_add(&reaped, 1, __ATOMIC_RELAXED);
    CHECK(errno == ECHILD);
    return unused;
}

/* Each child is waited for once, however many threads wait. */
static void waits(void)
{
    int ends[2];
    pthread_t threads[WAITERS];
    CHECK(pipe(ends) == 0);
    pid_t last = forked();
    if (last == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_create(&threads[i], NULL, reap, NULL) == 0);
    for (int i = 0; i < CHILDREN; i++)
        if (vfork() == 0)
            _exit(0);
    CHECK(close(ends[1]) == 0);
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(reaped == CHILDREN + 1 && close(ends[0]) == 0);
}

static pid_t waiting_thread;

static void *signal_thread(void *unused)
{
    usleep(30000);
    CHECK(syscall(SYS_tgkill, getpid(), waiting_thread, SIGURG) == 0);
    return unused;
}

/* A signal that a call waits for is not ignored, and stays blocked afterwards. */
static void ignored(void)
{
    struct timespec long_time = { 10, 0 }, none = { 0, 0 };
    sigset_t set = blocked(SIGCHLD);
    siginfo_t info;
    pid_t child = forked();
    if (child == 0) {
        usleep(30000);
        _exit(3);
    }
    CHECK(sigtimedwait(&set, &info, &long_time) == SIGCHLD && info.si_pid == child && info.si_status == 3);
    CHECK(exits_with(child, 3));
    CHECK(raise(SIGCHLD) == 0 && sigtimedwait(&set, &info, &none) == SIGCHLD);
    CHECK(sigtimedwait(&set, &info, &none) == -1 && errno == EAGAIN);
    pthread_t thread;
    set = blocked(SIGURG);
    waiting_thread = syscall(SYS_gettid);
    CHECK(pthread_create(&thread, NULL, signal_thread, NULL) == 0);
    CHECK(sigtimedwait(&set, &info, &long_time) == SIGURG && pthread_join(thread, NULL) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0 && raise(SIGURG) == 0);
}

static volatile long called, called_with, taken_by;

static void call(union sigval value)
{
    called_with = value.sival_int;
    called = 1;
}

static void take(int signal)
{
    (void)signal;
    taken_by = syscall(SYS_gettid);
}

static volatile long waiter_id;

static void *wait_for_signal(void *unused)
{
    waiter_id = syscall(SYS_gettid);
    while (!taken_by)
        usleep(1000);
    return unused;
}

/* A timer's signal goes to the thread that it was made for, and its function runs in a thread. */
static void timers(void)
{
    struct itimerspec soon = { { 0, 0 }, { 0, 20000000 } };
    struct sigevent event = { .sigev_notify = SIGEV_THREAD, .sigev_notify_function = call, .sigev_value.sival_int = 8 };
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
    while (!called)
        usleep(1000);
    CHECK(called_with == 8 && timer_delete(timer) == 0);

    struct sigaction action = { .sa_handler = take };
    pthread_t thread;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, wait_for_signal, NULL) == 0);
    while (!waiter_id)
        usleep(1000);
    event = (struct sigevent){ .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1 };
    event._sigev_un._tid = waiter_id;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && taken_by == waiter_id && timer_delete(timer) == 0);
    pid_t child = forked();
    if (child == 0)
        pause_thread(NULL);
    event._sigev_un._tid = child;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == -1 && errno == EINVAL);
    CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
}

/* Absolute times are those of the timer's clock. */
static void absolute(void)
{
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
    static const clockid_t clocks[] = { CLOCK_REALTIME, CLOCK_MONOTONIC };
    sigset_t set = blocked(SIGUSR2);
    for (int i = 0; i < 2; i++) {
        struct timespec before, after, long_time = { 10, 0 };
        timer_t timer;
        CHECK(timer_create(clocks[i], &event, &timer) == 0 && clock_gettime(clocks[i], &before) == 0);
        long at = before.tv_nsec + 30000000;
        struct itimerspec due = { { 0, 0 }, { before.tv_sec + at / 1000000000, at % 1000000000 } };
        CHECK(timer_settime(timer, TIMER_ABSTIME, &due, NULL) == 0);
        CHECK(sigtimedwait(&set, NULL, &long_time) == SIGUSR2 && clock_gettime(clocks[i], &after) == 0);
        CHECK((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec >= 30000000);
        CHECK(timer_delete(timer) == 0);
    }
}

static int counter, set_of_one;
static volatile long reports, reports_end;

/* The counter is always readable, and each addition queues the set that it is in again. */
static void *add(void *unused)
{
    uint64_t one = 1;
    while (!reports_end) {
        CHECK(write(counter, &one, 8) == 8);
        sched_yield();
    }
    return unused;
}

static void *take_reports(void *unused)
{
    struct epoll_event event;
    while (!reports_end)
        if (epoll_wait(set_of_one, &event, 1, 10) == 1)
            __atomic_fetch_add(&reports, 1, __ATOMIC_RELAXED);
    return unused;
}

/* A set whose look for something readable takes long: other files were readable before. */
static int slow_set(void)
{
    struct epoll_event event = { EPOLLIN, { .u64 = 1 } };
    int set = epoll_create1(0);
    uint64_t value = 1;
    for (int i = 0; i <= DRAINED; i++) {
        counter = eventfd(1, 0);
        CHECK(counter >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
        CHECK(i == DRAINED || read(counter, &value, 8) == 8);
    }
    return set;
}

/* What is to be reported once is reported to one thread. */
static void once(void)
{
    pthread_t adding, threads[WAITERS];
    struct epoll_event event = { EPOLLIN | EPOLLONESHOT, { .u64 = 1 } };
    int slow = slow_set();
    CHECK((set_of_one = epoll_create1(0)) >= 0 && epoll_ctl(set_of_one, EPOLL_CTL_ADD, slow, &event) == 0);
    CHECK(pthread_create(&adding, NULL, add, NULL) == 0);
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_create(&threads[i], NULL, take_reports, NULL) == 0);
    for (long i = 1; i < REPORTS; i++) {
        while (reports < i)
            sched_yield();
        CHECK(epoll_ctl(set_of_one, EPOLL_CTL_MOD, slow, &event) == 0);
    }
    while (reports < REPORTS)
        sched_yield();
    usleep(20000);
    reports_end = 1;
    CHECK(pthread_join(adding, NULL) == 0);
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(reports == REPORTS);
}

/* Sends the process a signal when its stack ends there. */
static void signal_on(uintptr_t stack)
{
    __asm__ volatile("mov %0, %%rsp\n syscall\n ud2"
                     : : "r"(stack), "a"(SYS_kill), "D"((long)getpid()), "S"((long)SIGUSR1) : "rcx", "r11", "memory");
}

/* A signal whose frame has no room kills its process, and harms none else. */
static void stacks(void)
{
    struct sigaction action = { .sa_handler = take };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (uintptr_t stack = 0; stack < PAGE; stack += 64) {
        pid_t child = forked();
        if (child == 0)
            signal_on(stack);
        CHECK(is_killed_by(child, SIGSEGV));
    }
    pid_t child = forked();
    if (child == 0) {
        stack_t last = { .ss_sp = (void *)-1L, .ss_size = 4 * PAGE };
        action.sa_flags = SA_ONSTACK;
        CHECK(syscall(SYS_sigaltstack, &last, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
        raise(SIGUSR1);
        _exit(9);
    }
    CHECK(is_killed_by(child, SIGSEGV));
}

static const struct test_case CASES[] = {
    { "joins", joins }, { "shared", shared }, { "made_late", made_late }, { "executions", executions },
    { "waits", waits }, { "ignored", ignored }, { "timers", timers }, { "absolute", absolute }, { "once", once },
    { "stacks", stacks },
};

/* Each case in a process of its own. */
int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    program = arguments[0];
    if (!strcmp(name, "child"))
        return 7;
    return run_cases(CASES, sizeof CASES / sizeof *CASES, name, 30);
}
