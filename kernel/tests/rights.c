/* What users without rights may do, and whose their files are. kernel/test runs each case on Linux too, as root.
 *
 * The first argument chooses the case, or all of them. Each one has a process of its own, which may become another user.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"

/* The call fails with this error. */
#define FAILS(call, error) CHECK((errno = 0, (long)(call) == -1 && errno == (error)))
#define USER 1000
#define GROUP 100
#define OWNER 1234
#define OWNERS 55
#define UNNAMED (O_TMPFILE | O_RDWR)

static char program[4096];

static int fresh(const char *path, int mode)
{
    unlink(path);
    int file = open(path, O_CREAT | O_EXCL | O_RDWR, mode);
    CHECK(file >= 0 && fchmod(file, mode) == 0);
    return file;
}

static void become_user(void)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(GROUP, GROUP, GROUP) == 0 && setresuid(USER, USER, USER) == 0);
}

static struct stat stat_of(const char *path)
{
    struct stat stat;
    CHECK(lstat(path, &stat) == 0);
    return stat;
}

/* Devices are made by root alone. */
static void devices(void)
{
    become_user();
    FAILS(mknod("device", S_IFCHR | 0600, makedev(1, 3)), EPERM);
    FAILS(mknod("device", S_IFBLK | 0600, makedev(254, 0)), EPERM);
    CHECK(mknod("fifo", S_IFIFO | 0600, 0) == 0 && unlink("fifo") == 0);
    CHECK(mknod("socket", S_IFSOCK | 0600, 0) == 0 && unlink("socket") == 0);
    CHECK(mknod("file", S_IFREG | 0600, 0) == 0 && unlink("file") == 0);
}

/* A copy of this program, which every user can execute, with this owner and this mode. */
static void copy_program(const char *path, int user, int group, int mode)
{
    static char block[1 << 16];
    int from = open(program, O_RDONLY), to = fresh(path, 0755);
    long count;
    CHECK(from >= 0);
    while ((count = read(from, block, sizeof block)) > 0)
        CHECK(write(to, block, count) == count);
    CHECK(fchown(to, user, group) == 0 && fchmod(to, mode) == 0 && close(to) == 0 && close(from) == 0);
}

/* Runs a program that compares what it is with these numbers. */
static int runs_as(const char *path, int user, int group, int secure)
{
    char words[3][20];
    sprintf(words[0], "%d", user);
    sprintf(words[1], "%d", group);
    sprintf(words[2], "%d", secure);
    pid_t child = fork();
    if (child == 0) {
        execl(path, path, "who", words[0], words[1], words[2], NULL);
        _exit(1);
    }
    return exits_with(child, 0);
}

static int who(char **expected)
{
    CHECK(getuid() == USER && getgid() == GROUP);
    CHECK(geteuid() == (uid_t)atoi(expected[0]) && getegid() == (gid_t)atoi(expected[1]));
    CHECK(getauxval(AT_UID) == getuid() && getauxval(AT_GID) == getgid());
    CHECK(getauxval(AT_EUID) == geteuid() && getauxval(AT_EGID) == getegid());
    CHECK(getauxval(AT_SECURE) == (unsigned long)atoi(expected[2]));
    return 0;
}

/* A program learns as whom it runs, and whether its caller is another user. One that gets no new rights does not. */
static void programs(void)
{
    copy_program("plain", 0, 0, 0755);
    copy_program("owned", OWNER, OWNERS, 06755);
    become_user();
    CHECK(runs_as("plain", USER, GROUP, 0));
    CHECK(runs_as("owned", OWNER, OWNERS, 1));
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(runs_as("owned", USER, GROUP, 0));
}

/* What was opened of a process's memory stays the memory of the program that it ran then. */
static void memories(void)
{
    static const char *const names[] = { "mem", "environ", "pagemap" };
    int files[3], go[2];
    static char secret[4096] = "secret";
    char path[60], got[8];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(read(go[0], got, 1) == 1);
        execl(program, program, "wait", NULL);
        _exit(1);
    }
    for (int i = 0; i < 3; i++) {
        sprintf(path, "/proc/%d/%s", child, names[i]);
        CHECK((files[i] = open(path, O_RDONLY)) >= 0);
    }
    CHECK(pread(files[0], got, 6, (long)secret) == 6 && !memcmp(got, "secret", 6));
    CHECK(pread(files[1], got, 1, 0) == 1 && pread(files[2], got, 8, (unsigned long)secret / 4096 * 8) == 8);
    CHECK(write(go[1], "x", 1) == 1);
    sprintf(path, "/proc/%d/cmdline", child);
    char line[5000] = "";
    while (!memmem(line, sizeof line, "wait", 4)) {
        int file = open(path, O_RDONLY);
        CHECK(read(file, line, sizeof line) >= 0 && close(file) == 0);
        usleep(10000);
    }
    CHECK(pread(files[0], got, 6, (long)secret) == 0);
    CHECK(pread(files[1], got, 1, 0) == 0 && pread(files[2], got, 8, (unsigned long)secret / 4096 * 8) == 0);
    CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
}

/* Where the memory of another user's process is is shown to those that may trace it. */
static void layouts(void)
{
    static const char *const names[] = { "maps", "smaps", "smaps_rollup", "numa_maps" };
    char path[60];
    pid_t parent = getppid();
    become_user();
    for (int i = 0; i < 4; i++) {
        sprintf(path, "/proc/%d/%s", parent, names[i]);
        FAILS(open(path, O_RDONLY), EACCES);
        sprintf(path, "/proc/self/%s", names[i]);
        int file = open(path, O_RDONLY);
        CHECK(file >= 0 && read(file, path, 1) == 1 && close(file) == 0);
    }
}

/* A process that has another user for a while can take its rights back. Its memory is not for that user, nor are the
 * directories that it is in. */
static void guarded(void)
{
    static const char *const files[] = { "mem", "environ", "auxv", "pagemap", "maps" };
    static const char *const links[] = { "cwd", "root", "exe", "fd/0" };
    char path[80], got[80];
    int ready[2];
    CHECK(mkdir("hidden", 0700) == 0 && mkdir("hidden/open", 0755) == 0 && close(fresh("hidden/open/file", 0644)) == 0);
    CHECK(pipe(ready) == 0 && chmod("hidden/open", 0755) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(chdir("hidden/open") == 0 && setresuid(0, USER, 0) == 0 && write(ready[1], "r", 1) == 1);
        for (;;)
            pause();
    }
    CHECK(read(ready[0], got, 1) == 1);
    pid_t user = fork();
    if (user == 0) {
        become_user();
        for (int i = 0; i < 5; i++) {
            sprintf(path, "/proc/%d/%s", child, files[i]);
            FAILS(open(path, O_RDONLY), EACCES);
        }
        for (int i = 0; i < 4; i++) {
            sprintf(path, "/proc/%d/%s", child, links[i]);
            FAILS(readlink(path, got, sizeof got), EACCES);
            sprintf(path, "/proc/self/%s", links[i]);
            CHECK(readlink(path, got, sizeof got) > 0);
        }
        sprintf(path, "/proc/%d/cwd/file", child);
        FAILS(open(path, O_RDONLY), EACCES);
        _exit(0);
    }
    CHECK(exits_with(user, 0));
    sprintf(path, "/proc/%d/cwd/file", child);
    CHECK(close(open(path, O_RDONLY)) == 0 && kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
    CHECK(unlink("hidden/open/file") == 0 && rmdir("hidden/open") == 0 && rmdir("hidden") == 0);
}

static uint64_t word_of_page(const void *at)
{
    uint64_t word;
    int file = open("/proc/self/pagemap", O_RDONLY);
    CHECK(file >= 0 && pread(file, &word, 8, (uintptr_t)at / 4096 * 8) == 8 && close(file) == 0);
    return word;
}

/* Users see that a page is in memory, and not where. */
static void frames(void)
{
    static volatile char page[4096];
    uint64_t frame = (1UL << 55) - 1, present = 1UL << 63;
    page[0] = 1;
    uint64_t word = word_of_page((char *)page);
    CHECK((word & present) && (word & frame));
    become_user();
    /* Linux gives root the files of a process that has changed its user. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    word = word_of_page((char *)page);
    CHECK((word & present) && !(word & frame));
}

/* The ports of services are root's. */
static void ports(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int allowed = 0, range = open("/proc/sys/net/ipv4/ip_unprivileged_port_start", O_RDONLY);
    if (range >= 0) {
        char text[10] = "";
        CHECK(read(range, text, sizeof text - 1) > 0 && close(range) == 0);
        allowed = atoi(text) < 1024;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    become_user();
    address.sin_port = htons(1023);
    if (!allowed)
        FAILS(bind(listener, (struct sockaddr *)&address, sizeof address), EACCES);
    address.sin_port = htons(1024);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
}

/* A process that makes a sibling gives it its own rights, not those of their parent. */
static void siblings(void)
{
    pid_t child = fork();
    if (child == 0) {
        become_user();
        if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) == 0)
            _exit(getuid() == USER && geteuid() == USER && getgid() == GROUP ? 0 : 1);
        _exit(0);
    }
    CHECK(exits_with(child, 0));
    int status;
    CHECK(waitpid(-1, &status, 0) > 0 && status == 0);
}

static struct ucred peer_of(int socket)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    CHECK(getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && bytes == sizeof peer);
    return peer;
}

/* Each side of a connection learns which user the other one is; a socket's file says who may connect. */
static void peers(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "peers" };
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0), sockets[2];
    unlink("peers");
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && chmod("peers", 0755) == 0);
    CHECK(listen(listener, 5) == 0 && setresgid(-1, GROUP, -1) == 0 && setresuid(-1, USER, -1) == 0);
    FAILS(connect(client, (struct sockaddr *)&address, sizeof address), EACCES);
    CHECK(setresuid(-1, 0, -1) == 0 && chmod("peers", 0777) == 0 && setresuid(-1, USER, -1) == 0);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(setresuid(-1, 0, -1) == 0 && setresgid(-1, 0, -1) == 0);
    int server = accept(listener, NULL, NULL);
    struct ucred peer = peer_of(server);
    CHECK(peer.pid == getpid() && peer.uid == USER && peer.gid == GROUP);
    peer = peer_of(client);
    CHECK(peer.pid == getpid() && peer.uid == 0 && peer.gid == 0);
    become_user();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    peer = peer_of(sockets[0]);
    CHECK(peer.uid == USER && peer.gid == GROUP);
}

/* To enter a directory needs the right to search it, and to change the root needs a right of root's. */
static void directories(void)
{
    CHECK(mkdir("closed", 0700) == 0 && chown("closed", USER, GROUP) == 0 && chmod("closed", 0600) == 0);
    pid_t child = fork();
    if (child == 0) {
        become_user();
        int closed = open("closed", O_RDONLY | O_DIRECTORY);
        CHECK(closed >= 0);
        FAILS(chdir("closed"), EACCES);
        FAILS(fchdir(closed), EACCES);
        FAILS(chroot("closed"), EACCES);
        FAILS(chroot("/"), EPERM);
        CHECK(chdir("/") == 0);
        _exit(0);
    }
    CHECK(exits_with(child, 0) && rmdir("closed") == 0);
}

/* A file without a name is made in a directory that can be written. */
static void unnamed(void)
{
    CHECK(mkdir("shut", 0755) == 0);
    pid_t child = fork();
    if (child == 0) {
        become_user();
        FAILS(open("shut", UNNAMED, 0600), EACCES);
        int file = open(".", UNNAMED, 0600);
        struct stat stat;
        CHECK(file >= 0 && fstat(file, &stat) == 0 && stat.st_uid == USER && stat.st_gid == GROUP);
        _exit(0);
    }
    CHECK(exits_with(child, 0) && rmdir("shut") == 0);
}

/* A process may let itself be killed sooner, but not later than root wants. */
static void scores(void)
{
    int file = open("/proc/self/oom_score_adj", O_WRONLY);
    CHECK(file >= 0);
    become_user();
    CHECK(write(file, "700", 3) == 3 && write(file, "900", 3) == 3 && write(file, "700", 3) == 3);
    FAILS(write(file, "-900", 4), EACCES);
}

/* What is made in a directory of a group belongs to that group. */
static void groups(void)
{
    CHECK(mkdir("shared", 0777) == 0 && chown("shared", 0, OWNERS) == 0 && chmod("shared", 02777) == 0);
    pid_t child = fork();
    if (child == 0) {
        become_user();
        umask(0);
        CHECK(close(fresh("shared/file", 0644)) == 0 && stat_of("shared/file").st_gid == OWNERS);
        CHECK(stat_of("shared/file").st_uid == USER && mkdir("shared/below", 0755) == 0);
        CHECK(stat_of("shared/below").st_gid == OWNERS && stat_of("shared/below").st_mode == (S_IFDIR | 02755));
        CHECK(symlink("x", "shared/link") == 0 && stat_of("shared/link").st_gid == OWNERS);
        int file = open("shared", UNNAMED, 0600);
        struct stat stat;
        CHECK(file >= 0 && fstat(file, &stat) == 0 && stat.st_gid == OWNERS);
        /* Only a member of the group lets a program run as the group. */
        CHECK(chmod("shared/file", 02755) == 0 && stat_of("shared/file").st_mode == (S_IFREG | 0755));
        CHECK(open("shared/new", O_CREAT | O_WRONLY, 02755) >= 0 && stat_of("shared/new").st_mode == (S_IFREG | 0755));
        CHECK(close(fresh("own", 0644)) == 0 && chmod("own", 02755) == 0 && stat_of("own").st_mode == (S_IFREG | 02755));
        CHECK(unlink("own") == 0);
        _exit(0);
    }
    CHECK(exits_with(child, 0) && chmod("shared/file", 02755) == 0 && stat_of("shared/file").st_mode == (S_IFREG | 02755));
    CHECK(unlink("shared/file") == 0 && unlink("shared/new") == 0 && unlink("shared/link") == 0);
    CHECK(rmdir("shared/below") == 0 && rmdir("shared") == 0);
}

/* A user that changes a program takes the bits with which it runs as its owner. */
static void rewritten(void)
{
    for (int way = 0; way < 3; way++) {
        CHECK(close(fresh("rewritten", way == 2 ? 06767 : 06777)) == 0);
        pid_t child = fork();
        if (child == 0) {
            become_user();
            if (way == 1) {
                CHECK(truncate("rewritten", 5) == 0);
                _exit(0);
            }
            int file = open("rewritten", O_WRONLY);
            CHECK(file >= 0 && write(file, "x", 1) == 1);
            _exit(0);
        }
        CHECK(exits_with(child, 0) && (stat_of("rewritten").st_mode & 07777) == (way == 2 ? 0767 : 0777));
    }
    /* Root keeps them; a new owner takes set-group-ID of programs alone. */
    int file = fresh("rewritten", 06705);
    CHECK(write(file, "x", 1) == 1 && (stat_of("rewritten").st_mode & 07777) == 06705);
    CHECK(fchown(file, 5, 5) == 0 && (stat_of("rewritten").st_mode & 07777) == 02705 && close(file) == 0);
    CHECK(unlink("rewritten") == 0);
}

/* A directory that its user may not write does not move to another one: its `..` would change. */
static void moves(void)
{
    CHECK(mkdir("from", 0777) == 0 && chmod("from", 0777) == 0 && mkdir("to", 0777) == 0 && chmod("to", 0777) == 0);
    CHECK(mkdir("from/moved", 0755) == 0);
    pid_t child = fork();
    if (child == 0) {
        become_user();
        FAILS(rename("from/moved", "to/moved"), EACCES);
        CHECK(mkdir("to/own", 0755) == 0);
        FAILS(syscall(SYS_renameat2, AT_FDCWD, "to/own", AT_FDCWD, "from/moved", 2), EACCES);
        CHECK(rename("from/moved", "from/here") == 0 && rename("to/own", "from/own") == 0 && rmdir("from/own") == 0);
        _exit(0);
    }
    CHECK(exits_with(child, 0) && rmdir("from/here") == 0 && rmdir("from") == 0 && rmdir("to") == 0);
}

static pid_t pausing(void)
{
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    return child;
}

static void *paused(void *unused)
{
    pause();
    return unused;
}

/* How many tasks a user may have (RLIMIT_NPROC): threads count, and children that were not waited for. */
static void processes_of_user(void)
{
    struct rlimit none, three;
    siginfo_t info;
    /* A user that no other run of this test has. */
    uid_t limited = 100000 + getpid();
    CHECK(getrlimit(RLIMIT_NPROC, &none) == 0);
    three = none;
    (none.rlim_cur = 0, three.rlim_cur = 3);
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    pid_t child = pausing();
    CHECK(child > 0 && kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
    CHECK(setrlimit(RLIMIT_NPROC, &three) == 0);
    child = fork();
    if (child == 0) {
        pthread_t thread;
        CHECK(setresuid(limited, limited, limited) == 0);
        pid_t first = pausing(), second = pausing();
        CHECK(first > 0 && second > 0);
        FAILS(fork(), EAGAIN);
        CHECK(kill(first, SIGKILL) == 0 && waitid(P_PID, first, &info, WEXITED | WNOWAIT) == 0);
        FAILS(fork(), EAGAIN);
        CHECK(is_killed_by(first, SIGKILL) && pthread_create(&thread, NULL, paused, NULL) == 0);
        FAILS(fork(), EAGAIN);
        CHECK(pthread_create(&thread, NULL, paused, NULL) == EAGAIN);
        CHECK(kill(second, SIGKILL) == 0 && is_killed_by(second, SIGKILL));
        second = pausing();
        CHECK(second > 0 && kill(second, SIGKILL) == 0 && is_killed_by(second, SIGKILL));
        _exit(6);
    }
    CHECK(exits_with(child, 6));
    /* A process that becomes a user with too many may execute no program, unless there are fewer by then. */
    for (int others = 1; others <= 2; others++) {
        int ends[2], became[2];
        CHECK(pipe(ends) == 0 && pipe(became) == 0);
        child = fork();
        if (child == 0) {
            CHECK(setresuid(limited, limited, limited) == 0);
            CHECK(write(became[1], "x", 1) == 1);
            for (;;)
                pause();
        }
        char byte;
        CHECK(read(became[0], &byte, 1) == 1);
        pid_t other = fork();
        if (other == 0) {
            struct rlimit zero = { 0, 0 };
            CHECK(setrlimit(RLIMIT_NPROC, &zero) == 0 && setresuid(limited, limited, limited) == 0);
            CHECK(write(became[1], "x", 1) == 1);
            if (others == 2) {
                FAILS(execl(program, program, "wait", NULL), EAGAIN);
                FAILS(execl(program, program, "wait", NULL), EAGAIN);
                _exit(7);
            }
            CHECK(read(ends[0], &byte, 1) == 1);
            execl(program, program, "nothing", NULL);
            _exit(8);
        }
        /* What counts is how many there are when it becomes the user: the first must live until then. */
        CHECK(read(became[0], &byte, 1) == 1);
        if (others == 1) {
            CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL) && write(ends[1], "x", 1) == 1);
            /* Itself is one more than none. */
            CHECK(exits_with(other, 8));
        } else {
            CHECK(exits_with(other, 7) && kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
        }
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(became[0]) == 0 && close(became[1]) == 0);
    }
}

/* An open file of a process's memory belongs to the memory that the process had then. */
#define MARK 0x600000000000UL

static int shown_after(void)
{
    static char text[1 << 16];
    char mark[32];
    snprintf(mark, sizeof mark, "%lx-", MARK);
    long bytes = 0, got;
    while ((got = read(3, text + bytes, sizeof text - 1 - bytes)) > 0)
        bytes += got;
    if (got < 0)
        return 9;
    long in_memory = pread(4, text + sizeof text / 2, 1, MARK);
    return bytes == 0 && in_memory == 0 ? 1 : strstr(text, mark) && in_memory == 1 ? 2 : 3;
}

static void shown_memory(void)
{
    CHECK(mmap((void *)MARK, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)MARK);
    *(volatile char *)MARK = 'x';
    for (int shared = 0; shared <= 1; shared++) {
        pid_t child = shared ? vfork() : fork();
        if (child == 0) {
            int maps = open("/proc/self/maps", O_RDONLY), memory = open("/proc/self/mem", O_RDONLY);
            if (dup2(memory, 14) < 0 || dup2(maps, 3) < 0 || dup2(14, 4) < 0)
                _exit(10);
            execl(program, program, "shown", NULL);
            _exit(11);
        }
        /* Without other processes the old memory is gone. */
        CHECK(exits_with(child, shared ? 2 : 1));
    }
    /* A file that was found before is opened as what the process runs by then. */
    pid_t child = vfork();
    if (child == 0) {
        int found = open("/proc/self/maps", O_PATH);
        if (dup2(found, 3) < 0)
            _exit(10);
        execl(program, program, "found", NULL);
        _exit(11);
    }
    CHECK(exits_with(child, 4));
}

static int found_before(void)
{
    static char text[1 << 14];
    char mark[32];
    snprintf(mark, sizeof mark, "%lx-", MARK);
    int maps = open("/proc/self/fd/3", O_RDONLY);
    return maps < 0 ? 5 : read(maps, text, sizeof text - 1) <= 0 ? 6 : strstr(text, mark) ? 7 : 4;
}

static const struct test_case CASES[] = {
    {"devices", devices}, {"programs", programs}, {"memories", memories}, {"peers", peers}, {"directories", directories},
    {"unnamed", unnamed}, {"scores", scores},     {"groups", groups},         {"layouts", layouts},
    {"siblings", siblings}, {"guarded", guarded}, {"frames", frames}, {"ports", ports},
    {"rewritten", rewritten}, {"moves", moves}, {"processes_of_user", processes_of_user},
    {"shown_memory", shown_memory},
};

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    if (count == 5 && !strcmp(name, "who"))
        return who(arguments + 2);
    if (!strcmp(name, "wait"))
        return pause();
    if (!strcmp(name, "nothing"))
        return 0;
    if (!strcmp(name, "shown"))
        return shown_after();
    if (!strcmp(name, "found"))
        return found_before();
    if (geteuid() != 0)
        return 0;
    /* The first process of a machine may have no environment, which one case reads. */
    if (!getenv("RIGHTS"))
        return setenv("RIGHTS", "1", 1) || execv("/proc/self/exe", arguments);
    CHECK(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    char folder[] = "/tmp/rightsXXXXXX";
    CHECK(mkdtemp(folder) && chmod(folder, 0777) == 0 && chdir(folder) == 0);
    int status = run_cases(CASES, sizeof CASES / sizeof *CASES, name, 40);
    unlink("plain");
    unlink("owned");
    unlink("peers");
    rmdir(folder);
    return status;
}
