/* Signals that are sent while something else happens, stops, timers and timeouts, as kernel/test runs them in the kernel;
 * it passes on Linux too.
 *
 *   signals all     every case
 *   signals CASE    one of them
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "child.h"

#define PAGE 4096UL
#define MILLISECOND 1000000L
#define SECOND 1000000000L
#define STOPS 2000
#define QUEUED 100
#define ROUNDS 40
static long now(void)
{
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* Sleeps that long, whatever signals arrive. */
static void sleep_for(long ns)
{
    long end = now() + ns;
    struct timespec until = { end / SECOND, end % SECOND };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static pid_t forked(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        alarm(30);
    return child;
}

static volatile long taken, taken_by;

static void take(int signal)
{
    (void)signal;
    taken_by = syscall(SYS_gettid);
    taken++;
}

static void handle(int signal, int flags)
{
    struct sigaction action = { .sa_handler = take, .sa_flags = flags };
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static void *spin(void *unused)
{
    for (;;)
        ;
    return unused;
}

/* A signal reaches a thread that computes, and does not call the kernel: also where it has a CPU of its own. */
static void computing(void)
{
    pid_t child = forked();
    if (child == 0)
        spin(NULL);
    sleep_for(50 * MILLISECOND);
    CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
    child = forked();
    if (child == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, spin, NULL) == 0);
        sleep_for(50 * MILLISECOND);
        _exit(7);
    }
    CHECK(exits_with(child, 7));
    child = forked();
    if (child == 0) {
        struct itimerval soon = { { 0, 0 }, { 0, 50000 } };
        handle(SIGALRM, 0);
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        while (!taken)
            ;
        _exit(5);
    }
    CHECK(exits_with(child, 5));
}

/* Timers whose intervals are shorter than the delivery of a signal leave the machine to other programs. */
static void fast_timers(void)
{
    volatile long *count = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(count != MAP_FAILED);
    for (int kind = 0; kind < 2; kind++) {
        pid_t child = forked();
        if (child == 0) {
            struct itimerval fast = { { 0, 1 }, { 0, 1 } };
            struct itimerspec faster = { { 0, 1 }, { 0, 1 } };
            struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
            timer_t timer;
            sigset_t set = blocked(kind ? SIGRTMIN : SIGALRM);
            CHECK(kind || setitimer(ITIMER_REAL, &fast, NULL) == 0);
            CHECK(!kind || timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
            CHECK(!kind || timer_settime(timer, 0, &faster, NULL) == 0);
            for (;;)
                count[kind] += sigtimedwait(&set, NULL, NULL) > 0;
        }
        sleep_for(200 * MILLISECOND);
        /* On a busy machine the child may not have run when the time is over. */
        while (count[kind] <= 1)
            sleep_for(10 * MILLISECOND);
        CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
    }
}

/* Many timers are always due, and their signals are ignored: programs go on, and end. */
static void ignored(void)
{
    clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID };
    for (int kind = 0; kind < 2; kind++) {
        int *ready = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(ready != MAP_FAILED);
        pid_t child = forked();
        if (child == 0) {
            struct itimerspec each = { { 0, 1 }, { 0, 1 } };
            struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
            CHECK(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
            for (int at = 0; at < 64; at++) {
                int number;
                CHECK(syscall(SYS_timer_create, clocks[kind], &event, &number) == 0);
                CHECK(syscall(SYS_timer_settime, number, 0, &each, NULL) == 0);
            }
            for (;;)
                ++*(volatile int *)ready;
        }
        while (!*(volatile int *)ready)
            sleep_for(10 * MILLISECOND);
        sleep_for(100 * MILLISECOND);
        CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
    }
    /* The descriptor of a device has a clock, but none for timers. */
    int number, own = ~0 << 3;
    CHECK(syscall(SYS_timer_create, own | 3, NULL, &number) == -1 && errno == EOPNOTSUPP);
    CHECK(syscall(SYS_timer_create, own | 7, NULL, &number) == -1 && errno == EINVAL);
}

/* A timer has one signal on its way, however often it was due, and the signal says how often that was. */
static void overruns(void)
{
    struct timespec zero = { 0, 0 }, long_time = { 10, 0 };
    struct itimerspec each = { { 0, 10 * MILLISECOND }, { 0, 10 * MILLISECOND } }, off = { 0 };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 9 };
    sigset_t set = blocked(SIGRTMIN);
    siginfo_t info;
    int number, other;
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &other) == 0);
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &number) == 0 && number != other);
    CHECK(syscall(SYS_timer_settime, number, 0, &each, NULL) == 0);
    sleep_for(200 * MILLISECOND);
    CHECK(sigtimedwait(&set, &info, &long_time) == SIGRTMIN && info.si_code == SI_TIMER);
    CHECK(info.si_timerid == number && info.si_overrun >= 15 && info.si_value.sival_int == 9);
    CHECK(syscall(SYS_timer_getoverrun, number) == info.si_overrun);
    CHECK(syscall(SYS_timer_settime, number, 0, &off, NULL) == 0);
    sigtimedwait(&set, &info, &zero);
    CHECK(sigtimedwait(&set, &info, &zero) == -1 && errno == EAGAIN);
    /* The timer goes on after its signal was taken, and after it was discarded. */
    CHECK(syscall(SYS_timer_settime, number, 0, &each, NULL) == 0);
    CHECK(sigtimedwait(&set, &info, &long_time) == SIGRTMIN && sigtimedwait(&set, &info, &long_time) == SIGRTMIN);
    sleep_for(50 * MILLISECOND);
    CHECK(signal(SIGRTMIN, SIG_IGN) != SIG_ERR && signal(SIGRTMIN, SIG_DFL) != SIG_ERR);
    CHECK(sigtimedwait(&set, &info, &long_time) == SIGRTMIN && syscall(SYS_timer_delete, number) == 0);
    /* Without an event the value is the timer's number. */
    set = blocked(SIGALRM);
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, &number) == 0 && number != other);
    CHECK(syscall(SYS_timer_settime, number, 0, &each, NULL) == 0);
    CHECK(sigtimedwait(&set, &info, &long_time) == SIGALRM && info.si_value.sival_int == number);
    CHECK(syscall(SYS_timer_delete, number) == 0 && syscall(SYS_timer_delete, other) == 0);
    /* No number names the timer of alarm. */
    alarm(25);
    CHECK(syscall(SYS_timer_delete, -1) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_timer_settime, -1, 0, &each, NULL) == -1 && errno == EINVAL && alarm(30) > 0);
    /* A number that cannot be stored makes no timer. */
    for (int i = 0; i < 200; i++)
        CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, (void *)8) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, &number) == 0 && syscall(SYS_timer_delete, number) == 0);
}

/* Processor time does not pass in a sleep: its timers do not run in real time, where there are any. */
static void processor_time(void)
{
    struct timespec zero = { 0, 0 };
    struct itimerspec soon = { { 0, 0 }, { 0, 100 * MILLISECOND } };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
    sigset_t set = blocked(SIGRTMIN);
    int number;
    CHECK(syscall(SYS_clock_nanosleep, CLOCK_THREAD_CPUTIME_ID, 0, &zero, NULL) == -1);
    if (syscall(SYS_timer_create, CLOCK_PROCESS_CPUTIME_ID, &event, &number) != 0) {
        CHECK(errno == EINVAL);
        return;
    }
    CHECK(syscall(SYS_timer_settime, number, 0, &soon, NULL) == 0);
    sleep_for(300 * MILLISECOND);
    CHECK(sigtimedwait(&set, NULL, &zero) == -1 && errno == EAGAIN && syscall(SYS_timer_delete, number) == 0);
}

/* A stop that the terminal asks for is ignored where no shell could continue the process; SIGSTOP is not. */
static void orphans(void)
{
    pid_t child = forked();
    if (child == 0) {
        CHECK(setsid() > 0);
        raise(SIGTSTP);
        raise(SIGTTIN);
        raise(SIGTTOU);
        _exit(5);
    }
    CHECK(exits_with(child, 5));
    child = forked();
    if (child == 0) {
        int status;
        CHECK(setsid() > 0);
        /* This one's parent is in the session, and in another group. */
        pid_t job = forked();
        if (job == 0) {
            CHECK(setpgid(0, 0) == 0);
            raise(SIGTSTP);
            _exit(6);
        }
        CHECK(waitpid(job, &status, WUNTRACED) == job && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP);
        CHECK(kill(job, SIGCONT) == 0 && exits_with(job, 6));
        raise(SIGSTOP);
        _exit(5);
    }
    int status;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    CHECK(kill(child, SIGCONT) == 0 && exits_with(child, 5));
}

/* A terminal, or the one of the machine. */
static int terminal(void)
{
    int controller = posix_openpt(O_RDWR | O_NOCTTY);
    if (controller < 0)
        return open("/dev/console", O_RDWR | O_NOCTTY);
    CHECK(grantpt(controller) == 0 && unlockpt(controller) == 0);
    return open(ptsname(controller), O_RDWR | O_NOCTTY);
}

/* The terminal refuses a process in the background that no shell could continue. */
static void background(void)
{
    pid_t leader = forked();
    if (leader == 0) {
        int ends[2];
        char byte;
        CHECK(setsid() > 0 && pipe(ends) == 0);
        int file = terminal();
        struct termios settings;
        CHECK(file >= 0 && ioctl(file, TIOCSCTTY, 1) == 0 && tcgetattr(file, &settings) == 0);
        pid_t between = forked();
        if (between == 0) {
            between = getpid();
            if (forked() == 0) {
                CHECK(setpgid(0, 0) == 0);
                while (getppid() == between)
                    sched_yield();
                CHECK(read(file, &byte, 1) == -1 && errno == EIO);
                CHECK(tcsetpgrp(file, getpid()) == -1 && errno == ENOTTY);
                CHECK(tcsetattr(file, TCSANOW, &settings) == -1 && errno == EIO);
                CHECK(signal(SIGTTOU, SIG_IGN) != SIG_ERR && tcsetattr(file, TCSANOW, &settings) == 0);
                CHECK(write(ends[1], "", 1) == 1);
            }
            _exit(0);
        }
        CHECK(exits_with(between, 0) && close(ends[1]) == 0 && read(ends[0], &byte, 1) == 1);
        _exit(5);
    }
    CHECK(exits_with(leader, 5));
}

/* A process that was continued last runs. */
static void stops(void)
{
    volatile long *count = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(count != MAP_FAILED);
    pid_t child = fork();
    if (child == 0)
        for (;;) {
            ++*count;
            getppid();
        }
    for (int i = 1; i <= STOPS; i++) {
        int status;
        CHECK(kill(child, SIGSTOP) == 0 && kill(child, SIGCONT) == 0);
        if (i % 10)
            continue;
        long before = *count, end = now() + 5 * SECOND;
        while (*count == before && now() < end)
            sched_yield();
        CHECK(*count != before && waitpid(child, &status, WUNTRACED | WNOHANG) == 0);
    }
    CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
}

/* Calls that wait for some time, which begins with the call. */
static void sleep_relative(long ns)
{
    struct timespec time = { ns / SECOND, ns % SECOND };
    nanosleep(&time, NULL);
}

static void poll_relative(long ns)
{
    poll(NULL, 0, ns / MILLISECOND);
}

static void wait_for_signal(long ns)
{
    struct timespec time = { ns / SECOND, ns % SECOND };
    sigset_t set = blocked(SIGUSR2);
    sigtimedwait(&set, NULL, &time);
}

static void wait_for_word(long ns)
{
    struct timespec time = { ns / SECOND, ns % SECOND };
    uint32_t word = 0;
    syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0);
}

static void wait_until_for_word(long ns)
{
    long end = now() + ns;
    struct timespec time = { end / SECOND, end % SECOND };
    uint32_t word = 0;
    syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 0, &time, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wait_for_files(long ns)
{
    struct epoll_event event;
    epoll_wait(epoll_create1(0), &event, 1, ns / MILLISECOND);
}

static void receive(long ns)
{
    int ends[2];
    char byte;
    struct timeval time = { ns / SECOND, ns % SECOND / 1000 };
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    recv(ends[0], &byte, 1, 0);
}

static void (*const LIMITED[])(long) = {
    sleep_relative, poll_relative, wait_for_signal, wait_for_word, wait_until_for_word, wait_for_files, receive,
};
#define CALLS (sizeof LIMITED / sizeof *LIMITED)

/* A call that is made again after a stop ends when it was to end: before one that begins at the stop would. */
static void continued(void)
{
    pid_t children[CALLS];
    volatile long *began = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile long *ended = began + CALLS;
    CHECK(began != MAP_FAILED);
    for (size_t i = 0; i < CALLS; i++)
        if ((children[i] = forked()) == 0) {
            began[i] = now();
            LIMITED[i](4 * SECOND);
            ended[i] = now();
            _exit(5);
        }
    for (size_t i = 0; i < CALLS; i++)
        while (!began[i])
            sleep_for(10 * MILLISECOND);
    sleep_for(3 * SECOND);
    long stopped = now();
    for (size_t i = 0; i < CALLS; i++)
        CHECK(kill(children[i], SIGSTOP) == 0 && kill(children[i], SIGCONT) == 0);
    for (size_t i = 0; i < CALLS; i++)
        CHECK(exits_with(children[i], 5) && ended[i] < stopped + 4 * SECOND);
}

/* A call with a timeout ends although handlers run more often, also those that want calls to be made again. The timeout
   is long, so that the handler comes first on a busy machine too. */
static void interrupted(void)
{
    struct itimerval often = { { 0, 20000 }, { 0, 20000 } };
    handle(SIGALRM, SA_RESTART);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (size_t i = 0; i < CALLS; i++) {
        errno = 0;
        LIMITED[i](10 * SECOND);
        CHECK(errno == EINTR);
    }
}

/* Memory whose first access waits for an answer. Returns -1 where the machine has none. */
static int unanswered(char **memory)
{
    int handler = syscall(SYS_userfaultfd, 0);
    if (handler < 0)
        return -1;
    struct uffdio_api api = { UFFD_API, 0, 0 };
    *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(*memory != MAP_FAILED && ioctl(handler, UFFDIO_API, &api) == 0);
    struct uffdio_register add = { { (uintptr_t)*memory, PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
    CHECK(ioctl(handler, UFFDIO_REGISTER, &add) == 0);
    return handler;
}

static void wait_for_access(int handler)
{
    struct uffd_msg message;
    CHECK(read(handler, &message, sizeof message) == sizeof message && message.event == UFFD_EVENT_PAGEFAULT);
    sleep_for(50 * MILLISECOND);
}

/* Answers with a page of these bytes. The process may be gone. */
static void answer(int handler, char *memory, const void *page)
{
    struct uffdio_copy copy = { (uintptr_t)memory, (uintptr_t)page, PAGE, 0, 0 };
    ioctl(handler, UFFDIO_COPY, &copy);
}

static volatile pid_t second_thread;

static void *pause_thread(void *unused)
{
    second_thread = syscall(SYS_gettid);
    for (;;)
        pause();
    return unused;
}

static int handler_of_mask;
static char *mask_memory;

/* Sends the process a signal while its first thread is about to block it. */
static void *send_meanwhile(void *unused)
{
    char page[PAGE] = { 0 };
    wait_for_access(handler_of_mask);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    sleep_for(50 * MILLISECOND);
    page[(SIGUSR1 - 1) / 8] = 1 << (SIGUSR1 - 1) % 8;
    answer(handler_of_mask, mask_memory, page);
    return unused;
}

/* A signal whose thread blocks it before it looks goes to another thread. */
static void handed_over(void)
{
    pthread_t pausing, sending;
    if ((handler_of_mask = unanswered(&mask_memory)) < 0)
        return;
    handle(SIGUSR1, 0);
    CHECK(pthread_create(&pausing, NULL, pause_thread, NULL) == 0);
    while (!second_thread)
        sched_yield();
    sigset_t set = blocked(SIGUSR1);
    CHECK(pthread_create(&sending, NULL, send_meanwhile, NULL) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, mask_memory, NULL, 8) == 0);
    long end = now() + 10 * SECOND;
    while (!taken && now() < end)
        sleep_for(10 * MILLISECOND);
    CHECK(taken == 1 && taken_by == second_thread);
}

/* In a group of its own: sends a signal once the process accesses the memory, and then answers. */
static void send_to_maker(int handler, char *memory, pid_t process, pid_t thread, int signal)
{
    static const char page[PAGE];
    pid_t sender = forked();
    if (sender)
        return;
    CHECK(setpgid(0, 0) == 0);
    wait_for_access(handler);
    CHECK((thread ? syscall(SYS_tgkill, process, thread, signal) : kill(-process, signal)) == 0);
    sleep_for(100 * MILLISECOND);
    answer(handler, memory, page);
    _exit(0);
}

/* No process of a group survives a signal that ends the group, not even one that is being made. */
static void made_meanwhile(int signal)
{
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    pid_t group = forked();
    if (group == 0) {
        char *memory;
        CHECK(setpgid(0, 0) == 0);
        int handler = unanswered(&memory);
        if (handler < 0)
            kill(getpid(), signal);
        int writes = fcntl(ends[1], F_DUPFD_CLOEXEC, 100);
        CHECK(close(ends[1]) == 0 && close(ends[0]) == 0);
        pid_t sender = forked();
        if (sender == 0) {
            close(writes);
            send_to_maker(handler, memory, getppid(), 0, signal);
            _exit(0);
        }
        if (syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, memory, 0, 0) == 0)
            alarm(20);
        pause_thread(NULL);
    }
    CHECK(close(ends[1]) == 0 && is_killed_by(group, signal));
    struct pollfd end = { ends[0], POLLIN, 0 };
    CHECK(poll(&end, 1, 10000) == 1 && read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
}

static void killed_group(void)
{
    made_meanwhile(SIGKILL);
    made_meanwhile(SIGTERM);
}

static void fork_on(void)
{
    for (;;) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            pause_thread(NULL);
        }
        if (child > 0 && (kill(child, SIGKILL) != 0 || waitpid(child, NULL, 0) != child))
            _exit(1);
    }
}

/* The same where the processes of the group make others all the time. */
static void forks(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2];
        char byte;
        CHECK(pipe(ends) == 0);
        pid_t group = forked();
        if (group == 0) {
            CHECK(setpgid(0, 0) == 0 && close(ends[0]) == 0);
            for (int i = 0; i < 3 && fork() > 0; i++)
                ;
            fork_on();
        }
        /* On a busy machine the child may not have run when the time is over. */
        CHECK(setpgid(group, group) == 0 && close(ends[1]) == 0);
        sleep_for((10 + round) * MILLISECOND);
        CHECK(kill(-group, SIGKILL) == 0 && is_killed_by(group, SIGKILL));
        struct pollfd end = { ends[0], POLLIN, 0 };
        CHECK(poll(&end, 1, 10000) == 1 && read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
    }
}

static volatile long *steps;

static int step(void *unused)
{
    for (;;)
        ++*steps;
    return unused != NULL;
}

/* A thread that is made while its process stops does not run until the process continues. */
static void stopped_group(void)
{
    int status;
    steps = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(steps != MAP_FAILED);
    pid_t child = forked();
    if (child == 0) {
        char *memory;
        pthread_t thread;
        int handler = unanswered(&memory);
        CHECK(setpgid(0, 0) == 0);
        if (handler < 0)
            _exit(3);
        CHECK(pthread_create(&thread, NULL, pause_thread, NULL) == 0);
        while (!second_thread)
            sched_yield();
        send_to_maker(handler, memory, getpid(), second_thread, SIGSTOP);
        char *stack = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED);
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_PARENT_SETTID;
        CHECK(clone(step, stack + 16 * PAGE, flags, NULL, memory) > 0);
        pause_thread(NULL);
    }
    CHECK(waitpid(child, &status, WUNTRACED) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3)
        return;
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    sleep_for(300 * MILLISECOND);
    long before = *steps;
    sleep_for(200 * MILLISECOND);
    CHECK(*steps == before && kill(child, SIGCONT) == 0);
    long end = now() + 10 * SECOND;
    while (*steps == before && now() < end)
        sleep_for(10 * MILLISECOND);
    CHECK(*steps != before && kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
}

/* A signal that is ignored from now on does not wait any more. */
static void discarded(void)
{
    static const int signals[] = { SIGUSR1, SIGCHLD, SIGCONT };
    sigset_t pending;
    for (int i = 0; i < 3; i++) {
        sigset_t set = blocked(signals[i]);
        handle(signals[i], 0);
        CHECK(raise(signals[i]) == 0 && kill(getpid(), signals[i]) == 0);
        CHECK(sigpending(&pending) == 0 && sigismember(&pending, signals[i]));
        /* What others do by default, these two ignore. */
        CHECK(signal(signals[i], i == 0 ? SIG_IGN : SIG_DFL) != SIG_ERR);
        CHECK(sigpending(&pending) == 0 && !sigismember(&pending, signals[i]));
        handle(signals[i], 0);
        CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0 && taken == 0);
    }
}

/* A signal that cannot be queued is refused, and none that was accepted is lost. */
static void queued(void)
{
    struct timespec zero = { 0, 0 };
    struct rlimit limit = { QUEUED, QUEUED };
    sigset_t set = blocked(SIGRTMIN);
    siginfo_t info;
    int sent = 0, arrived = 0;
    CHECK(setrlimit(RLIMIT_SIGPENDING, &limit) == 0);
    while (sent <= QUEUED && sigqueue(getpid(), SIGRTMIN, (union sigval){ .sival_int = sent }) == 0)
        sent++;
    CHECK(sent > 0 && sent <= QUEUED && errno == EAGAIN);
    while (sigtimedwait(&set, &info, &zero) == SIGRTMIN)
        CHECK(info.si_value.sival_int == arrived++);
    CHECK(arrived == sent && errno == EAGAIN);
    /* Signal 0 asks whether there is such a process. */
    CHECK(sigqueue(getpid(), 0, (union sigval){ 0 }) == 0);
    CHECK(pthread_sigqueue(pthread_self(), SIGRTMIN, (union sigval){ .sival_int = 4 }) == 0);
    CHECK(sigtimedwait(&set, &info, &zero) == SIGRTMIN && info.si_value.sival_int == 4 && info.si_pid == getpid());
}

/* The sender of a signal has a number and a user, and cannot be another one or the kernel. */
static void senders(void)
{
    sigset_t set = blocked(SIGUSR1);
    struct timespec zero = { 0, 0 };
    siginfo_t info, chosen = { .si_code = SI_KERNEL, .si_signo = SIGUSR1 };
    pid_t parent = getpid();
    CHECK(syscall(SYS_rt_sigqueueinfo, parent, SIGUSR1, &chosen) == 0);
    CHECK(sigtimedwait(&set, &info, &zero) == SIGUSR1 && info.si_code == SI_KERNEL);
    pid_t child = forked();
    if (child == 0) {
        set = blocked(SIGUSR1);
        CHECK(syscall(SYS_rt_sigqueueinfo, parent, SIGUSR1, &chosen) == -1 && errno == EPERM);
        chosen.si_code = SI_TKILL;
        CHECK(syscall(SYS_rt_sigqueueinfo, parent, SIGUSR1, &chosen) == -1 && errno == EPERM);
        CHECK(syscall(SYS_rt_tgsigqueueinfo, parent, parent, SIGUSR1, &chosen) == -1 && errno == EPERM);
        if (getuid() == 0)
            CHECK(setuid(1000) == 0);
        CHECK(kill(getpid(), SIGUSR1) == 0 && sigtimedwait(&set, &info, &zero) == SIGUSR1);
        CHECK(info.si_uid == getuid() && info.si_pid == getpid() && info.si_code == SI_USER);
        CHECK(raise(SIGUSR1) == 0 && sigtimedwait(&set, &info, &zero) == SIGUSR1);
        CHECK(info.si_uid == getuid() && info.si_pid == getpid());
        _exit(5);
    }
    CHECK(waitid(P_PID, child, &info, WEXITED) == 0 && info.si_pid == child && info.si_status == 5);
    CHECK(info.si_uid == (getuid() ? getuid() : 1000));
}

/* The only parent outside of a stopped group ends, and its members get SIGHUP and SIGCONT. */
static volatile sig_atomic_t hung_up;

static void hang_up(int signal)
{
    (void)signal;
    hung_up = 1;
}

/* In a session of its own: leads it, and makes a parent, which makes a job in a group of its own. One of them ends. The
   job says by its status whether it was hung up; `stops` says whether it was stopped, `leader_ends` which one ends. */
static int job_after_end(int stops, int leader_ends)
{
    int ends[2], joined[2], over[2], status;
    char answer = 0;
    CHECK(pipe(ends) == 0 && pipe(joined) == 0 && pipe(over) == 0);
    pid_t leader = forked();
    if (leader == 0) {
        CHECK(setsid() > 0);
        pid_t parent = leader_ends ? getpid() : forked();
        if (parent == 0 || leader_ends) {
            pid_t job = forked();
            if (job == 0) {
                struct sigaction action = { .sa_handler = hang_up };
                CHECK(sigaction(SIGHUP, &action, NULL) == 0 && setpgid(0, 0) == 0);
                if (stops)
                    raise(SIGSTOP);
                else
                    CHECK(write(joined[1], "j", 1) == 1);
                /* The parent is waited for by then, so that a signal because of its end was sent before. */
                while (read(over[0], &answer, 1) != 1)
                    ;
                answer = hung_up ? 'h' : 'n';
                CHECK(write(ends[1], &answer, 1) == 1);
                _exit(0);
            }
            /* Its own end, or its parent's, comes when the job has stopped, or has a group of its own. */
            if (stops)
                CHECK(waitpid(job, &status, WUNTRACED) == job && WIFSTOPPED(status));
            else
                CHECK(read(joined[0], &answer, 1) == 1);
            _exit(0);
        }
        CHECK(exits_with(parent, 0));
        _exit(0);
    }
    close(ends[1]);
    CHECK(exits_with(leader, 0) && write(over[1], "e", 1) == 1 && read(ends[0], &answer, 1) == 1);
    CHECK(close(ends[0]) == 0 && close(joined[0]) == 0 && close(joined[1]) == 0);
    CHECK(close(over[0]) == 0 && close(over[1]) == 0);
    return answer;
}

static void hung_up_groups(void)
{
    CHECK(job_after_end(1, 1) == 'h');
    CHECK(job_after_end(1, 0) == 'h');
    /* Nothing happens to a group that has no stopped member. */
    CHECK(job_after_end(0, 1) == 'n');
    /* A member of the group that ends is no parent to the others, but may have been the link to theirs. */
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    pid_t leader = forked();
    if (leader == 0) {
        CHECK(setsid() > 0);
        pid_t first = forked();
        if (first == 0) {
            CHECK(setpgid(0, 0) == 0);
            pid_t second = forked();
            if (second == 0) {
                struct sigaction action = { .sa_handler = hang_up };
                CHECK(sigaction(SIGHUP, &action, NULL) == 0);
                raise(SIGSTOP);
                CHECK(write(ends[1], hung_up ? "h" : "n", 1) == 1);
                _exit(0);
            }
            CHECK(waitpid(second, &status, WUNTRACED) == second && WIFSTOPPED(status));
            _exit(4);
        }
        CHECK(exits_with(first, 4));
        char answer = 0;
        close(ends[1]);
        CHECK(read(ends[0], &answer, 1) == 1);
        _exit(answer);
    }
    CHECK(exits_with(leader, 'h'));
}

/* Seconds of processor time (RLIMIT_CPU): SIGXCPU at the soft limit and at each second after it, SIGKILL at the other. */
static void *compute_with_pauses(void *unused)
{
    for (;;) {
        for (long end = now() + MILLISECOND; now() < end;)
            ;
        usleep(1);
    }
    return unused;
}

static void processor_limit(void)
{
    volatile long *count = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(count != MAP_FAILED);
    pid_t child = forked();
    if (child == 0) {
        struct rlimit limit = { 1, 3 };
        handle(SIGXCPU, 0);
        CHECK(setrlimit(RLIMIT_CPU, &limit) == 0);
        for (;;) {
            *count = taken;
            CHECK(getrlimit(RLIMIT_CPU, &limit) == 0 && limit.rlim_max == 3);
            count[1] = limit.rlim_cur;
        }
    }
    CHECK(is_killed_by(child, SIGKILL) && *count == 2 && count[1] == 3);
    /* A program that is not prepared ends. Its parent sets the limit while its threads compute. */
    child = forked();
    if (child == 0) {
        pthread_t thread;
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&thread, NULL, spin, NULL) == 0);
        pause();
    }
    sleep_for(20 * MILLISECOND);
    struct rlimit one = { 1, RLIM_INFINITY }, none = { RLIM_INFINITY, RLIM_INFINITY };
    CHECK(prlimit(child, RLIMIT_CPU, &one, NULL) == 0 && is_killed_by(child, SIGXCPU));
    /* So does one that never computes for a whole time slice, and a child of one with a limit. On a busy machine each pause
     * lasts until the other programs have had their turns: the second of computing may take longer than the usual alarm. */
    alarm(120);
    child = forked();
    if (child == 0) {
        alarm(120);
        CHECK(setrlimit(RLIMIT_CPU, &one) == 0);
        pid_t own = forked();
        if (own == 0) {
            alarm(120);
            compute_with_pauses(NULL);
        }
        CHECK(is_killed_by(own, SIGXCPU));
        CHECK(setrlimit(RLIMIT_CPU, &none) == 0);
        long end = now() + SECOND;
        while (now() < end)
            ;
        _exit(5);
    }
    CHECK(exits_with(child, 5));
}

static const struct test_case CASES[] = {
    { "computing", computing }, { "fast_timers", fast_timers }, { "overruns", overruns },
    { "ignored", ignored },
    { "processor_time", processor_time }, { "orphans", orphans }, { "background", background }, { "stops", stops },
    { "continued", continued }, { "interrupted", interrupted }, { "handed_over", handed_over },
    { "killed_group", killed_group }, { "forks", forks }, { "stopped_group", stopped_group },
    { "discarded", discarded }, { "queued", queued }, { "senders", senders },
    { "hung_up_groups", hung_up_groups }, { "processor_limit", processor_limit },
};

/* Each case in a process of its own. */
int main(int count, char **arguments)
{
    return run_cases(CASES, sizeof CASES / sizeof *CASES, count > 1 ? arguments[1] : "", 60);
}
