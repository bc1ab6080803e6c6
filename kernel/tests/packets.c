/* Unix sockets of packets (SOCK_SEQPACKET) and of datagrams (SOCK_DGRAM). kernel/test runs each case on Linux too.
 *
 * The first argument chooses the case, or all of them. Each one has a process of its own, which is killed when it hangs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"

/* The call fails with this error. */
#define FAILS(call, error) CHECK((errno = 0, (long)(call) == -1 && errno == (error)))
#define PATIENCE 40

static const int TYPES[] = { SOCK_SEQPACKET, SOCK_DGRAM };

struct name {
    socklen_t length;
    struct sockaddr_un address;
};
#define NAME(name) (struct sockaddr *)&(name).address, (name).length

/* A path, or with a zero byte in front an abstract name. */
static struct name name_of(const char *path, size_t bytes)
{
    struct name name = { offsetof(struct sockaddr_un, sun_path) + bytes, { .sun_family = AF_UNIX } };
    memcpy(name.address.sun_path, path, bytes);
    return name;
}

static int new_socket(int type)
{
    int fd = socket(AF_UNIX, type, 0);
    CHECK(fd >= 0);
    return fd;
}

static int bound(int type, struct name name)
{
    int fd = new_socket(type);
    CHECK(bind(fd, NAME(name)) == 0);
    return fd;
}

static int events(int fd)
{
    struct pollfd entry = { .fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP };
    CHECK(poll(&entry, 1, 0) >= 0);
    return entry.revents;
}

/* Receives one packet. Returns its length, and where it is from. */
static long take(int fd, char *got, size_t room, int flags, struct name *from, int *answer)
{
    struct iovec part = { got, room };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (from) {
        message.msg_name = &from->address;
        message.msg_namelen = sizeof from->address;
    }
    long count = recvmsg(fd, &message, flags);
    if (from)
        from->length = message.msg_namelen;
    if (answer)
        *answer = message.msg_flags;
    return count;
}

/* Each packet is received by one call, whole or cut off. */
static void pairs(void)
{
    for (int i = 0; i < 2; i++) {
        int pair[2], type = TYPES[i], answer, count;
        socklen_t length = sizeof count;
        char got[16];
        CHECK(socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, pair) == 0);
        CHECK(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &count, &length) == 0 && count == type);
        struct ucred maker;
        length = sizeof maker;
        CHECK(getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &maker, &length) == 0 && maker.pid == getpid());
        FAILS(read(pair[0], got, sizeof got), EAGAIN);
        CHECK(events(pair[0]) == POLLOUT && write(pair[1], "first", 5) == 5 && write(pair[1], "two", 3) == 3);
        CHECK(events(pair[0]) == (POLLIN | POLLOUT));
        CHECK(ioctl(pair[0], FIONREAD, &count) == 0 && count == (type == SOCK_DGRAM ? 5 : 8));
        CHECK(recv(pair[0], got, sizeof got, MSG_PEEK) == 5 && recv(pair[0], got, 2, MSG_PEEK | MSG_TRUNC) == 5);
        CHECK(take(pair[0], got, 2, 0, NULL, &answer) == 2 && answer == MSG_TRUNC && !memcmp(got, "fi", 2));
        CHECK(take(pair[0], got, 16, MSG_WAITALL, NULL, &answer) == 3 && answer == 0 && !memcmp(got, "two", 3));
        FAILS(read(pair[0], got, sizeof got), EAGAIN);
        /* Parts make one packet, and a packet may have no bytes. */
        struct iovec parts[2] = { { "a", 1 }, { "bc", 2 } };
        CHECK(writev(pair[1], parts, 2) == 3 && send(pair[1], "", 0, 0) == 0 && write(pair[1], "d", 1) == 1);
        CHECK(read(pair[0], got, 16) == 3 && !memcmp(got, "abc", 3) && read(pair[0], got, 16) == 0);
        CHECK(read(pair[0], got, 16) == 1 && got[0] == 'd');
        FAILS(sendto(pair[1], (void *)8, 4, 0, NULL, 0), EFAULT);
        FAILS(read(pair[0], got, sizeof got), EAGAIN);
        /* More than a buffer has. */
        static char large[1 << 20];
        FAILS(write(pair[1], large, sizeof large), EMSGSIZE);
        CHECK(write(pair[1], large, 100000) == 100000 && read(pair[0], large, sizeof large) == 100000);
        FAILS(send(pair[1], "x", 1, MSG_OOB), EOPNOTSUPP);
        CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
    }
    int pair[2];
    FAILS(socket(AF_INET, SOCK_SEQPACKET, 0), ESOCKTNOSUPPORT);
    FAILS(socketpair(AF_UNIX, SOCK_DGRAM, 99, pair), EPROTONOSUPPORT);
}

/* A full queue keeps a sender waiting. */
static void full(void)
{
    for (int i = 0; i < 2; i++) {
        static char block[8000];
        int pair[2], sent = 0;
        CHECK(socketpair(AF_UNIX, TYPES[i], 0, pair) == 0);
        while (send(pair[1], block, sizeof block, MSG_DONTWAIT) > 0)
            sent++;
        CHECK(errno == EAGAIN && sent >= 5 && sent < 100);
        int set = epoll_create1(0);
        struct epoll_event event = { EPOLLOUT, { 0 } };
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair[1], &event) == 0 && epoll_wait(set, &event, 1, 0) == 0);
        pid_t child = fork();
        if (child == 0)
            _exit(write(pair[1], block, 77) != 77);
        usleep(20000);
        CHECK(waitpid(child, NULL, WNOHANG) == 0);
        for (int at = 0; at < sent; at++)
            CHECK(read(pair[0], block, sizeof block) == sizeof block);
        CHECK(exits_with(child, 0) && read(pair[0], block, sizeof block) == 77);
        CHECK(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLOUT);
        CHECK(close(set) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    }
}

/* Connections of packets: to a listener, and their end. */
static void connections(void)
{
    struct name name = name_of("packets", 8), none;
    char got[16];
    unlink("packets");
    int server = bound(SOCK_SEQPACKET, name), fd = new_socket(SOCK_SEQPACKET), other = new_socket(SOCK_STREAM);
    FAILS(send(fd, "x", 1, 0), ENOTCONN);
    FAILS(recv(fd, got, 1, 0), ENOTCONN);
    FAILS(connect(fd, NAME(name)), ECONNREFUSED);
    CHECK(listen(server, 3) == 0);
    FAILS(connect(other, NAME(name)), EPROTOTYPE);
    CHECK(connect(fd, NAME(name)) == 0);
    int served = accept(server, NULL, NULL);
    CHECK(served >= 0 && write(fd, "one", 3) == 3 && write(served, "two", 3) == 3);
    CHECK(take(served, got, 16, 0, &none, NULL) == 3 && none.length == 0);
    CHECK(take(fd, got, 16, 0, &none, NULL) == 3 && none.length == name.length && !strcmp(none.address.sun_path, "packets"));
    /* A name to send to is not looked at. */
    CHECK(sendto(fd, "x", 1, 0, NAME(name)) == 1 && read(served, got, 16) == 1);
    /* What was sent arrives before the end. */
    CHECK(write(fd, "last", 4) == 4 && shutdown(fd, SHUT_WR) == 0);
    CHECK(events(served) == (POLLIN | POLLOUT | POLLRDHUP) && read(served, got, 16) == 4 && read(served, got, 16) == 0);
    /* No signal comes with the error. */
    FAILS(write(fd, "x", 1), EPIPE);
    CHECK(write(served, "lost", 4) == 4 && write(served, "too", 3) == 3 && close(fd) == 0);
    FAILS(read(served, got, 16), ECONNRESET);
    CHECK(read(served, got, 16) == 0);
    FAILS(write(served, "x", 1), EPIPE);
    CHECK(close(served) == 0 && close(server) == 0 && close(other) == 0 && unlink("packets") == 0);
}

/* Datagrams to names. */
static void datagrams(void)
{
    struct name one = name_of("one", 4), two = name_of("\0two", 4), from;
    char got[16];
    unlink("one");
    int first = bound(SOCK_DGRAM, one), second = bound(SOCK_DGRAM, two), third = new_socket(SOCK_DGRAM);
    FAILS(listen(first, 1), EOPNOTSUPP);
    FAILS(accept(first, NULL, NULL), EOPNOTSUPP);
    FAILS(write(third, "x", 1), ENOTCONN);
    CHECK(events(third) == POLLOUT);
    CHECK(sendto(second, "two", 3, 0, NAME(one)) == 3 && sendto(third, "three", 5, 0, NAME(one)) == 5);
    CHECK(take(first, got, 16, 0, &from, NULL) == 3 && from.length == two.length);
    CHECK(!memcmp(from.address.sun_path, "\0two", 4));
    from.length = sizeof from.address;
    CHECK(recvfrom(first, got, 16, 0, (struct sockaddr *)&from.address, &from.length) == 5 && from.length == 0);
    /* Without a socket, or with one of another type. */
    struct name missing = name_of("missing", 8), gone = name_of("\0gone", 5);
    FAILS(sendto(third, "x", 1, 0, NAME(missing)), ENOENT);
    FAILS(sendto(third, "x", 1, 0, NAME(gone)), ECONNREFUSED);
    int stream = new_socket(SOCK_STREAM);
    FAILS(connect(stream, NAME(one)), EPROTOTYPE);
    FAILS(connect(stream, NAME(two)), ECONNREFUSED);
    CHECK(bind(stream, NAME(two)) == 0 && close(stream) == 0);
    FAILS(bind(third, NAME(two)), EADDRINUSE);
    /* A socket that is connected receives from the other one alone. */
    CHECK(connect(first, NAME(two)) == 0 && write(first, "hi", 2) == 2 && read(second, got, 16) == 2);
    from.length = sizeof from.address;
    CHECK(getpeername(first, (struct sockaddr *)&from.address, &from.length) == 0 && from.length == two.length);
    FAILS(sendto(third, "x", 1, 0, NAME(one)), EPERM);
    FAILS(connect(third, NAME(one)), EPERM);
    CHECK(sendto(second, "ok", 2, 0, NAME(one)) == 2 && read(first, got, 16) == 2);
    CHECK(connect(third, NAME(two)) == 0 && write(third, "hi", 2) == 2 && read(second, got, 16) == 2);
    /* And from all again. */
    struct sockaddr any = { .sa_family = AF_UNSPEC };
    CHECK(connect(first, &any, sizeof any) == 0);
    FAILS(write(first, "x", 1), ENOTCONN);
    FAILS(getpeername(first, (struct sockaddr *)&from.address, &from.length), ENOTCONN);
    CHECK(sendto(third, "x", 1, 0, NAME(one)) == 1 && read(first, got, 16) == 1);
    /* The end of the other side: there is nothing to read, and an error when something is sent. */
    CHECK(close(second) == 0);
    FAILS(recv(third, got, 16, MSG_DONTWAIT), EAGAIN);
    FAILS(write(third, "x", 1), ECONNREFUSED);
    FAILS(write(third, "x", 1), ENOTCONN);
    CHECK(close(first) == 0);
    FAILS(sendto(third, "x", 1, 0, NAME(one)), ECONNREFUSED);
    CHECK(close(third) == 0 && unlink("one") == 0);
}

static void nothing(int signal)
{
    (void)signal;
}

/* Shutting down, waiting, and signals. */
static void waits(void)
{
    int pair[2];
    char got[16];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(20000);
        _exit(write(pair[1], "late", 4) != 4);
    }
    CHECK(read(pair[0], got, 16) == 4 && exits_with(child, 0));
    child = fork();
    if (child == 0) {
        usleep(20000);
        _exit(shutdown(pair[0], SHUT_RD) != 0);
    }
    CHECK(read(pair[0], got, 16) == 0 && exits_with(child, 0));
    CHECK(events(pair[0]) == (POLLIN | POLLOUT | POLLRDHUP));
    FAILS(write(pair[1], "x", 1), EPIPE);
    CHECK(shutdown(pair[1], SHUT_WR) == 0 && write(pair[0], "x", 1) == 1 && read(pair[1], got, 16) == 1);
    FAILS(write(pair[1], "x", 1), EPIPE);
    struct sigaction action = { .sa_handler = nothing };
    struct itimerval soon = { { 0, 20000 }, { 0, 20000 } };
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
    FAILS(read(pair[1], got, 16), EINTR);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL) == 0);
    struct timeval limit = { 0, 20000 };
    CHECK(setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    FAILS(read(pair[1], got, 16), EAGAIN);
    CHECK(close(pair[1]) == 0);
    FAILS(write(pair[0], "x", 1), ECONNREFUSED);
    CHECK(close(pair[0]) == 0);
}

/* Files come with the packet with which they were sent, and go if it is not received. */
static void rights(void)
{
    for (int i = 0; i < 2; i++) {
        int pair[2], ends[2], got_file;
        char byte, control[CMSG_SPACE(sizeof(int))];
        struct iovec part = { &byte, 1 };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
        CHECK(socketpair(AF_UNIX, TYPES[i], 0, pair) == 0 && pipe(ends) == 0 && write(pair[1], "a", 1) == 1);
        for (int round = 0; round < 2; round++) {
            struct cmsghdr *head = CMSG_FIRSTHDR(&message);
            *head = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
            memcpy(CMSG_DATA(head), &ends[1], sizeof(int));
            byte = 'b';
            CHECK(sendmsg(pair[1], &message, 0) == 1);
        }
        CHECK(close(ends[1]) == 0);
        CHECK(recvmsg(pair[0], &message, 0) == 1 && byte == 'a' && message.msg_controllen == 0);
        message.msg_controllen = sizeof control;
        CHECK(recvmsg(pair[0], &message, 0) == 1 && byte == 'b' && message.msg_controllen == sizeof control);
        memcpy(&got_file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
        CHECK(write(got_file, "x", 1) == 1 && close(got_file) == 0 && read(ends[0], &byte, 1) == 1);
        /* The other one is on its way still. */
        struct pollfd reader = { ends[0], POLLIN, 0 };
        CHECK(poll(&reader, 1, 0) == 0 && close(pair[0]) == 0);
        CHECK(poll(&reader, 1, 10000) == 1 && reader.revents == POLLHUP && close(pair[1]) == 0 && close(ends[0]) == 0);
    }
}

static const struct test_case CASES[] = {
    { "pairs", pairs },         { "full", full },   { "connections", connections },
    { "datagrams", datagrams }, { "waits", waits }, { "rights", rights },
};

int main(int count, char **arguments)
{
    char folder[] = "/tmp/packets-XXXXXX";
    if (!mkdtemp(folder) || chdir(folder))
        return 1;
    int code = run_cases(CASES, sizeof CASES / sizeof *CASES, count > 1 ? arguments[1] : "", PATIENCE);
    return rmdir(folder) ? 1 : code;
}
