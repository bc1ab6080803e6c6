/* What a task has of its own, what is left of it at its end, and who is told; kernel/test runs each case on Linux too.
 *
 *   tasks all     every case, each in a process of its own
 *   tasks vforked memory runs out while two processes share an address space; not for Linux
 *   tasks torn    memory runs out while a process writes a file; not for Linux
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "child.h"

#define MIB (1 << 20)
#define ROUNDS 8

static char program[4096];

/* Memory that children share with their parent. */
static void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* What stands in a file behind this word. */
static const char *read_field(const char *path, const char *word)
{
    static char text[4096];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    ssize_t bytes = read(file, text, sizeof text - 1);
    CHECK(bytes > 0 && close(file) == 0);
    text[bytes] = 0;
    char *found = strstr(text, word);
    CHECK(found);
    return found + strlen(word);
}

/* The letter of a process's state. */
static char state_of(pid_t process)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    return *read_field(path, ") ");
}

static void wait_until_asleep(pid_t process)
{
    while (state_of(process) != 'S')
        usleep(1000);
}

/* A robust futex in shared memory, and the list of the task that has it. */
struct robust {
    struct robust_list_head head;
    struct robust_list entry;
    uint32_t word;
};

static struct robust *robust_futex(void)
{
    struct robust *robust = shared_memory(sizeof *robust);
    robust->head.futex_offset = offsetof(struct robust, word) - offsetof(struct robust, entry);
    robust->head.list.next = &robust->head.list;
    return robust;
}

/* A task that ends between the store of 0 and the call that wakes a waiter leaves the wake-up to the kernel. */
static void robust_unlock(void)
{
    struct robust *robust = robust_futex();
    robust->word = 5 | FUTEX_WAITERS;
    pid_t waiter = fork();
    if (waiter == 0) {
        struct timespec patience = { 5, 0 };
        CHECK(syscall(SYS_futex, &robust->word, FUTEX_WAIT, 5 | FUTEX_WAITERS, &patience, NULL, 0) == 0);
        _exit(0);
    }
    wait_until_asleep(waiter);
    pid_t owner = fork();
    if (owner == 0) {
        robust->head.list_op_pending = &robust->entry;
        CHECK(syscall(SYS_set_robust_list, &robust->head, sizeof robust->head) == 0);
        robust->word = 0;
        _exit(0);
    }
    CHECK(exits_with(owner, 0) && exits_with(waiter, 0));
}

/* A program that is executed does not own what the one before it held. */
static void robust_execute(void)
{
    struct robust *robust = robust_futex();
    pid_t owner = fork();
    if (owner == 0) {
        robust->word = gettid();
        robust->entry.next = &robust->head.list;
        robust->head.list.next = &robust->entry;
        CHECK(syscall(SYS_set_robust_list, &robust->head, sizeof robust->head) == 0);
        execl(program, program, "nothing", NULL);
        _exit(1);
    }
    CHECK(exits_with(owner, 0) && robust->word == FUTEX_OWNER_DIED);
}

/* A robust futex that is not aligned ends the list of a task that dies: none such can be waited for. */
static void robust_misaligned(void)
{
    struct robust *robust = robust_futex();
    char *at = (char *)&robust->word + 1;
    robust->head.futex_offset++;
    robust->entry.next = &robust->head.list;
    robust->head.list.next = &robust->entry;
    for (int pending = 0; pending < 2; pending++) {
        pid_t owner = fork();
        if (owner == 0) {
            uint32_t own = gettid();
            memcpy(at, &own, sizeof own);
            robust->head.list_op_pending = pending ? &robust->entry : NULL;
            CHECK(syscall(SYS_set_robust_list, &robust->head, sizeof robust->head) == 0);
            _exit(0);
        }
        uint32_t left;
        CHECK(exits_with(owner, 0) && (memcpy(&left, at, sizeof left), left == (uint32_t)owner));
    }
}

/* `vfork` shares memory, so the word is cleared for a child that executes a program, and a process alone clears none. */
static void clear_child_tid(void)
{
    uint32_t *words = shared_memory(8);
    words[0] = words[1] = 7;
    pid_t alone = fork();
    if (alone == 0) {
        syscall(SYS_set_tid_address, &words[0]);
        _exit(0);
    }
    CHECK(exits_with(alone, 0) && words[0] == 7);
    pid_t executes = vfork();
    if (executes == 0) {
        syscall(SYS_set_tid_address, &words[1]);
        execl(program, program, "nothing", NULL);
        _exit(1);
    }
    CHECK(exits_with(executes, 0) && words[1] == 0);
}

static void *execute(void *unused)
{
    execl(program, program, "executed", NULL);
    return unused;
}

/* The program that a thread has executed: its one thread has the number of the process. */
static int executed(void)
{
    struct rlimit limit;
    char path[64], byte = 0;
    pid_t own = getpid();
    struct iovec here = { &byte, 1 }, there = { path, 1 };
    CHECK(gettid() == own && prlimit(own, RLIMIT_NOFILE, NULL, &limit) == 0);
    CHECK(syscall(SYS_tgkill, own, own, 0) == 0 && state_of(own) == 'R');
    CHECK(syscall(SYS_process_vm_readv, own, &here, 1, &there, 1, 0) == 1);
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", own, own);
    CHECK(access(path, F_OK) == 0);
    return 0;
}

static void executions(void)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, execute, NULL) == 0);
        for (;;)
            pause();
    }
    CHECK(exits_with(child, 0));
}

/* A process whose first thread has ended is still found by its number. */
static void *outlive(void *unused)
{
    struct rlimit limit;
    while (state_of(getpid()) != 'Z')
        usleep(1000);
    CHECK(prlimit(getpid(), RLIMIT_NOFILE, NULL, &limit) == 0);
    _exit(6);
    return unused;
}

static void first_ends(void)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, outlive, NULL) == 0);
        pthread_exit(NULL);
    }
    CHECK(exits_with(child, 6));
}

/* A new program's end is told to its parent by SIGCHLD, whatever signal was chosen for the old one's. */
static void end_of_program(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    long child = syscall(SYS_clone, 0, 0, 0, 0, 0);
    if (child == 0) {
        execl(program, program, "nothing", NULL);
        _exit(1);
    }
    struct timespec patience = { 5, 0 };
    siginfo_t info;
    CHECK(sigtimedwait(&set, &info, &patience) == SIGCHLD && info.si_pid == child && exits_with(child, 0));
}

static pthread_barrier_t named;
static volatile pid_t other_thread;

static void *take_name(void *unused)
{
    char name[16];
    CHECK(prctl(PR_GET_NAME, name) == 0 && !strcmp(name, "first"));
    CHECK(prctl(PR_SET_NAME, "other") == 0);
    other_thread = gettid();
    pthread_barrier_wait(&named);
    pthread_barrier_wait(&named);
    CHECK(prctl(PR_GET_NAME, name) == 0 && !strcmp(name, "changed"));
    return unused;
}

/* Each thread has its own name; a process has that of its first thread. */
static void names(void)
{
    char name[16], path[64];
    pthread_t thread;
    CHECK(prctl(PR_SET_NAME, "first") == 0 && pthread_barrier_init(&named, NULL, 2) == 0);
    CHECK(pthread_create(&thread, NULL, take_name, NULL) == 0);
    pthread_barrier_wait(&named);
    CHECK(prctl(PR_GET_NAME, name) == 0 && !strcmp(name, "first"));
    CHECK(!strncmp(read_field("/proc/self/comm", ""), "first\n", 6));
    CHECK(!strncmp(read_field("/proc/self/stat", "("), "first)", 6));
    CHECK(!strncmp(read_field("/proc/self/status", "Name:\t"), "first\n", 6));
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", other_thread);
    CHECK(!strncmp(read_field(path, "("), "other)", 6));
    snprintf(path, sizeof path, "/proc/self/task/%d/status", other_thread);
    CHECK(!strncmp(read_field(path, "Name:\t"), "other\n", 6));
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", other_thread);
    CHECK(!strncmp(read_field(path, ""), "other\n", 6));
    int file = open(path, O_WRONLY);
    CHECK(file >= 0 && write(file, "changed", 7) == 7 && close(file) == 0);
    pthread_barrier_wait(&named);
    CHECK(pthread_join(thread, NULL) == 0);
}

static volatile int is_measured;

static uint64_t now(clockid_t clock)
{
    struct timespec time;
    CHECK(clock_gettime(clock, &time) == 0);
    return time.tv_sec * 1000000000UL + time.tv_nsec;
}

static void *compute(void *unused)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    other_thread = gettid();
    while (!is_measured)
        ;
    return unused;
}

/* The ticks that a thread has run, by its file: its own time and that in the kernel. */
static long ticks_of(pid_t thread)
{
    char path[64];
    long ticks, in_kernel;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    CHECK(sscanf(read_field(path, ") "), "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &ticks, &in_kernel) == 2);
    return ticks + in_kernel;
}

/* Each thread has its own time and its own set of blocked signals. */
static void times_of_threads(void)
{
    pthread_t thread;
    clockid_t clock, process;
    char path[64];
    other_thread = 0;
    CHECK(pthread_create(&thread, NULL, compute, NULL) == 0);
    CHECK(pthread_getcpuclockid(thread, &clock) == 0);
    while (!other_thread)
        usleep(1000);
    /* On a busy machine this thread may have run for long too, so what counts is by how much the other one is ahead. */
    uint64_t own;
    while (now(clock) < (own = now(CLOCK_THREAD_CPUTIME_ID)) + 500000000)
        usleep(10000);
    long ticks = ticks_of(getpid());
    CHECK(ticks_of(other_thread) >= ticks + 20 && clock_getcpuclockid(getpid(), &process) == 0);
    CHECK(now(process) >= 2 * own + 500000000 && now(CLOCK_PROCESS_CPUTIME_ID) >= 2 * own + 500000000);
    snprintf(path, sizeof path, "/proc/self/task/%d/status", other_thread);
    CHECK(!strncmp(read_field(path, "SigBlk:\t"), "0000000000000800", 16));
    CHECK(!strncmp(read_field("/proc/self/status", "SigBlk:\t"), "0000000000000000", 16));
    is_measured = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    struct timespec time;
    /* A thread that was waited for may still be about to end. */
    for (int tries = 0; clock_gettime(clock, &time) == 0; tries++)
        CHECK(tries < 5000 && usleep(1000) == 0);
    CHECK(errno == EINVAL);
}

/* Computes for a millisecond, and lets go of the processor for a moment. */
static void *take_turns(void *unused)
{
    while (!is_measured) {
        for (uint64_t end = now(CLOCK_MONOTONIC) + 1000000; now(CLOCK_MONOTONIC) < end;)
            ;
        usleep(1);
    }
    return unused;
}

/* The time of a process does not jump where a turn of a thread ends. */
static void times_of_process(void)
{
    pthread_t threads[3];
    is_measured = 0;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, take_turns, NULL) == 0);
    uint64_t last = now(CLOCK_PROCESS_CPUTIME_ID), end = now(CLOCK_MONOTONIC) + 3000000000;
    while (now(CLOCK_MONOTONIC) < end) {
        uint64_t time = now(CLOCK_PROCESS_CPUTIME_ID);
        CHECK(time >= last);
        last = time;
    }
    is_measured = 1;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static volatile uintptr_t handler_at[2];

static void raise_again(int signal)
{
    char here;
    handler_at[signal == SIGUSR2] = (uintptr_t)&here;
    if (signal == SIGUSR1)
        syscall(SYS_tgkill, getpid(), gettid(), SIGUSR2);
}

/* Runs a handler in a handler, on a stack of their own. */
static void nest_handlers(char *memory, size_t bytes)
{
    stack_t stack = { .ss_sp = memory, .ss_size = bytes };
    struct sigaction action = { .sa_handler = raise_again, .sa_flags = SA_ONSTACK };
    CHECK(sigaltstack(&stack, NULL) == 0);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0);
}

/* The frame of a second signal does not fit on the stack for handlers: it must not be stored below it. */
static void full_stack(void)
{
    size_t below = 16384, bytes = 1 << 17;
    char *memory = shared_memory(below + bytes);
    nest_handlers(memory + below, bytes);
    bytes = handler_at[0] - handler_at[1] + 1000;
    bytes = bytes < 2048 ? 2048 : bytes;
    memset(memory, 'x', below);
    pid_t child = fork();
    if (child == 0) {
        nest_handlers(memory + below, bytes);
        _exit(0);
    }
    CHECK(is_killed_by(child, SIGSEGV));
    for (size_t at = 0; at < below; at++)
        CHECK(memory[at] == 'x');
}

static volatile sig_atomic_t ends;

static void child_ended(int signal)
{
    ends += signal == SIGCHLD;
}

/* A process with a handler is told of children that leave nothing to wait for. */
static void unwaited(void)
{
    struct sigaction action = { .sa_handler = child_ended, .sa_flags = SA_NOCLDWAIT };
    CHECK(sigaction(SIGCHLD, &action, NULL) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0) == -1 && (errno == ECHILD || errno == EINTR));
    while (kill(child, 0) == 0)
        usleep(1000);
    CHECK(ends == 1);
}

/* Makes an orphan that has ended already: its parent ends next, and the process above that one stays. Returns the
   orphan's number, and that of the process that stays. */
static pid_t ended_orphan(pid_t *stays)
{
    pid_t *orphan = shared_memory(sizeof *orphan);
    *stays = fork();
    if (*stays == 0) {
        signal(SIGCHLD, SIG_DFL);
        pid_t middle = fork();
        if (middle == 0) {
            pid_t last = fork();
            if (last == 0)
                _exit(0);
            while (state_of(last) != 'Z')
                usleep(1000);
            *orphan = last;
            _exit(0);
        }
        CHECK(exits_with(middle, 0));
        for (;;)
            pause();
    }
    while (!__atomic_load_n(orphan, __ATOMIC_ACQUIRE))
        usleep(1000);
    return *orphan;
}

/* The process that takes over the children of others is told of those that have ended. */
static void orphans(void)
{
    sigset_t set;
    pid_t stays;
    struct timespec patience = { 5, 0 };
    CHECK(getpid() == 1 || prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    pid_t orphan = ended_orphan(&stays);
    CHECK(sigtimedwait(&set, NULL, &patience) == SIGCHLD && waitpid(orphan, NULL, WNOHANG) == orphan);
    CHECK(kill(stays, SIGKILL) == 0 && is_killed_by(stays, SIGKILL));
    CHECK(sigtimedwait(&set, NULL, &patience) == SIGCHLD && sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    /* One that ignores the signal has nothing to wait for. */
    signal(SIGCHLD, SIG_IGN);
    orphan = ended_orphan(&stays);
    for (int tries = 0; kill(orphan, 0) == 0; tries++)
        CHECK(tries < 5000 && usleep(1000) == 0);
    CHECK(kill(stays, SIGKILL) == 0);
    while (kill(stays, 0) == 0)
        usleep(1000);
    signal(SIGCHLD, SIG_DFL);
}

/* A child that takes the terminal, and ends or stays. */
static pid_t take_terminal(int stays)
{
    int ready[2];
    char byte;
    CHECK(pipe(ready) == 0);
    pid_t leader = fork();
    if (leader == 0) {
        CHECK(setsid() == getpid());
        int terminal = open("/dev/console", O_RDWR);
        pid_t group;
        CHECK(terminal >= 0 && ioctl(terminal, TIOCGPGRP, &group) == 0 && group == getpid());
        CHECK(write(ready[1], "r", 1) == 1);
        while (stays)
            pause();
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1 && close(ready[0]) == 0 && close(ready[1]) == 0);
    return leader;
}

/* Only in the kernel, as the first process: a session whose leader has ended gives the terminal back. */
static void terminal(void)
{
    int console = open("/dev/console", O_RDWR | O_NOCTTY);
    /* The signal goes to the whole foreground, which this process is part of. */
    signal(SIGHUP, SIG_IGN);
    CHECK(console >= 0 && ioctl(console, TIOCNOTTY) == 0);
    signal(SIGHUP, SIG_DFL);
    for (int round = 0; round < 2; round++)
        CHECK(exits_with(take_terminal(0), 0));
    pid_t leader = take_terminal(1), thief = fork();
    if (thief == 0) {
        CHECK(setsid() == getpid() && setuid(1000) == 0);
        CHECK(ioctl(console, TIOCSCTTY, 1) == -1 && errno == EPERM);
        _exit(0);
    }
    CHECK(exits_with(thief, 0));
    thief = fork();
    if (thief == 0) {
        CHECK(setsid() == getpid() && ioctl(console, TIOCSCTTY, 0) == -1 && errno == EPERM);
        CHECK(ioctl(console, TIOCSCTTY, 1) == 0);
        _exit(0);
    }
    CHECK(exits_with(thief, 0) && kill(leader, SIGKILL) == 0 && is_killed_by(leader, SIGKILL));
    /* What the leader leaves in the foreground is told. */
    leader = fork();
    if (leader == 0) {
        CHECK(setsid() == getpid() && open("/dev/console", O_RDWR) >= 0);
        if (fork() == 0)
            for (;;)
                pause();
        usleep(10000);
        _exit(0);
    }
    CHECK(exits_with(leader, 0));
    int status;
    CHECK(waitpid(-1, &status, 0) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGHUP);
    CHECK(close(console) == 0);
}

/* Takes memory until the process is killed. */
static void *take_memory(void *unused)
{
    for (;;) {
        char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED)
            memset(memory, 1, MIB);
    }
    return unused;
}

/* A process keeps its memory, or it is killed; also beside a child that shares it until it executes a program. */
static void vforked(void)
{
    size_t bytes = 30 * MIB;
    pid_t parent = fork();
    if (parent == 0) {
        char *memory = malloc(bytes);
        CHECK(memory);
        memset(memory, 'x', bytes);
        if (vfork() == 0)
            take_memory(NULL);
        for (size_t at = 0; at < bytes; at++)
            CHECK(memory[at] == 'x');
        _exit(0);
    }
    int status = status_of(parent);
    CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
}

static char *pattern;

static void *write_pattern(void *file)
{
    for (;;)
        pwrite((int)(intptr_t)file, pattern, 2 * MIB, 0);
    return NULL;
}

/* What a process writes while it is killed is what it wrote, or is missing. */
static void torn(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        int file = open("/tmp/torn", O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(file >= 0);
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            CHECK((pattern = malloc(2 * MIB)));
            memset(pattern, 'x', 2 * MIB);
            CHECK(pthread_create(&thread, NULL, write_pattern, (void *)(intptr_t)file) == 0);
            usleep(1000);
            take_memory(NULL);
        }
        CHECK(is_killed_by(child, SIGKILL));
        static char block[4096];
        for (ssize_t got; (got = read(file, block, sizeof block)) > 0;)
            for (ssize_t at = 0; at < got; at++)
                CHECK(block[at] == 'x');
        CHECK(close(file) == 0);
    }
    CHECK(unlink("/tmp/torn") == 0);
}

/* A result must be stored somewhere. */
static void results(void)
{
    timer_t timer;
    struct sigevent none = { .sigev_notify = SIGEV_NONE };
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, &none, &timer) == 0);
    CHECK(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_getrusage, RUSAGE_SELF, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_sysinfo, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_rt_sigpending, NULL, 8) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_getitimer, 0, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_timer_gettime, *(int *)&timer, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_sched_getaffinity, 0, 128, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_clock_getres, CLOCK_MONOTONIC, NULL) == 0);
    CHECK(syscall(SYS_times, NULL) > 0 && syscall(SYS_gettimeofday, NULL, NULL) == 0);
}

static void *exit_later(void *unused)
{
    while (state_of(getpid()) != 'Z')
        usleep(1000);
    syscall(SYS_exit, 4);
    return unused;
}

/* A process whose threads end one by one has the status of the last one. */
static void last_status(void)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, exit_later, NULL) == 0);
        syscall(SYS_exit, 3);
    }
    CHECK(exits_with(child, 4));
}

/* The most memory that one of the children had. */
static void memory_of_children(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_CHILDREN, &usage) == 0 && usage.ru_maxrss == 0);
    pid_t child = fork();
    if (child == 0) {
        char *memory = malloc(8 * MIB);
        CHECK(memory);
        memset(memory, 1, 8 * MIB);
        _exit(memory[getpid() & 1] - 1);
    }
    CHECK(exits_with(child, 0) && getrusage(RUSAGE_CHILDREN, &usage) == 0);
    CHECK(usage.ru_maxrss >= 8192 && usage.ru_maxrss < 65536);
}

/* A child without handlers; it does not share the table of them then. */
static void clear_handlers(void)
{
    uint64_t arguments[8] = { 1UL << 32, 0, 0, 0, SIGCHLD, 0, 0, 0 };
    struct sigaction action = { .sa_handler = child_ended }, found;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    long child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0) {
        CHECK(sigaction(SIGUSR1, NULL, &found) == 0 && found.sa_handler == SIG_DFL);
        CHECK(sigaction(SIGUSR2, NULL, &found) == 0 && found.sa_handler == SIG_IGN);
        _exit(0);
    }
    CHECK(exits_with(child, 0));
    arguments[0] |= CLONE_SIGHAND | CLONE_VM;
    CHECK(syscall(SYS_clone3, arguments, sizeof arguments) == -1 && errno == EINVAL);
}

/* A program that has used much memory, some of it in pages of its own tables, is replaced while others want the
 * processor. */
static void large_memory(void)
{
    const size_t pages = 600, step = 2 * MIB;
    pid_t busy = fork();
    if (busy == 0)
        for (;;)
            ;
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (child == 0) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
            char *memory = mmap(NULL, pages * step, PROT_READ | PROT_WRITE, flags, -1, 0);
            CHECK(memory != MAP_FAILED);
            for (size_t page = 0; page < pages; page++)
                memory[page * step] = 1;
            execl(program, program, "nothing", NULL);
            _exit(1);
        }
        CHECK(exits_with(child, 0));
    }
    CHECK(kill(busy, SIGKILL) == 0 && is_killed_by(busy, SIGKILL));
}

static int end_thread(void *unused)
{
    (void)unused;
    return 0;
}

/* The child of a `vfork` has made a thread, and its parent goes on all the same. */
static void vforked_thread(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    static volatile int made;
    pid_t child = vfork();
    if (child == 0) {
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        made = clone(end_thread, stack + sizeof stack, flags, NULL);
        usleep(20000);
        _exit(7);
    }
    CHECK(made > 0 && exits_with(child, 7));
}

/* The signal for the end of the parent is of one process: no child inherits it, and another user's program has none. */
static void parent_ends(void)
{
    sigset_t set = blocked(SIGUSR1);
    struct timespec patience = { 10, 0 };
    int signal = 9, ends[2];
    CHECK(prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == 0);
    CHECK(prctl(PR_SET_PDEATHSIG, 65) == -1 && errno == EINVAL);
    CHECK(pipe(ends) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        pid_t child = fork();
        if (child == 0) {
            siginfo_t info;
            CHECK(prctl(PR_SET_PDEATHSIG, SIGUSR1) == 0);
            pid_t own = fork();
            if (own == 0)
                _exit(prctl(PR_GET_PDEATHSIG, &signal) || signal);
            CHECK(exits_with(own, 0) && prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGUSR1);
            CHECK(write(ends[1], "r", 1) == 1);
            CHECK(sigtimedwait(&set, &info, &patience) == SIGUSR1);
            /* It is from the old parent, and there is another one then. */
            CHECK(info.si_code == SI_USER && getppid() != info.si_pid && write(ends[1], "d", 1) == 1);
            _exit(0);
        }
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1 && byte == 'r');
        _exit(0);
    }
    char byte;
    CHECK(exits_with(parent, 0) && close(ends[1]) == 0);
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'd');
    if (getuid())
        return;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGUSR1) == 0 && setresuid(1000, 1000, 1000) == 0);
    CHECK(prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == 0);
}

/* Other processes look at the memory of a program only if it lets them, unless they may look at all. */
static void undumpable(void)
{
    int wait[2], go[2];
    char byte, path[64];
    uint64_t size;
    void *head;
    CHECK(prctl(PR_GET_DUMPABLE) == 1 && prctl(PR_SET_DUMPABLE, 7) == -1 && errno == EINVAL);
    CHECK(pipe(wait) == 0 && pipe(go) == 0);
    int is_root = getuid() == 0;
    if (is_root) {
        /* The memory was another user's. */
        CHECK(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0 && prctl(PR_GET_DUMPABLE) == 0);
        CHECK(prctl(PR_SET_DUMPABLE, 1) == 0 && prctl(PR_GET_DUMPABLE) == 1);
    }
    pid_t child = fork();
    if (child == 0) {
        CHECK(read(go[0], &byte, 1) == 1 && prctl(PR_SET_DUMPABLE, 0) == 0 && prctl(PR_GET_DUMPABLE) == 0);
        CHECK(write(wait[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    struct iovec own = { &byte, 1 }, other = { program, 1 };
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    CHECK(process_vm_readv(child, &own, 1, &other, 1, 0) == 1 && byte == program[0]);
    CHECK(syscall(SYS_get_robust_list, child, &head, &size) == 0);
    int memory = open(path, O_RDONLY);
    CHECK(memory >= 0 && close(memory) == 0);
    CHECK(write(go[1], "x", 1) == 1 && read(wait[0], &byte, 1) == 1);
    CHECK(process_vm_readv(child, &own, 1, &other, 1, 0) == -1 && errno == EPERM);
    CHECK(syscall(SYS_get_robust_list, child, &head, &size) == -1 && errno == EPERM);
    CHECK(open(path, O_RDONLY) == -1 && errno == EACCES);
    CHECK(write(go[1], "x", 1) == 1 && exits_with(child, 0));
}

static int opened(pid_t process, unsigned flags)
{
    return syscall(SYS_pidfd_open, process, flags);
}

static int signalled(int descriptor, int signal, siginfo_t *info, unsigned flags)
{
    return syscall(SYS_pidfd_send_signal, descriptor, signal, info, flags);
}

static void *be_thread(void *number)
{
    *(volatile pid_t *)number = gettid();
    pause();
    return NULL;
}

/* A descriptor of a process is readable at its end, and stands for that process alone. */
static void descriptors(void)
{
    volatile pid_t number = 0;
    pthread_t thread;
    siginfo_t info = { 0 };
    int ends[2], status;
    CHECK(opened(0, 0) == -1 && errno == EINVAL && opened(getpid(), 1) == -1 && errno == EINVAL);
    CHECK(opened(1 << 22, 0) == -1 && errno == ESRCH);
    CHECK(pthread_create(&thread, NULL, be_thread, (void *)&number) == 0);
    while (!number)
        sched_yield();
    /* A newer Linux has another word for it. */
    CHECK(opened(number, 0) == -1 && (errno == EINVAL || errno == ENOENT));
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1);
        _exit(5);
    }
    int plain = opened(child, 0), own = opened(getpid(), 0), quick = opened(child, O_NONBLOCK);
    CHECK(plain >= 0 && own >= 0 && quick >= 0 && fcntl(plain, F_GETFD) == FD_CLOEXEC);
    CHECK(fcntl(quick, F_GETFL) & O_NONBLOCK);
    struct pollfd poll_one = { plain, POLLIN, 0 };
    char byte;
    CHECK(poll(&poll_one, 1, 0) == 0 && read(plain, &byte, 1) == -1 && errno == EINVAL);
    CHECK(waitid(3, quick, &info, WEXITED) == -1 && errno == EAGAIN);
    CHECK(waitid(3, own, &info, WEXITED) == -1 && errno == ECHILD);
    CHECK(waitid(3, ends[0], &info, WEXITED) == -1 && errno == EBADF);
    CHECK(signalled(plain, 0, NULL, 0) == 0 && signalled(plain, 0, NULL, 1 << 20) == -1 && errno == EINVAL);
    CHECK(signalled(ends[0], 0, NULL, 0) == -1 && errno == EBADF);
    info.si_signo = SIGUSR1;
    CHECK(signalled(plain, SIGUSR2, &info, 0) == -1 && errno == EINVAL);
    CHECK(signalled(plain, SIGUSR1, &info, 0) == -1 && errno == EPERM);
    /* The end wakes a task that waits for it. */
    pid_t waker = fork();
    if (waker == 0) {
        usleep(50000);
        _exit(write(ends[1], "x", 1) != 1);
    }
    CHECK(poll(&poll_one, 1, 20000) == 1 && poll_one.revents == POLLIN);
    CHECK(signalled(plain, SIGTERM, NULL, 0) == 0);
    CHECK(waitid(3, plain, &info, WEXITED) == 0 && info.si_pid == child && info.si_status == 5);
    CHECK(signalled(plain, 0, NULL, 0) == -1 && errno == ESRCH && poll(&poll_one, 1, 0) == 1);
    CHECK(waitid(3, plain, &info, WEXITED) == -1 && errno == ECHILD && exits_with(waker, 0));
    /* One that comes with the process. */
    int descriptor = -1;
    child = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, &descriptor, 0, 0);
    if (child == 0)
        for (;;)
            pause();
    CHECK(child > 0 && descriptor >= 0 && fcntl(descriptor, F_GETFD) == FD_CLOEXEC);
    CHECK(signalled(descriptor, SIGKILL, NULL, 0) == 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    uint64_t arguments[8] = { CLONE_PIDFD, (uintptr_t)&descriptor, 0, 0, SIGCHLD, 0, 0, 0 };
    child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0)
        _exit(6);
    CHECK(waitid(3, descriptor, &info, WEXITED) == 0 && info.si_pid == child && info.si_status == 6);
    /* One that shares its parent's descriptors finds its own among them. */
    for (int round = 0; round < 100; round++) {
        child = syscall(SYS_clone, CLONE_PIDFD | CLONE_FILES | SIGCHLD, 0, &descriptor, 0, 0);
        if (child == 0)
            _exit(fcntl(descriptor, F_GETFD) == FD_CLOEXEC ? 7 : 1);
        CHECK(waitpid(child, &status, 0) == child && status == 7 << 8 && close(descriptor) == 0);
    }
    arguments[0] |= CLONE_THREAD | CLONE_SIGHAND | CLONE_VM;
    CHECK(syscall(SYS_clone3, arguments, sizeof arguments) == -1 && errno == EINVAL);
    int both = CLONE_PIDFD | CLONE_PARENT_SETTID | SIGCHLD;
    CHECK(syscall(SYS_clone, both, 0, &descriptor, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, 8, 0, 0) == -1 && errno == EFAULT);
}

static volatile int trapped_by, trapped_code;

static void trapped(int signal, siginfo_t *info, void *context)
{
    ucontext_t *user = context;
    trapped_by = signal;
    trapped_code = info->si_code;
    user->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
    if (signal == SIGFPE) {
        user->uc_mcontext.fpregs->cwd |= 0x3f;
        user->uc_mcontext.fpregs->swd &= ~0xff;
    }
}

/* What a program learns of a trap of the processor. */
static void traps(void)
{
    struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGFPE, &action, NULL) == 0 && sigaction(SIGTRAP, &action, NULL) == 0);
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq; nop" ::: "memory", "cc");
    CHECK(trapped_by == SIGTRAP && trapped_code == TRAP_TRACE);
    uint16_t control = 0x37b;
    __asm__ volatile("fldcw %0; fld1; fldz; fdivrp; fwait; fninit" :: "m"(control) : "memory");
    CHECK(trapped_by == SIGFPE && trapped_code == FPE_FLTDIV);
}

static sigjmp_buf jump;
static volatile int exceptions, handler_control;

static void divided(int signal)
{
    (void)signal;
    exceptions++;
    uint16_t control;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    handler_control = control;
    /* Waits for exceptions of x87. */
    volatile long double sum = 1;
    sum += exceptions;
    siglongjmp(jump, 1);
}

/* A handler finds no exceptions of the program that it interrupts, no rounding of it, and may jump out. */
static void floating(void)
{
    volatile long double one = 1, zero = 0, result = 0;
    CHECK(signal(SIGFPE, divided) != SIG_ERR);
    uint16_t control = 0x77b;
    uint32_t vectors = 0xdf80, found;
    if (!sigsetjmp(jump, 1)) {
        __asm__ volatile("fldcw %0; ldmxcsr %1" :: "m"(control), "m"(vectors));
        result = one / zero;
        __asm__ volatile("fwait");
    }
    CHECK(exceptions == 1 && handler_control == 0x37f);
    __asm__ volatile("stmxcsr %0" : "=m"(found));
    CHECK(found == 0x1f80);
    result = one / 3;
    CHECK(exceptions == 1 && result > 0.3L && result < 0.4L);
}

#define BEYOND (1UL << 50)
static volatile int skipped;

static void skip(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    ucontext_t *user = context;
    if ((uint64_t)user->uc_mcontext.gregs[REG_RIP] == BEYOND) {
        skipped = 1;
        user->uc_mcontext.gregs[REG_RIP] += 2;
    }
}

static long set_base(uint64_t code, uint64_t value)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_arch_prctl), "D"(code), "S"(value) : "rcx", "r11", "memory");
    return result;
}

/* Addresses beyond 48 bits, where the processor and the kernel have page tables of five levels. */
static void beyond(void)
{
    int local;
    CHECK((uint64_t)&local < 1UL << 47);
    CHECK(syscall(SYS_clone, CLONE_SETTLS | SIGCHLD, 0, 0, 0, 1UL << 63) == -1 && errno == EPERM);
    int rights = PROT_READ | PROT_WRITE | PROT_EXEC;
    char *code = mmap((void *)BEYOND, 4096, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    int is_there = code == (char *)BEYOND;
    uint64_t before, after = 0;
    long set, get;
    CHECK(set_base(0x1003, (uint64_t)&before) == 0);
    /* No storage of the thread's own from here on. */
    set = set_base(0x1002, BEYOND);
    sched_yield();
    get = set_base(0x1003, (uint64_t)&after);
    set_base(0x1002, before);
    CHECK(get == 0 && set == (is_there ? 0 : -EPERM) && after == (is_there ? BEYOND : before));
    if (!is_there)
        return;
    /* A loop that a signal's handler leaves. */
    memcpy(code, "\xeb\xfe\xc3", 3);
    struct sigaction action = { .sa_sigaction = skip, .sa_flags = SA_SIGINFO };
    struct itimerval often = { { .tv_usec = 5000 }, { .tv_usec = 5000 } }, never = { 0 };
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    ((void (*)(void))code)();
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && skipped);
}

static const struct test_case CASES[] = {
    { "robust_unlock", robust_unlock }, { "robust_execute", robust_execute }, { "clear_child_tid", clear_child_tid },
    { "executions", executions },       { "first_ends", first_ends },         { "end_of_program", end_of_program },
    { "names", names },                 { "times", times_of_threads }, { "turns", times_of_process },        { "full_stack", full_stack },
    { "unwaited", unwaited },           { "results", results },               { "last_status", last_status },
    { "memory_of_children", memory_of_children }, { "clear_handlers", clear_handlers }, { "traps", traps },
    { "robust_misaligned", robust_misaligned }, { "large_memory", large_memory }, { "vforked_thread", vforked_thread },
    { "parent_ends", parent_ends }, { "undumpable", undumpable }, { "floating", floating }, { "beyond", beyond },
    { "descriptors", descriptors },
};

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    if (!strcmp(name, "nothing"))
        return 0;
    if (!strcmp(name, "executed"))
        return executed();
    if (!strcmp(name, "vforked") || !strcmp(name, "torn"))
        return (strcmp(name, "torn") ? vforked : torn)(), 0;
    CHECK(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    if (!strcmp(name, "all") || !strcmp(name, "orphans"))
        orphans();
    if (getpid() == 1 && (!strcmp(name, "all") || !strcmp(name, "terminal")))
        terminal();
    return run_cases(CASES, sizeof CASES / sizeof *CASES, name, 40);
}
