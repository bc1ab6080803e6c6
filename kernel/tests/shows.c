/* What processes see of each other: descriptors of others, what they share, the files that they map, the call in which
 * they are. And timers of processor time. As kernel/test runs them in the kernel; it passes on Linux too.
 *
 *   shows all | CASE
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "child.h"

#define PAGE 4096UL
#define NO_DESCRIPTOR 1000
#define MILLISECOND 1000000L
#define SECOND 1000000000L

static void fails(int error, long result)
{
    CHECK(result == -1 && errno == error);
}

/* A descriptor of another process becomes one of the caller's. */
static void getfd(void)
{
    int up[2], down[2];
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    pid_t child = fork();
    if (child == 0) {
        int own = open("/proc/self/stat", O_RDONLY);
        CHECK(write(up[1], &own, sizeof own) == sizeof own);
        CHECK(read(down[0], &own, 1) == 1);
        _exit(0);
    }
    int theirs, other = syscall(SYS_pidfd_open, child, 0);
    CHECK(read(up[0], &theirs, sizeof theirs) == sizeof theirs && other >= 0);
    int mine = syscall(SYS_pidfd_getfd, other, theirs, 0);
    CHECK(mine >= 0 && fcntl(mine, F_GETFD) == FD_CLOEXEC);
    CHECK(syscall(SYS_kcmp, getpid(), child, KCMP_FILE, mine, theirs) == 0);
    CHECK(syscall(SYS_kcmp, getpid(), child, KCMP_FILE, up[0], theirs) > 0);
    char text[256];
    CHECK(read(mine, text, sizeof text) > 0 && atoi(text) == child);
    fails(EINVAL, syscall(SYS_pidfd_getfd, other, theirs, 1));
    fails(EBADF, syscall(SYS_pidfd_getfd, other, NO_DESCRIPTOR, 0));
    fails(EBADF, syscall(SYS_pidfd_getfd, up[0], theirs, 0));
    CHECK(write(down[1], text, 1) == 1 && exits_with(child, 0));
    fails(ESRCH, syscall(SYS_pidfd_getfd, other, theirs, 0));
}

static int wait_in_memory(void *unused)
{
    (void)unused;
    pause();
    return 0;
}

static void compares(void)
{
    static char stack[1 << 16];
    pid_t self = getpid(), copy = fork();
    if (copy == 0)
        wait_in_memory(NULL);
    pid_t sharer = clone(wait_in_memory, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_FS | CLONE_SIGHAND | SIGCHLD, NULL);
    CHECK(sharer > 0);
    for (int kind = KCMP_VM; kind <= KCMP_SIGHAND; kind++) {
        CHECK(syscall(SYS_kcmp, self, sharer, kind, 0, 0) == 0);
        long one = syscall(SYS_kcmp, self, copy, kind, 0, 0), other = syscall(SYS_kcmp, copy, self, kind, 0, 0);
        CHECK(one + other == 3 && (one == 1 || one == 2));
    }
    CHECK(syscall(SYS_kcmp, self, sharer, KCMP_SYSVSEM, 0, 0) == 0);
    CHECK(syscall(SYS_kcmp, self, copy, KCMP_FILE, 1, 1) == 0);
    fails(EBADF, syscall(SYS_kcmp, self, copy, KCMP_FILE, 1, NO_DESCRIPTOR));
    fails(EINVAL, syscall(SYS_kcmp, self, copy, 100, 0, 0));
    fails(ESRCH, syscall(SYS_kcmp, self, 0x3fffffff, KCMP_VM, 0, 0));
    CHECK(kill(copy, SIGKILL) == 0 && is_killed_by(copy, SIGKILL));
    CHECK(kill(sharer, SIGKILL) == 0 && is_killed_by(sharer, SIGKILL));
}

static long link_of(const char *format, uintptr_t start, uintptr_t end, char *target)
{
    char name[128];
    snprintf(name, sizeof name, format, start, end);
    memset(target, 0, PAGE);
    return readlink(name, target, PAGE - 1);
}

/* A link for each mapping of a file, whose name is exact. */
static void maps_files(void)
{
    static char target[PAGE];
    char name[] = "/tmp/mappedXXXXXX";
    int file = mkstemp(name), zero = open("/dev/zero", O_RDONLY);
    CHECK(ftruncate(file, 2 * PAGE) == 0);
    uintptr_t at = (uintptr_t)mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    uintptr_t none = (uintptr_t)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t zeroes = (uintptr_t)mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE, zero, 0);
    CHECK(link_of("/proc/self/map_files/%lx-%lx", at, at + 2 * PAGE, target) > 0 && !strcmp(target, name));
    CHECK(link_of("/proc/self/map_files/%lx-%lx", zeroes, zeroes + PAGE, target) > 0 && !strcmp(target, "/dev/zero"));
    CHECK(link_of("/proc/self/map_files/%lX-%lX", at, at + 2 * PAGE, target) > 0 && !strcmp(target, name));
    fails(ENOENT, link_of("/proc/self/map_files/%lx-%lx", at, at + PAGE, target));
    fails(ENOENT, link_of("/proc/self/map_files/%lx-%lx", none, none + PAGE, target));
    static const char *const wrong[] = {"0%lx-%lx", "%lx-0%lx", " %lx-%lx", "%lx-%lx ", "%lx-%lx-", "+%lx-%lx", "%lx%lx"};
    for (size_t form = 0; form < sizeof wrong / sizeof *wrong; form++) {
        char format[64];
        snprintf(format, sizeof format, "/proc/self/map_files/%s", wrong[form]);
        fails(ENOENT, link_of(format, at, at + 2 * PAGE, target));
    }
    char expected[64];
    int found = 0;
    snprintf(expected, sizeof expected, "%lx-%lx", at, at + 2 * PAGE);
    DIR *folder = opendir("/proc/self/map_files");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        found += !strcmp(entry->d_name, expected);
    CHECK(found == 1);
    closedir(folder);
    CHECK(unlink(name) == 0);
}

/* The call in which a task is, and where it waits. */
static void calls(void)
{
    char text[256], expected[256];
    int file = open("/proc/self/syscall", O_RDONLY);
    memset(text, 0, sizeof text);
    CHECK(syscall(SYS_read, file, text, sizeof text) > 0);
    snprintf(expected, sizeof expected, "%ld 0x%lx 0x%lx 0x%lx", (long)SYS_read, (long)file, (long)text, (long)sizeof text);
    CHECK(!strncmp(text, expected, strlen(expected)));
    unsigned long words[9];
    CHECK(sscanf(text, "%lu %lx %lx %lx %lx %lx %lx %lx %lx", &words[0], &words[1], &words[2], &words[3], &words[4], &words[5],
                 &words[6], &words[7], &words[8]) == 9);
    CHECK(words[7] - ((uintptr_t)text - PAGE) < 2 * PAGE && text[strlen(text) - 1] == '\n');
    CHECK(read(open("/proc/self/wchan", O_RDONLY), text, sizeof text) == 1 && text[0] == '0');
}

static int change_shared(void *file)
{
    int shared = *(int *)file;
    if (unshare(CLONE_FILES) || close(shared) || unshare(CLONE_FS) || chdir("/tmp"))
        return 1;
    umask(0);
    return unshare(CLONE_SYSVSEM);
}

/* Descriptors and places of one's own. */
static void unshares(void)
{
    static char stack[1 << 16];
    char text[64];
    int file = open("/proc/self/stat", O_RDONLY);
    CHECK(chdir("/proc") == 0);
    umask(022);
    pid_t child = clone(change_shared, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_FS | SIGCHLD, &file);
    CHECK(exits_with(child, 0));
    CHECK(fcntl(file, F_GETFD) == 0 && getcwd(text, sizeof text) && !strcmp(text, "/proc") && umask(022) == 022);
    CHECK(unshare(CLONE_THREAD | CLONE_SIGHAND | CLONE_VM) == 0 && unshare(0) == 0);
    fails(EINVAL, unshare(CLONE_PARENT));
    child = clone(wait_in_memory, stack + sizeof stack, CLONE_VM | CLONE_SIGHAND | SIGCHLD, NULL);
    fails(EINVAL, unshare(CLONE_SIGHAND));
    fails(EINVAL, unshare(CLONE_VM));
    CHECK(unshare(CLONE_FILES) == 0);
    CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
    /* The names of descriptors are exact. */
    struct stat found;
    static const char *const wrong[] = {"00", "+0", "-0", " 0", "0 ", "4294967296"};
    CHECK(lstat("/proc/self/fd/0", &found) == 0);
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        snprintf(text, sizeof text, "/proc/self/fd/%s", wrong[at]);
        fails(ENOENT, lstat(text, &found));
    }
}

static volatile sig_atomic_t expired;

static void note(int signal)
{
    (void)signal;
    expired++;
}

static long now(clockid_t clock)
{
    struct timespec time;
    CHECK(clock_gettime(clock, &time) == 0);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static void handle(int signal)
{
    struct sigaction action = {.sa_handler = note};
    CHECK(sigaction(signal, &action, NULL) == 0);
    expired = 0;
}

/* Timers of setitimer that run while the process does. */
static void intervals(void)
{
    static const int which[] = {ITIMER_VIRTUAL, ITIMER_PROF}, signals[] = {SIGVTALRM, SIGPROF};
    for (int at = 0; at < 2; at++) {
        struct itimerval set = {.it_value = {.tv_usec = 100000}}, left;
        handle(signals[at]);
        CHECK(setitimer(which[at], &set, NULL) == 0);
        /* Not while it sleeps. */
        usleep(200000);
        CHECK(expired == 0 && getitimer(which[at], &left) == 0 && left.it_value.tv_usec > 50000);
        long start = now(CLOCK_PROCESS_CPUTIME_ID);
        while (!expired)
            CHECK(now(CLOCK_PROCESS_CPUTIME_ID) - start < 5 * SECOND);
        CHECK(getitimer(which[at], &left) == 0 && left.it_value.tv_usec == 0 && left.it_value.tv_sec == 0);
        set.it_interval.tv_usec = 20000;
        CHECK(setitimer(which[at], &set, NULL) == 0);
        while (expired < 5)
            CHECK(now(CLOCK_PROCESS_CPUTIME_ID) - start < 5 * SECOND);
        CHECK(getitimer(which[at], &left) == 0 && left.it_interval.tv_usec >= 20000 && left.it_interval.tv_usec < 30000);
        memset(&set, 0, sizeof set);
        CHECK(setitimer(which[at], &set, &left) == 0 && left.it_value.tv_usec > 0);
        int seen = expired;
        start = now(CLOCK_PROCESS_CPUTIME_ID);
        while (now(CLOCK_PROCESS_CPUTIME_ID) - start < SECOND / 10)
            ;
        CHECK(expired <= seen + 1);
    }
}

static void *spin(void *until)
{
    while (!*(volatile int *)until)
        ;
    return NULL;
}

/* Timers of timer_create: of a thread, and of a process with all of its threads. */
static void processor_timers(void)
{
    static const clockid_t clocks[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    for (int at = 0; at < 4; at++) {
        clockid_t clock = clocks[at % 2];
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        struct itimerspec set = {.it_value = {.tv_nsec = 100 * MILLISECOND}};
        handle(SIGUSR1);
        CHECK(timer_create(clock, &event, &timer) == 0);
        long start = now(clock);
        int is_absolute = at >= 2;
        if (is_absolute) {
            long end = start + 100 * MILLISECOND;
            set.it_value = (struct timespec){.tv_sec = end / SECOND, .tv_nsec = end % SECOND};
        }
        CHECK(timer_settime(timer, is_absolute ? TIMER_ABSTIME : 0, &set, NULL) == 0);
        usleep(150000);
        CHECK(expired == 0);
        while (!expired)
            CHECK(now(clock) - start < 5 * SECOND);
        CHECK(now(clock) - start >= 100 * MILLISECOND);
        CHECK(timer_delete(timer) == 0);
    }
    /* One that was due long ago was due often since. */
    sigset_t awaited = blocked(SIGUSR2);
    struct sigevent thread_event = {.sigev_notify = SIGEV_THREAD, .sigev_signo = SIGUSR2};
    struct itimerspec past = {.it_value = {.tv_nsec = 1}, .it_interval = {.tv_nsec = 1}};
    int number;
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, &thread_event, &number) == 0);
    CHECK(syscall(SYS_timer_settime, number, TIMER_ABSTIME, &past, NULL) == 0);
    siginfo_t info;
    CHECK(sigwaitinfo(&awaited, &info) == SIGUSR2);
    CHECK(syscall(SYS_timer_getoverrun, number) >= 1000 * MILLISECOND / 10);
    fails(EINVAL, syscall(SYS_timer_settime, number, 0, NULL, NULL));
    CHECK(syscall(SYS_timer_delete, number) == 0);
    /* The main thread sleeps, and another one uses the time. */
    volatile int ends = 0;
    pthread_t thread;
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec set = {.it_value = {.tv_nsec = 50 * MILLISECOND}};
    handle(SIGUSR1);
    CHECK(pthread_create(&thread, NULL, spin, (void *)&ends) == 0);
    usleep(10000);
    CHECK(timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &set, NULL) == 0);
    for (int wait = 0; wait < 500 && !expired; wait++)
        usleep(10000);
    CHECK(expired);
    ends = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

static char *forced_page;
static volatile int stops_forcing;

static void *force(void *unused)
{
    int memory = open("/proc/self/mem", O_RDWR);
    CHECK(memory >= 0);
    while (!stops_forcing)
        CHECK(pwrite(memory, "x", 1, (off_t)(uintptr_t)forced_page) == 1);
    CHECK(close(memory) == 0);
    return unused;
}

/* Stores by several descriptors of a program's memory leave neither it nor its children a right to store. */
static void forced(void)
{
    pthread_t threads[3];
    int zeroes = open("/dev/zero", O_RDONLY);
    forced_page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(zeroes >= 0 && forced_page != MAP_FAILED);
    for (int at = 0; at < 3; at++)
        CHECK(pthread_create(&threads[at], NULL, force, NULL) == 0);
    while (!*(volatile char *)forced_page)
        sched_yield();
    for (int round = 0; round < 50; round++) {
        pid_t child = fork();
        if (child == 0)
            _exit(read(zeroes, forced_page, 1) == -1 && errno == EFAULT ? 0 : 1);
        CHECK(exits_with(child, 0));
    }
    stops_forcing = 1;
    for (int at = 0; at < 3; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(read(zeroes, forced_page, 1) == -1 && errno == EFAULT);
    CHECK(munmap(forced_page, 4096) == 0 && close(zeroes) == 0);
}

static const struct test_case cases[] = {
    {"getfd", getfd}, {"compares", compares},   {"maps_files", maps_files}, {"unshares", unshares},
    {"calls", calls}, {"intervals", intervals}, {"processor_timers", processor_timers},
    {"forced", forced},
};

int main(int count, char **arguments)
{
    return run_cases(cases, sizeof cases / sizeof *cases, count > 1 ? arguments[1] : "all", 60);
}
