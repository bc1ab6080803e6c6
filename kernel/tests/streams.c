/* Pipes, connections, sets of files and the terminal, where something happens in the middle of a call. kernel/test runs
 * each case on Linux too.
 *
 *   streams all        every case
 *   streams CASE       one of them
 *   streams typed      a byte of input waits in the terminal
 *   streams partial    allocations of more than 20000 bytes fail
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "child.h"

/* The call fails with this error. */
#define FAILS(call, error) CHECK((errno = 0, (long)(call) == -1 && errno == (error)))
#define PART 16384L
#define LONG (1L << 31)
#define HOLES (4L << 20)
#define SETS 900
#define ROUNDS 500
/* After so many seconds a case hangs. */
#define PATIENCE 40

static int pipe_ends[2], handler;
static char *halves;

static void *close_reader(void *unused)
{
    CHECK(close(pipe_ends[0]) == 0);
    return unused;
}

/* The second half of what is written is brought in when the reader has gone. Linux lets it go after the write. */
static void *answer(void *unused)
{
    struct uffd_msg message;
    pthread_t closing;
    CHECK(read(handler, &message, sizeof message) == sizeof message && message.event == UFFD_EVENT_PAGEFAULT);
    CHECK(pthread_create(&closing, NULL, close_reader, NULL) == 0);
    usleep(100000);
    struct uffdio_zeropage zeroes = { { (uintptr_t)halves + PART, PART }, 0, 0 };
    CHECK(ioctl(handler, UFFDIO_ZEROPAGE, &zeroes) == 0 && pthread_join(closing, NULL) == 0);
    return unused;
}

/* The last reader goes while a write is in its second half. */
static void half_read(void)
{
    struct uffdio_api api = { UFFD_API, 0, 0 };
    pthread_t answering;
    if ((handler = syscall(SYS_userfaultfd, 0)) < 0)
        return;
    signal(SIGPIPE, SIG_IGN);
    halves = mmap(NULL, 2 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(halves != MAP_FAILED && memset(halves, 'h', PART) && ioctl(handler, UFFDIO_API, &api) == 0);
    struct uffdio_register add = { { (uintptr_t)halves + PART, PART }, UFFDIO_REGISTER_MODE_MISSING, 0 };
    CHECK(ioctl(handler, UFFDIO_REGISTER, &add) == 0 && pipe(pipe_ends) == 0);
    CHECK(pthread_create(&answering, NULL, answer, NULL) == 0);
    long written = write(pipe_ends[1], halves, 2 * PART);
    CHECK(written == PART || written == 2 * PART);
    CHECK(pthread_join(answering, NULL) == 0);
    FAILS(write(pipe_ends[1], halves, 1), EPIPE);
}

static void add(int set, int file)
{
    struct epoll_event event = { EPOLLIN, { .fd = file } };
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, file, &event) == 0);
}

static int try_add(int set, int file)
{
    struct epoll_event event = { EPOLLIN, { .fd = file } };
    return epoll_ctl(set, EPOLL_CTL_ADD, file, &event) == 0 ? 0 : errno;
}

static int new_set(void)
{
    int set = epoll_create1(0);
    CHECK(set >= 0);
    return set;
}

/* Sets contain each other only so deep, whether a chain of them grows at its top or at its bottom. Linux may notice
   when a file is added that can be ready. */
static void deep(void)
{
    int upper = new_set(), lower, error = 0;
    for (int level = 0; level < SETS && !error; level++, upper = lower)
        error = try_add(upper, lower = new_set());
    if (!error)
        error = try_add(upper, eventfd(1, 0));
    CHECK(error == ELOOP || error == EINVAL);
    lower = new_set();
    add(lower, eventfd(1, 0));
    for (int level = 1; level < 5; level++, lower = upper)
        add(upper = new_set(), lower);
    struct epoll_event event;
    CHECK(epoll_wait(upper, &event, 1, 0) == 1);
    CHECK(try_add(new_set(), upper) == ELOOP);
}

/* An event goes up through only so many sets. */
static void wide(void)
{
    int lowest = new_set(), middle[30], error = 0;
    add(lowest, eventfd(1, 0));
    for (int i = 0; i < 30; i++)
        add(middle[i] = new_set(), lowest);
    for (int i = 0; i < 30 && !error; i++) {
        int top = new_set();
        for (int k = 0; k < 30 && !error; k++)
            error = try_add(top, middle[k]);
    }
    CHECK(error == EINVAL);
}

static volatile int met[2], sets[2], circle_errors[2];

static void meet(int own, int round)
{
    __atomic_store_n(&met[own], round, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&met[1 - own], __ATOMIC_SEQ_CST) < round)
        sched_yield();
}

static void *add_other(void *own)
{
    int at = own != NULL;
    for (int round = 1; round <= ROUNDS; round++) {
        meet(at, 3 * round);
        circle_errors[at] = try_add(sets[at], sets[1 - at]);
        meet(at, 3 * round + 1);
        if (!circle_errors[at])
            CHECK(epoll_ctl(sets[at], EPOLL_CTL_DEL, sets[1 - at], NULL) == 0);
        CHECK(circle_errors[0] == ELOOP || circle_errors[1] == ELOOP);
        meet(at, 3 * round + 2);
    }
    return NULL;
}

/* Two threads that add two sets to each other make no circle. */
static void circle(void)
{
    pthread_t other;
    static char second;
    sets[0] = new_set(), sets[1] = new_set();
    CHECK(pthread_create(&other, NULL, add_other, &second) == 0);
    add_other(NULL);
    CHECK(pthread_join(other, NULL) == 0);
}

static int revived_set, ready_file;

static void *change(void *unused)
{
    struct epoll_event event = { EPOLLIN, { .u32 = 7 } };
    for (int round = 1; round <= ROUNDS; round++) {
        meet(1, 2 * round);
        CHECK(epoll_ctl(revived_set, EPOLL_CTL_MOD, ready_file, &event) == 0 || errno == ENOENT);
        meet(1, 2 * round + 1);
    }
    return unused;
}

/* A file that was removed is not reported, although it was changed at the same time. */
static void revived(void)
{
    pthread_t changing;
    struct epoll_event event;
    revived_set = new_set(), ready_file = eventfd(1, 0);
    CHECK(pthread_create(&changing, NULL, change, NULL) == 0);
    for (int round = 1; round <= ROUNDS; round++) {
        add(revived_set, ready_file);
        meet(0, 2 * round);
        for (volatile int turn = 0; turn < round % 100 * 20; turn++)
            ;
        CHECK(epoll_ctl(revived_set, EPOLL_CTL_DEL, ready_file, NULL) == 0);
        meet(0, 2 * round + 1);
        CHECK(epoll_wait(revived_set, &event, 1, 0) == 0);
    }
    CHECK(pthread_join(changing, NULL) == 0);
}

/* A terminal whose other end is `controller`, or the one of the machine. */
static int terminal(int *controller)
{
    *controller = posix_openpt(O_RDWR | O_NOCTTY);
    if (*controller < 0)
        return open("/dev/console", O_RDWR | O_NOCTTY | O_NONBLOCK);
    CHECK(grantpt(*controller) == 0 && unlockpt(*controller) == 0);
    return open(ptsname(*controller), O_RDWR | O_NOCTTY | O_NONBLOCK);
}

static void ignore(int signal)
{
    (void)signal;
}

/* An alarm kills a child that writes a file of holes to the terminal, and has no handler. Returns how much of the file it has
   read: there are pages now. */
static long read_until_killed(int terminal, long microseconds)
{
    int file = memfd_create("holes", 0);
    struct stat after;
    CHECK(file >= 0 && ftruncate(file, HOLES) == 0);
    char *holes = mmap(NULL, HOLES, PROT_READ, MAP_SHARED, file, 0);
    CHECK(holes != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        struct itimerval once = { { 0, 0 }, { microseconds / 1000000, microseconds % 1000000 } };
        CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
        write(terminal, holes, HOLES);
        _exit(1);
    }
    CHECK(is_killed_by(child, SIGALRM) && fstat(file, &after) == 0);
    CHECK(munmap(holes, HOLES) == 0 && close(file) == 0);
    return after.st_blocks * 512;
}

/* A signal ends long output: behind a part where it has a handler, and with the process where it has none. kernel/test drops
   these bytes. */
static void output(void)
{
    static char block[64 << 20];
    int controller, file = terminal(&controller);
    CHECK(file >= 0 && fcntl(file, F_SETFL, 0) == 0);
    memset(block, '\r', sizeof block);
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = { .sa_handler = ignore };
        struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
        CHECK(write(file, block, 10) == 10 && sigaction(SIGALRM, &action, NULL) == 0);
        CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
        long done = write(file, block, sizeof block);
        CHECK(done == -1 ? errno == EINTR : done > 0 && done < (long)sizeof block / 2);
        _exit(0);
    }
    CHECK(exits_with(child, 0));
    /* The alarm may come before the write. */
    long done = 0;
    for (long microseconds = 50000; done == 0; microseconds *= 2)
        done = read_until_killed(file, microseconds);
    CHECK(done <= HOLES / 2);
}

/* A signal ends a long copy. */
static void copied(void)
{
    struct sigaction action = { .sa_handler = ignore };
    struct itimerval often = { { 0, 5000 }, { 0, 5000 } };
    int file = memfd_create("copied", 0), null = open("/dev/null", O_WRONLY);
    CHECK(file >= 0 && null >= 0 && ftruncate(file, LONG) == 0);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    long done = sendfile(null, file, &(off_t){ 0 }, LONG);
    CHECK((done > 0 && done < LONG - (1 << 20)) || errno == EINTR);
}

/* A read that need not wait takes what has come, also if more would be waited for; `poll` waits for the rest. */
static void typed(void)
{
    int controller, file = terminal(&controller), count = 0;
    struct termios settings;
    char got[10];
    CHECK(file >= 0 && tcgetattr(file, &settings) == 0);
    cfmakeraw(&settings);
    settings.c_cc[VMIN] = 5;
    settings.c_cc[VTIME] = 0;
    CHECK(tcsetattr(file, TCSANOW, &settings) == 0);
    if (controller >= 0)
        CHECK(write(controller, "x", 1) == 1);
    while (count == 0)
        CHECK(usleep(1000) == 0 && ioctl(file, FIONREAD, &count) == 0);
    struct pollfd polled = { file, POLLIN, 0 };
    CHECK(poll(&polled, 1, 0) == 0);
    settings.c_cc[VTIME] = 1;
    CHECK(tcsetattr(file, TCSANOW, &settings) == 0 && poll(&polled, 1, 0) == 1);
    settings.c_cc[VTIME] = 0;
    CHECK(tcsetattr(file, TCSANOW, &settings) == 0);
    CHECK(read(file, got, sizeof got) == 1 && got[0] == 'x');
    FAILS(read(file, got, sizeof got), EAGAIN);
}

static int stream_ends[2];
static volatile long sent;

static char pattern(long at)
{
    return at * 2654435761u >> 13;
}

/* Sends many bytes, and goes on behind what each call has sent. */
static void *send_pattern(void *unused)
{
    static char block[1 << 18];
    for (long at = 0; at < (long)sizeof block; at++)
        block[at] = pattern(at);
    for (sent = 0; sent < (long)sizeof block;) {
        long done = write(stream_ends[1], block + sent, sizeof block - sent);
        CHECK(done > 0 || (errno == ENOMEM && usleep(100) == 0));
        sent += done > 0 ? done : 0;
    }
    CHECK(close(stream_ends[1]) == 0);
    return unused;
}

/* What is short of memory in the middle of a call is not left out of the stream. */
static void partial(void)
{
    static char got[3000];
    for (int round = 0; round < 12; round++) {
        pthread_t sending;
        CHECK((round % 2 ? pipe(stream_ends) : socketpair(AF_UNIX, SOCK_STREAM, 0, stream_ends)) == 0);
        CHECK(pthread_create(&sending, NULL, send_pattern, NULL) == 0);
        long at = 0, count;
        while ((count = read(stream_ends[0], got, sizeof got)) > 0)
            for (long i = 0; i < count; i++, at++)
                CHECK(got[i] == pattern(at));
        CHECK(pthread_join(sending, NULL) == 0 && at == sent && close(stream_ends[0]) == 0);
    }
}

static const struct test_case CASES[] = {
    { "half_read", half_read }, { "deep", deep },     { "wide", wide },     { "circle", circle },
    { "revived", revived },     { "output", output }, { "copied", copied },
};

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    struct rlimit many = { 2000, 2000 };
    CHECK(setrlimit(RLIMIT_NOFILE, &many) == 0);
    if (!strcmp(name, "typed") || !strcmp(name, "partial"))
        return (alarm(PATIENCE), strcmp(name, "typed") ? partial : typed)(), 0;
    return run_cases(CASES, sizeof CASES / sizeof *CASES, name, PATIENCE);
}
