/* Calls at their edges: where two callers meet, where a buffer ends, where a file changes under a call. kernel/test runs
 * each case on Linux too.
 *
 * The first argument chooses the case, or all of them. Each one has a process of its own, which is killed when it hangs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"

/* The call fails with this error. */
#define FAILS(call, error) CHECK((errno = 0, (long)(call) == -1 && errno == (error)))
#define PAGE 4096L
#define PIPE_BYTES (64 << 10)
#define MANY 1024
#define ROUNDS 500
/* After so many seconds a case hangs. */
#define PATIENCE 40

static volatile sig_atomic_t signals;

static void count_signal(int signal)
{
    (void)signal;
    signals++;
}

static void count_signals(int signal)
{
    struct sigaction action = { .sa_handler = count_signal };
    signals = 0;
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static int fresh(const char *path)
{
    unlink(path);
    int file = open(path, O_CREAT | O_EXCL | O_RDWR, 0644);
    CHECK(file >= 0);
    return file;
}

static int links_of(const char *path)
{
    struct stat stat;
    CHECK(lstat(path, &stat) == 0);
    return stat.st_nlink;
}

/* To open a pipe without a name once more waits for no other end. */
static void reopened(void)
{
    int ends[2];
    char path[40], byte;
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1 && close(ends[1]) == 0);
    sprintf(path, "/proc/self/fd/%d", ends[0]);
    int again = open(path, O_RDONLY);
    CHECK(again >= 0 && read(again, &byte, 1) == 1 && byte == 'x' && read(again, &byte, 1) == 0);
    if (geteuid() != 0)
        return;
    /* It is the file of the user that made it. */
    struct stat stat;
    CHECK(setresgid(-1, 100, -1) == 0 && setresuid(-1, 1000, -1) == 0 && pipe(ends) == 0);
    CHECK(fstat(ends[0], &stat) == 0 && stat.st_uid == 1000 && stat.st_gid == 100);
    sprintf(path, "/proc/self/fd/%d", ends[1]);
    CHECK(open(path, O_WRONLY) >= 0);
}

/* A directory keeps its links wherever it goes. */
static void moved(void)
{
    CHECK(mkdir("moved", 0755) == 0 && chdir("moved") == 0);
    CHECK(mkdir("d", 0755) == 0 && mkdir("d/a", 0755) == 0 && mkdir("d/b", 0755) == 0 && mkdir("other", 0755) == 0);
    CHECK(links_of(".") == 4 && rename("d", "e") == 0 && links_of("e") == 4 && links_of(".") == 4);
    CHECK(renameat2(AT_FDCWD, "e", AT_FDCWD, "e", RENAME_EXCHANGE) == 0 && links_of("e") == 4 && links_of(".") == 4);
    CHECK(rename("e", "other/e") == 0 && links_of("other/e") == 4 && links_of("other") == 3 && links_of(".") == 3);
    CHECK(renameat2(AT_FDCWD, "other/e/a", AT_FDCWD, "other", RENAME_EXCHANGE) == -1);
    /* A directory and a file change places, then two directories. */
    CHECK(close(fresh("f")) == 0 && renameat2(AT_FDCWD, "f", AT_FDCWD, "other/e", RENAME_EXCHANGE) == 0);
    CHECK(links_of(".") == 4 && links_of("other") == 2 && links_of("f") == 4 && links_of("other/e") == 1);
    CHECK(mkdir("other/g", 0755) == 0 && renameat2(AT_FDCWD, "f", AT_FDCWD, "other/g", RENAME_EXCHANGE) == 0);
    CHECK(links_of(".") == 4 && links_of("other") == 3 && links_of("other/g") == 4 && links_of("f") == 2);
    /* One that is replaced is gone. */
    CHECK(rmdir("other/g/a") == 0 && rename("other/g/b", "f") == 0 && links_of("f") == 2 && links_of("other/g") == 2);
    CHECK(close(fresh("other/g/x")) == 0 && unlink("other/g/x") == 0);
    CHECK(rmdir("other/g") == 0 && unlink("other/e") == 0 && rmdir("other") == 0 && rmdir("f") == 0);
    CHECK(chdir("..") == 0 && rmdir("moved") == 0);
}

static int full_pipe[2], sent_file;

static void fill(int end, long bytes)
{
    static char block[PIPE_BYTES];
    CHECK(write(end, block, bytes) == bytes);
}

static void *send_file(void *unused)
{
    FAILS(sendfile(full_pipe[1], sent_file, NULL, 16384), EPIPE);
    return unused;
}

/* The position of a file moves while its bytes wait for room. */
static void positions(void)
{
    pthread_t sender;
    signal(SIGPIPE, SIG_IGN);
    sent_file = fresh("sent");
    CHECK(ftruncate(sent_file, 100000) == 0 && lseek(sent_file, 50000, SEEK_SET) == 50000);
    CHECK(pipe(full_pipe) == 0);
    fill(full_pipe[1], PIPE_BYTES);
    CHECK(pthread_create(&sender, NULL, send_file, NULL) == 0);
    usleep(300000);
    CHECK(lseek(sent_file, 0, SEEK_SET) == 0 && close(full_pipe[0]) == 0);
    CHECK(pthread_join(sender, NULL) == 0 && lseek(sent_file, 0, SEEK_CUR) == 0 && unlink("sent") == 0);
}

static int locked_file;

static void *wait_for_lock(void *unused)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    FAILS(fcntl(locked_file, F_SETLKW, &lock), EBADF);
    return unused;
}

/* The descriptor is closed while a thread waits for a lock of its file: the lock is not left behind. */
static void closed(void)
{
    int ready[2], leave[2];
    char byte;
    pthread_t waiter;
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    locked_file = fresh("locked");
    CHECK(pipe(ready) == 0 && pipe(leave) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(fcntl(locked_file, F_SETLK, &lock) == 0 && write(ready[1], "x", 1) == 1);
        CHECK(read(leave[0], &byte, 1) == 1);
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1 && pthread_create(&waiter, NULL, wait_for_lock, NULL) == 0);
    usleep(300000);
    CHECK(close(locked_file) == 0 && write(leave[1], "x", 1) == 1 && exits_with(child, 0));
    CHECK(pthread_join(waiter, NULL) == 0);
    child = fork();
    if (child == 0) {
        int again = open("locked", O_RDWR);
        CHECK(fcntl(again, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
        _exit(0);
    }
    CHECK(exits_with(child, 0) && unlink("locked") == 0);
}

static void send_descriptor(int socket, int descriptor)
{
    char control[CMSG_SPACE(sizeof descriptor)] = "", byte = 'x';
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    CHECK(sendmsg(socket, &message, 0) == 1);
}

/* Files that a socket carries are closed with its receiver. */
static void carried(void)
{
    int sockets[2], ends[2];
    char byte;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0 && pipe(ends) == 0);
    send_descriptor(sockets[0], ends[1]);
    CHECK(close(ends[1]) == 0 && close(sockets[1]) == 0 && read(ends[0], &byte, 1) == 0);
    FAILS(read(sockets[0], &byte, 1), ECONNRESET);
}

static void breakpoint(void)
{
    count_signals(SIGTRAP);
    __asm__ volatile("int3");
    CHECK(signals == 1);
}

/* Flags count also where a call uses the file's position. */
static void flags(void)
{
    int file = fresh("flags"), ends[2];
    char got[8];
    struct iovec out = { "abc", 3 }, in = { got, sizeof got };
    CHECK(write(file, "0123456789", 10) == 10 && lseek(file, 2, SEEK_SET) == 2);
    CHECK(pwritev2(file, &out, 1, -1, RWF_APPEND) == 3 && lseek(file, 0, SEEK_CUR) == 13);
    CHECK(pread(file, got, 8, 8) == 5 && !memcmp(got, "89abc", 5));
    CHECK(lseek(file, 2, SEEK_SET) == 2 && preadv2(file, &in, 1, -1, 0) == 8 && !memcmp(got, "23456789", 8));
    CHECK(pipe(ends) == 0);
    FAILS(preadv2(ends[0], &in, 1, -1, RWF_NOWAIT), EAGAIN);
    CHECK(close(file) == 0 && unlink("flags") == 0);
}

static volatile int made[2], arrived[2];

/* Both threads, or processes that share the words, go on at the same time. On one CPU each would wait for the other's whole
   turn. */
static void meet(volatile int *arrived, int own, int round)
{
    arrived[own] = round;
    for (int looks = 1; arrived[!own] < round; looks++)
        if (looks % 1000 == 0)
            sched_yield();
}

static void *make_segment(void *at)
{
    int own = (volatile int *)at - made;
    for (int round = 0; round < ROUNDS; round++) {
        meet(arrived, own, 2 * round + 1);
        made[own] = shmget(0x51000000 + getpid(), PAGE, IPC_CREAT | IPC_EXCL | 0600);
        meet(arrived, own, 2 * round + 2);
        if (own == 0) {
            CHECK((made[0] == -1) != (made[1] == -1));
            CHECK(shmctl(made[0] == -1 ? made[1] : made[0], IPC_RMID, NULL) == 0);
        }
    }
    return NULL;
}

/* One of two callers makes the segment, and the other one learns that it exists. */
static void segments(void)
{
    pthread_t other;
    CHECK(pthread_create(&other, NULL, make_segment, (void *)(made + 1)) == 0);
    make_segment((void *)made);
    CHECK(pthread_join(other, NULL) == 0);
}

/* What lies behind the end of a file cannot overlap. */
static void copies(void)
{
    int file = fresh("copied");
    char got[8];
    off_t from = 0, to = 10;
    CHECK(write(file, "0123456789", 10) == 10);
    CHECK(copy_file_range(file, &from, file, &to, 1 << 20, 0) == 10 && from == 10 && to == 20);
    CHECK(pread(file, got, 8, 12) == 8 && !memcmp(got, "23456789", 8));
    from = 0, to = 19;
    FAILS(copy_file_range(file, &from, file, &to, 1 << 20, 0), EINVAL);
    CHECK(close(file) == 0 && unlink("copied") == 0);
}

/* A copy between processes ends where the caller's own memory does. */
static void between(void)
{
    char *own = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), other[200];
    CHECK(own != MAP_FAILED && munmap(own + PAGE, PAGE) == 0);
    struct iovec here = { own + PAGE - 100, 200 }, there = { other, 200 };
    memset(other, 'o', sizeof other);
    CHECK(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 100 && own[PAGE - 1] == 'o' && own[PAGE - 101] == 0);
    own[PAGE - 1] = 'h';
    CHECK(process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 100 && other[99] == 'h' && other[100] == 'o');
}

static volatile int removed_id;

static void *remove_segments(void *unused)
{
    for (int round = 0; round < ROUNDS; round++) {
        meet(arrived, 1, 2 * round + 1);
        CHECK(shmctl(removed_id, IPC_RMID, NULL) == 0);
        meet(arrived, 1, 2 * round + 2);
    }
    return unused;
}

/* A segment that is attached while it is removed goes with that attachment. */
static void removed(void)
{
    pthread_t other;
    CHECK(pthread_create(&other, NULL, remove_segments, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK((removed_id = shmget(IPC_PRIVATE, PAGE, 0600)) >= 0);
        meet(arrived, 0, 2 * round + 1);
        void *at = shmat(removed_id, NULL, 0);
        meet(arrived, 0, 2 * round + 2);
        CHECK(at == (void *)-1 ? errno == EINVAL || errno == EIDRM : shmdt(at) == 0);
    }
    CHECK(pthread_join(other, NULL) == 0);
}

/* A caller that finds another user's new segment may not have it, nor a smaller one than it asked for. */
static void keys(void)
{
    if (geteuid() != 0)
        return;
    int key = 0x52000000 + getpid();
    volatile int *arrived = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arrived != MAP_FAILED);
    pid_t child = fork();
    int own = child == 0;
    if (own)
        CHECK(setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
    long bytes = own ? PAGE : 4 * PAGE;
    for (int round = 0; round < ROUNDS; round++) {
        meet(arrived, own, 3 * round + 1);
        int id = shmget(key, bytes, IPC_CREAT | 0600);
        struct shmid_ds stat;
        if (id >= 0)
            CHECK(shmctl(id, IPC_STAT, &stat) == 0 && (long)stat.shm_segsz >= bytes);
        else
            CHECK(errno == (own ? EACCES : EINVAL));
        meet(arrived, own, 3 * round + 2);
        if (!own)
            CHECK((id = shmget(key, 0, 0)) >= 0 && shmctl(id, IPC_RMID, NULL) == 0);
        meet(arrived, own, 3 * round + 3);
    }
    if (own)
        _exit(0);
    CHECK(exits_with(child, 0));
}

/* A call without a free descriptor takes no connection. */
static void accepted(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "accepted" };
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink("accepted");
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 5) == 0);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    struct rlimit limit, low;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit;
    low.rlim_cur = client + 1;
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    FAILS(accept(listener, NULL, NULL), EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int server = accept(listener, NULL, NULL);
    char byte;
    CHECK(server >= 0 && write(client, "x", 1) == 1 && read(server, &byte, 1) == 1 && unlink("accepted") == 0);
}

/* A write that is not torn apart ends where its buffer does. */
static void faulted(void)
{
    char *buffer = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int ends[2];
    CHECK(buffer != MAP_FAILED && munmap(buffer + PAGE, PAGE) == 0 && pipe(ends) == 0);
    fill(ends[1], PIPE_BYTES - PAGE);
    /* Linux takes nothing here. */
    long written = write(ends[1], buffer + PAGE / 2, PAGE);
    CHECK(written == PAGE / 2 || (written == -1 && errno == EFAULT));
}

/* A writer learns by a signal that its reader has gone, also behind a part. */
static void broken(void)
{
    static char block[1 << 20];
    int ends[2];
    count_signals(SIGPIPE);
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(close(ends[1]) == 0 && read(ends[0], block, 5000) == 5000);
        usleep(300000);
        _exit(0);
    }
    CHECK(close(ends[0]) == 0);
    long written = write(ends[1], block, sizeof block);
    CHECK(written >= PIPE_BYTES && written < (long)sizeof block && signals == 1 && exits_with(child, 0));
}

/* A file grows to the limit, and a signal says so. */
static void limited(void)
{
    static char block[2000];
    struct rlimit limit = { 1500, 1500 };
    int file = fresh("limited");
    count_signals(SIGXFSZ);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(write(file, block, 2000) == 1500 && signals == 0);
    FAILS(write(file, block, 1), EFBIG);
    CHECK(signals == 1);
    FAILS(pwrite(file, block, 1, 3000), EFBIG);
    CHECK(signals == 2);
    FAILS(ftruncate(file, 2000), EFBIG);
    CHECK(signals == 3);
    FAILS(truncate("limited", 2000), EFBIG);
    CHECK(signals == 4);
    FAILS(fallocate(file, 0, 0, 2000), EFBIG);
    CHECK(signals == 5);
    CHECK(ftruncate(file, 1500) == 0 && ftruncate(file, 10) == 0);
    /* It is about files, not about pipes. */
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], block, 2000) == 2000 && unlink("limited") == 0);
}

/* A signal ends a read that would take seconds. */
static void endless(void)
{
    static const char *const names[] = { "/dev/zero", "/dev/urandom" };
    static char block[1 << 20];
    struct iovec parts[MANY];
    for (int i = 0; i < MANY; i++)
        parts[i] = (struct iovec){ block, sizeof block };
    for (int i = 0; i < 2; i++) {
        int device = open(names[i], O_RDONLY);
        struct itimerval often = { { .tv_usec = 5000 }, { .tv_usec = 5000 } }, never = { 0 };
        count_signals(SIGALRM);
        CHECK(device >= 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
        long got = readv(device, parts, MANY);
        CHECK(signals > 0 && got < (long)sizeof block * MANY && (got > 0 || errno == EINTR));
        CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && close(device) == 0);
    }
}

static const struct test_case CASES[] = {
    {"reopened", reopened}, {"moved", moved},       {"positions", positions}, {"closed", closed},     {"carried", carried},
    {"flags", flags},       {"segments", segments}, {"copies", copies},       {"accepted", accepted}, {"faulted", faulted},
    {"between", between},   {"removed", removed},   {"keys", keys},
    {"broken", broken},     {"limited", limited},   {"endless", endless},     {"breakpoint", breakpoint},
};

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    char folder[] = "/tmp/edges-XXXXXX";
    if (!mkdtemp(folder) || chdir(folder))
        return 1;
    int code = run_cases(CASES, sizeof CASES / sizeof *CASES, name, PATIENCE);
    return rmdir(folder) ? 1 : code;
}
