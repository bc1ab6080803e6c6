/* Processes, threads and signals, as kernel/test runs them in the kernel; it passes on Linux too.
 *
 *   processes all    every case; status 5 at the end, so that a status is seen to get through
 *   processes crossings NUMBER    pairs of threads that wake each other so many times
 *   processes requeues    waiters whose time is up while they are moved to another word
 *   processes lists  calls with long lists, some of which fail where memory is short
 *   processes crowd  a folder of many descriptors is read while no memory is left; not for Linux
 *   processes groups a path of more control groups than the kernel's stack has room for; not for Linux
 *   processes segments    more shared segments than a list of 64 KiB holds; it leaves them behind, so not for Linux
 *   processes oom    a child that takes all memory is killed, and its parent goes on
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"

#define THREADS 4
#define ROUNDS 1000
#define FORK_BYTES (256 << 10)
#define SEGMENTS 8500
#define SLICES 10
#define PAIRS 3
#define LONG 20000
#define LISTS 20
#define WAITERS 24
#define NESTED 300
#define LINKS 40
#define LOCKS 3000
#define GROUPS 1000

static volatile sig_atomic_t signals;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long counted, turn;
static volatile int spinning;
static volatile long computing, computed;

static void handler(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_signo == signal)
        signals++;
}

static void *count(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&mutex);
        counted++;
        pthread_mutex_unlock(&mutex);
    }
    return unused;
}

/* The threads take turns, so each one sleeps until another one wakes it. */
static void *take_turns(void *own)
{
    for (int i = 0; i < ROUNDS / 10; i++) {
        pthread_mutex_lock(&mutex);
        while (turn % THREADS != (intptr_t)own)
            pthread_cond_wait(&changed, &mutex);
        turn++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

/* Ends when all threads have begun: there are more than CPUs, and none gives its CPU up. */
static void *spin(void *unused)
{
    __atomic_fetch_add(&spinning, 1, __ATOMIC_RELAXED);
    while (spinning < 2 * THREADS)
        __builtin_ia32_pause();
    return unused;
}

/* Computes until its turn comes, and gives its CPU up at no time. */
static void *compute(void *own)
{
    for (int i = 0; i < SLICES; i++) {
        while (computed % computing != (intptr_t)own)
            __builtin_ia32_pause();
        computed++;
    }
    return NULL;
}

/* One thread more than there are CPUs, so that two share one: the slice of the second ends too. */
static void slices(void)
{
    computing = sysconf(_SC_NPROCESSORS_ONLN) + 1;
    pthread_t threads[computing];
    for (intptr_t i = 1; i < computing; i++)
        CHECK(pthread_create(&threads[i], NULL, compute, (void *)i) == 0);
    compute((void *)0);
    for (int i = 1; i < computing; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(computed == computing * SLICES);
}

static long crossings;

/* Each thread waits until its partner has written the word, and writes it. */
static void *cross(void *own)
{
    static uint32_t words[PAIRS][16];
    uint32_t *word = words[(intptr_t)own / 2], side = (intptr_t)own % 2, value;
    for (long i = 0; i < crossings; i++) {
        while ((value = __atomic_load_n(word, __ATOMIC_SEQ_CST)) % 2 != side)
            syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
        __atomic_store_n(word, value + 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    return NULL;
}

static void run_threads(void *(*work)(void *), int number)
{
    pthread_t threads[2 * THREADS];
    for (intptr_t i = 0; i < number; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < number; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void execute_child(char *program)
{
    execl(program, program, "child", NULL);
    _exit(9);
}

/* Times beyond any clock are far in the future. */
static void endless_times(void)
{
    struct itimerval time = { { 0, 0 }, { LONG_MAX, 999999 } };
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
    CHECK(getitimer(ITIMER_REAL, &time) == 0 && time.it_value.tv_sec > 1000000000);
    time = (struct itimerval){ { 0, 0 }, { -1, 0 } };
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == -1 && errno == EINVAL);
    time = (struct itimerval){ { 0, 0 }, { 1, 1000000 } };
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == -1 && errno == EINVAL);
    time = (struct itimerval){ { 0, 0 }, { 0, 0 } };
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
    struct timespec file[2] = { { LONG_MAX, 999999999 }, { LONG_MAX, 999999999 } };
    CHECK(close(open("/tmp/endless", O_CREAT | O_WRONLY, 0600)) == 0);
    CHECK(utimensat(AT_FDCWD, "/tmp/endless", file, 0) == 0);
    CHECK(unlink("/tmp/endless") == 0);
}

/* A child inherits it, and it cannot be undone. */
static void no_new_privileges(void)
{
    pid_t child = fork();
    if (child == 0) {
        CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 1, 0, 0) == -1 && errno == EINVAL);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == -1 && errno == EINVAL);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
        _exit(exits_with(grandchild, 1) ? 4 : 1);
    }
    CHECK(exits_with(child, 4));
}

/* The signal at a child's end may be any number, and is not sent to a process that only inherits the child. */
static void exit_signals(void)
{
    int status, ends[2], inherits = getpid() == 1 || prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    long child = syscall(SYS_clone, 100, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0)
        _exit(3);
    CHECK(waitpid(child, &status, __WALL) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);

    CHECK(pipe(ends) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        pid_t middle = getpid();
        if (syscall(SYS_clone, SIGUSR2, 0, 0, 0, 0) == 0)
            while (getppid() == middle)
                ;
        _exit(4);
    }
    CHECK(exits_with(parent, 4) && close(ends[1]) == 0);
    /* Both ends of the pipe that the orphan has are gone with it. */
    CHECK(read(ends[0], &status, 1) == 0 && close(ends[0]) == 0);
    CHECK(!inherits || waitpid(-1, NULL, 0) > 0);
    CHECK(getpid() == 1 || !inherits || prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
}

static char alt_stack[1 << 16];
static volatile int on_alt_stack, disarmed;

static void on_a_stack(int signal)
{
    char here;
    stack_t now;
    (void)signal;
    CHECK(sigaltstack(NULL, &now) == 0);
    on_alt_stack += (uintptr_t)&here - (uintptr_t)alt_stack < sizeof alt_stack;
    disarmed += now.ss_flags == SS_DISABLE;
}

/* A stack that is disarmed while a handler runs is armed again for the next signal. */
static void autodisarm(void)
{
    const int flag = 1 << 31;
    stack_t stack = { .ss_sp = alt_stack, .ss_size = sizeof alt_stack, .ss_flags = SS_ONSTACK | flag };
    struct sigaction action = { .sa_handler = on_a_stack, .sa_flags = SA_ONSTACK }, before;
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR2, &action, &before) == 0);
    for (int count = 1; count < 4; count++)
        CHECK(raise(SIGUSR2) == 0 && on_alt_stack == count && disarmed == count);
    stack_t none = { .ss_flags = SS_DISABLE };
    CHECK(sigaction(SIGUSR2, &before, NULL) == 0 && sigaltstack(&none, &stack) == 0);
    CHECK(stack.ss_flags == flag && stack.ss_sp == alt_stack);
}

/* Processes that come and go together, each with memory of its own. */
static void forks(void)
{
    for (int round = 0; round < 10; round++) {
        pid_t children[2 * THREADS];
        for (int i = 0; i < 2 * THREADS; i++) {
            CHECK((children[i] = fork()) >= 0);
            if (children[i] == 0) {
                char *memory = malloc(FORK_BYTES);
                CHECK(memory);
                memset(memory, i, FORK_BYTES);
                _exit(memory[FORK_BYTES - 1]);
            }
        }
        for (int i = 0; i < 2 * THREADS; i++)
            CHECK(exits_with(children[i], i));
    }
}

static void all(char *program)
{
    exit_signals();
    autodisarm();
    endless_times();
    no_new_privileges();
    pid_t child = fork();
    if (child == 0)
        _exit(3);
    CHECK(exits_with(child, 3));
    CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);

    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0);
    CHECK(signals == 1);

    /* A blocked signal comes once it is not blocked any more, and once only. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0 && raise(SIGUSR1) == 0);
    CHECK(signals == 1);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    CHECK(signals == 2);

    run_threads(count, THREADS);
    CHECK(counted == THREADS * ROUNDS);
    run_threads(take_turns, THREADS);
    CHECK(turn == THREADS * (ROUNDS / 10));
    run_threads(spin, 2 * THREADS);
    forks();

    child = fork();
    if (child == 0)
        execute_child(program);
    CHECK(exits_with(child, 7));
    child = vfork();
    if (child == 0)
        execute_child(program);
    CHECK(exits_with(child, 7));

    child = fork();
    if (child == 0)
        *(volatile int *)0 = 1;
    CHECK(is_killed_by(child, SIGSEGV));
    child = fork();
    if (child == 0)
        for (;;)
            pause();
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(is_killed_by(child, SIGKILL));

    struct timespec start, end, wanted = { 0, 20000000 };
    clock_gettime(CLOCK_MONOTONIC, &start);
    CHECK(nanosleep(&wanted, NULL) == 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK((end.tv_sec - start.tv_sec) * 1000000000L + end.tv_nsec - start.tv_nsec >= wanted.tv_nsec);
}

/* A thread that waits for two words. */
struct words {
    uint32_t first, second;
    long tid, woken;
};

static void *wait_for_both(void *argument)
{
    struct words *words = argument;
    struct { uint64_t value, address; uint32_t flags, reserved; } list[2] = {
        { 0, (uintptr_t)&words->first, 2 | FUTEX_PRIVATE_FLAG, 0 },
        { 0, (uintptr_t)&words->second, 2 | FUTEX_PRIVATE_FLAG, 0 },
    };
    words->woken = -1;
    __atomic_store_n(&words->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    words->woken = syscall(449, list, 2, 0, NULL, 0);
    return NULL;
}

/* The letter of a thread's state. */
static char state_of(long tid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", tid);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof text, file) && fclose(file) == 0);
    CHECK(atol(text) == tid && strrchr(text, ')'));
    return strrchr(text, ')')[2];
}

/* Tasks that sleep and are woken go on where they were (X4). */
static void futexes(void)
{
    struct words words = { 0 };
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_both, &words) == 0);
    while (!__atomic_load_n(&words.tid, __ATOMIC_ACQUIRE) || state_of(words.tid) != 'S')
        usleep(1000);
    CHECK(state_of(syscall(SYS_gettid)) == 'R');
    CHECK(syscall(SYS_futex, &words.second, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 1);
    CHECK(pthread_join(thread, NULL) == 0 && words.woken == 1);
    CHECK(syscall(SYS_futex, &words.first, FUTEX_REQUEUE, -1, 0, &words.second, 0) == -1 && errno == EINVAL);
    struct { uint64_t value, address; uint32_t flags, reserved; } other = { 7, (uintptr_t)&words.first, 2, 0 };
    CHECK(syscall(449, &other, 1, 0, NULL, 0) == -1 && errno == EAGAIN);
    CHECK(waitpid(-2147483647 - 1, NULL, 0) == -1 && errno == ESRCH);
}

/* A pipe that several threads read, and others that stay empty: a look at all of them takes its time. */
#define EMPTY 200
static int shared_pipe[2], empty_pipe[2], empty[EMPTY];
static volatile int polls_end;

/* Waits for bytes without a limit, and takes one if it is still there. */
static void *poll_and_read(void *by_select)
{
    char byte;
    while (!polls_end) {
        struct pollfd entries[EMPTY + 1] = { { shared_pipe[0], POLLIN, 0 } };
        fd_set set;
        FD_ZERO(&set);
        FD_SET(shared_pipe[0], &set);
        for (int i = 0; i < EMPTY; i++) {
            entries[i + 1] = (struct pollfd){ empty[i], POLLIN, 0 };
            FD_SET(empty[i], &set);
        }
        if (by_select)
            CHECK(select(empty[EMPTY - 1] + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(shared_pipe[0], &set));
        else
            CHECK(poll(entries, EMPTY + 1, -1) == 1 && entries[0].revents & POLLIN);
        CHECK(read(shared_pipe[0], &byte, 1) == 1 || errno == EAGAIN);
    }
    return NULL;
}

/* What a thread has waited for may be gone when it looks, but the wait itself has an answer. The threads enter
 * and leave the same queues (X9). */
static void polls(void)
{
    pthread_t threads[THREADS];
    CHECK(pipe2(shared_pipe, O_NONBLOCK) == 0 && pipe(empty_pipe) == 0);
    for (int i = 0; i < EMPTY; i++)
        CHECK((empty[i] = dup(empty_pipe[0])) > shared_pipe[0]);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, poll_and_read, i % 2 ? shared_pipe : NULL) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(write(shared_pipe[1], "b", 1) == 1 || errno == EAGAIN);
        usleep(100);
    }
    polls_end = 1;
    char bytes[THREADS] = { 0 };
    for (int i = 0; i < THREADS; i++) {
        fcntl(shared_pipe[1], F_SETFL, 0);
        CHECK(write(shared_pipe[1], bytes, THREADS) == THREADS);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < EMPTY; i++)
        CHECK(close(empty[i]) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(close(shared_pipe[i]) == 0 && close(empty_pipe[i]) == 0);
}

static void oom(void)
{
    pid_t child = fork();
    if (child == 0)
        for (;;) {
            char *memory = malloc(1 << 20);
            CHECK(memory);
            memset(memory, 1, 1 << 20);
        }
    CHECK(is_killed_by(child, SIGKILL));
    size_t bytes = 16 << 20;
    char *memory = malloc(bytes);
    CHECK(memory);
    memset(memory, 1, bytes);
}

static void crowd(void)
{
    struct rlimit limit = { LONG, LONG };
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (dup(0) >= 0)
        ;
    CHECK(errno == EMFILE && close(LONG - 1) == 0);
    for (int i = 0; i < 6; i++) {
        pid_t child = fork();
        if (child == 0)
            for (;;) {
                char *memory = malloc(1 << 20);
                if (memory)
                    memset(memory, 1, 1 << 20);
            }
        char names[4096];
        while (child > 0 && waitpid(child, NULL, WNOHANG) == 0) {
            int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
            CHECK(syscall(SYS_getdents64, folder, names, sizeof names) > 0 || errno == ENOMEM);
            CHECK(close(folder) == 0);
        }
    }
}

static void segments(void)
{
    struct shm_info info;
    int most = open("/proc/sys/kernel/shmmni", O_WRONLY);
    CHECK(most >= 0 && write(most, "32768", 5) == 5 && close(most) == 0);
    for (int made = 0; made < SEGMENTS; made += shmget(IPC_PRIVATE, 1, 0600) >= 0)
        ;
    for (int i = 0; i < ROUNDS; i++)
        CHECK(shmctl(0, SHM_INFO, (struct shmid_ds *)&info) >= 0 && info.used_ids == SEGMENTS);
}

static uint32_t requeue_words[2][64];
static volatile int requeues_end;

/* Waits again and again, for a time that is soon up. */
static void *wait_shortly(void *own)
{
    struct timespec time = { 0, 20000 + (intptr_t)own * 3000 };
    while (!requeues_end)
        syscall(SYS_futex, requeue_words[0], FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
    return NULL;
}

/* A waiter that leaves is in no queue, wherever it is moved meanwhile: no wake-up is lost on it. */
static void requeues(void)
{
    pthread_t threads[WAITERS];
    for (intptr_t i = 0; i < WAITERS; i++)
        CHECK(pthread_create(&threads[i], NULL, wait_shortly, (void *)i) == 0);
    for (int i = 0; i < 100 * ROUNDS; i++)
        syscall(SYS_futex, requeue_words[0], FUTEX_REQUEUE_PRIVATE, 0, INT_MAX, requeue_words[1], 0);
    requeues_end = 1;
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(syscall(SYS_futex, requeue_words[i], FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0) == 0);
}

/* Each group is part of the one before. */
static void groups(void)
{
    static char line[3 * GROUPS + 100];
    CHECK(mkdir("/groups", 0755) == 0 && mount("groups", "/groups", "cgroup2", 0, NULL) == 0);
    CHECK(chdir("/groups") == 0);
    for (int i = 0; i < GROUPS; i++)
        CHECK(mkdir("g", 0755) == 0 && chdir("g") == 0);
    int members = open("cgroup.procs", O_WRONLY), own = open("/proc/self/cgroup", O_RDONLY);
    CHECK(members >= 0 && own >= 0 && write(members, "0", 1) == 1);
    CHECK(read(own, line, sizeof line) == 3 + 2 * GROUPS + 1);
    members = open("/groups/cgroup.procs", O_WRONLY);
    CHECK(members >= 0 && write(members, "0", 1) == 1);
    for (int i = 0; i < GROUPS; i++)
        CHECK(chdir("..") == 0 && rmdir("g") == 0);
}

/* Calls until it succeeds: every other failure but one for want of memory ends the test. */
#define AT_LAST(call) \
    do { \
        while ((call) != 0) \
            CHECK(errno == ENOMEM); \
    } while (0)

/* Makes directories whose path has more than 64 KiB, and works in the last one. */
static void nest(void)
{
    static char name[256];
    memset(name, 'd', 255);
    for (int i = 0; i < NESTED; i++) {
        AT_LAST(mkdir(name, 0755));
        AT_LAST(chdir(name));
    }
}

/* Makes symbolic links that lead to one another, so that what is left of the path grows with each. */
static void link_up(void)
{
    static char target[4000], name[8];
    for (int i = 0; i < LINKS; i++) {
        int at = snprintf(target, sizeof target, "l%d", i + 1);
        while (at + 2 < (int)sizeof target)
            at += sprintf(target + at, "/x");
        snprintf(name, sizeof name, "l%d", i);
        AT_LAST(symlink(target, name));
    }
}

/* Locks every other byte, so that each lock stands by itself. */
static void lock_bytes(int file)
{
    for (int i = 0; i < LOCKS; i++) {
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1 };
        CHECK(fcntl(file, F_SETLK, &lock) == 0 || errno == ENOMEM || errno == ENOLCK);
    }
}

/* A list that finds no memory makes its call fail, and no more. */
static void lists(char *program)
{
    static struct pollfd entries[LONG];
    static gid_t groups[LONG];
    static char *arguments[LONG + 1];
    struct rlimit limit = { LONG, LONG };
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0; i < LONG; i++)
        arguments[i] = i == 0 ? program : i == 1 ? "child" : "";
    nest();
    link_up();
    char path[4096];
    for (int i = 0; i < LISTS; i++) {
        CHECK(syscall(SYS_getcwd, path, sizeof path) < 0 && (errno == ENAMETOOLONG || errno == ENOMEM));
        long bytes = readlink("/proc/self/cwd", path, sizeof path);
        CHECK(bytes == sizeof path || errno == ENOMEM || errno == ENAMETOOLONG);
        CHECK(open("l0", O_RDONLY) < 0 && (errno == ELOOP || errno == ENOENT || errno == ENOMEM));
        int file;
        while ((file = open("locked", O_RDWR | O_CREAT, 0600)) < 0)
            CHECK(errno == ENOMEM);
        if (i % 10 == 0)
            lock_bytes(file);
        CHECK(close(file) == 0);
        CHECK(poll(entries, LONG, 0) >= 0 || errno == ENOMEM);
        CHECK(setgroups(LONG, groups) == 0 || errno == ENOMEM);
        CHECK(getgroups(LONG, groups) >= 0 || errno == ENOMEM);
        pid_t child = fork();
        if (child == 0) {
            execv(program, arguments);
            CHECK(errno == ENOMEM);
            _exit(7);
        }
        CHECK(child < 0 || exits_with(child, 7));
    }
}

int main(int count, char **arguments)
{
    if (count > 1 && !strcmp(arguments[1], "child"))
        return 7;
    if (count > 1 && !strcmp(arguments[1], "oom")) {
        oom();
        return 0;
    }
    if (count > 1 && !strcmp(arguments[1], "crossings")) {
        CHECK(count == 3);
        crossings = atol(arguments[2]);
        run_threads(cross, 2 * PAIRS);
        return 0;
    }
    if (count > 1 && !strcmp(arguments[1], "requeues")) {
        requeues();
        return 0;
    }
    if (count > 1 && !strcmp(arguments[1], "crowd")) {
        crowd();
        return 0;
    }
    if (count > 1 && !strcmp(arguments[1], "groups")) {
        groups();
        return 0;
    }
    if (count > 1 && !strcmp(arguments[1], "lists")) {
        lists(arguments[0]);
        return 0;
    }
    if (count > 1 && !strcmp(arguments[1], "segments")) {
        segments();
        return 0;
    }
    futexes();
    polls();
    slices();
    all(arguments[0]);
    return 5;
}
