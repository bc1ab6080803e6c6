/* What kernel/test runs in the kernel: sockets of unix and loopback TCP as programs use them. Each case runs on Linux
 * too, in a directory that may be written, so that a wrong expectation shows there.
 *
 * The first argument chooses the case, or all of them. Status 0 is success, 1 a wrong answer, 2 an unknown case.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            return 1; \
        } \
    } while (0)
/* The call fails with this error. */
#define FAILS(call, error) CHECK((errno = 0, (long)(call) == -1 && errno == (error)))

/* An address of any family. */
struct name {
    socklen_t length;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un local;
    };
};

static struct name v4(const char *host, int port)
{
    struct name name = {.length = sizeof name.v4, .v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
    inet_pton(AF_INET, host, &name.v4.sin_addr);
    return name;
}

static struct name v6(const char *host, int port)
{
    struct name name = {.length = sizeof name.v6, .v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
    inet_pton(AF_INET6, host, &name.v6.sin6_addr);
    return name;
}

/* A path, or with a zero byte in front an abstract name. */
static struct name local(const char *path, size_t bytes)
{
    struct name name = {.length = offsetof(struct sockaddr_un, sun_path) + bytes, .local = {.sun_family = AF_UNIX}};
    memcpy(name.local.sun_path, path, bytes);
    return name;
}

static struct name own(int fd)
{
    struct name name = {.length = sizeof name - offsetof(struct name, any)};
    return getsockname(fd, &name.any, &name.length) ? (struct name){0} : name;
}

static struct name peer(int fd)
{
    struct name name = {.length = sizeof name - offsetof(struct name, any)};
    return getpeername(fd, &name.any, &name.length) ? (struct name){0} : name;
}

static int port_of(struct name name)
{
    return ntohs(name.any.sa_family == AF_INET6 ? name.v6.sin6_port : name.v4.sin_port);
}

static int same(struct name one, struct name other)
{
    return one.length == other.length && !memcmp(&one.any, &other.any, one.length);
}

static int number(int fd, int level, int option)
{
    int value = -1;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, option, &value, &length) || length != sizeof value ? -1 : value;
}

static int set(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

/* A socket that listens at a name. */
static int listener(struct name name, int backlog)
{
    int fd = socket(name.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || set(fd, SOL_SOCKET, SO_REUSEADDR, 1) || bind(fd, &name.any, name.length) || listen(fd, backlog))
        return -1;
    return fd;
}

static int client(struct name name)
{
    int fd = socket(name.any.sa_family, SOCK_STREAM, 0);
    return fd < 0 || connect(fd, &name.any, name.length) ? -1 : fd;
}

/* Two ends of a TCP connection. */
static int tcp_pair(int ends[2])
{
    int server = listener(v4("127.0.0.1", 0), 1);
    if (server < 0 || (ends[0] = client(own(server))) < 0 || (ends[1] = accept(server, NULL, NULL)) < 0)
        return -1;
    return close(server);
}

static int events(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    return poll(&entry, 1, 0) < 0 ? -1 : entry.revents;
}

static void nothing(int signal)
{
    (void)signal;
}

static int create(void)
{
    int pair[2];
    FAILS(socket(AF_INET, SOCK_STREAM | 0x100, 0), EINVAL);
    FAILS(socket(AF_INET, 15, 0), EINVAL);
    FAILS(socket(99, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(socket(AF_UNIX, SOCK_STREAM, 99), EPROTONOSUPPORT);
    FAILS(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(socket(AF_INET, SOCK_RDM, 0), ESOCKTNOSUPPORT);
    FAILS(socketpair(AF_INET, SOCK_STREAM, 0, pair), EOPNOTSUPP);
    FAILS(socketpair(AF_UNIX, SOCK_STREAM, 0, (void *)8), EFAULT);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && S_ISSOCK(stat.st_mode));
    char link[64], target[64] = "", expected[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    snprintf(expected, sizeof expected, "socket:[%lu]", (unsigned long)stat.st_ino);
    CHECK(readlink(link, target, sizeof target - 1) > 0 && !strcmp(target, expected));
    FAILS(open(link, O_RDWR), ENXIO);
    FAILS(lseek(fd, 0, SEEK_SET), ESPIPE);
    char byte;
    FAILS(pread(fd, &byte, 1, 0), ESPIPE);
    FAILS(fsync(fd), EINVAL);
    FAILS(ftruncate(fd, 0), EINVAL);
    CHECK(number(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM && number(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET);
    CHECK(number(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP && number(fd, SOL_SOCKET, SO_ACCEPTCONN) == 0);
    CHECK(close(fd) == 0);
    /* Other files are no sockets. */
    fd = open("/dev/null", O_RDWR);
    struct name name = v4("127.0.0.1", 1);
    FAILS(bind(fd, &name.any, name.length), ENOTSOCK);
    FAILS(listen(fd, 1), ENOTSOCK);
    FAILS(accept(fd, NULL, NULL), ENOTSOCK);
    FAILS(shutdown(fd, SHUT_RD), ENOTSOCK);
    FAILS(send(fd, "", 1, 0), ENOTSOCK);
    FAILS(recv(fd, &byte, 1, 0), ENOTSOCK);
    CHECK(close(fd) == 0);
    FAILS(recv(fd, &byte, 1, 0), EBADF);
    return 0;
}

/* A socket without a connection. */
static int idle(void)
{
    char byte = 0;
    signal(SIGPIPE, SIG_IGN);
    int fd = socket(AF_INET, SOCK_STREAM, 0), here = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(fd >= 0 && here >= 0 && events(fd) == (POLLOUT | POLLHUP));
    FAILS(read(fd, &byte, 1), ENOTCONN);
    FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), ENOTCONN);
    FAILS(write(fd, &byte, 1), EPIPE);
    FAILS(shutdown(fd, SHUT_RDWR), ENOTCONN);
    FAILS(shutdown(fd, 3), EINVAL);
    FAILS(accept(fd, NULL, NULL), EINVAL);
    CHECK(peer(fd).length == 0 && errno == ENOTCONN);
    CHECK(same(own(fd), v4("0.0.0.0", 0)));
    FAILS(read(here, &byte, 1), EINVAL);
    FAILS(write(here, &byte, 1), ENOTCONN);
    FAILS(accept(here, NULL, NULL), EINVAL);
    FAILS(listen(here, 1), EINVAL);
    CHECK(own(here).length == 2 && own(here).any.sa_family == AF_UNIX && events(here) == (POLLOUT | POLLHUP));
    signal(SIGPIPE, SIG_DFL);
    return close(fd) || close(here);
}

static int names(void)
{
    int one = socket(AF_INET, SOCK_STREAM, 0), two = socket(AF_INET, SOCK_STREAM, 0);
    struct name any = v4("0.0.0.0", 0), wrong = v4("127.0.0.1", 0);
    FAILS(bind(one, &any.any, 15), EINVAL);
    FAILS(bind(one, &any.any, -1), EINVAL);
    FAILS(bind(one, (void *)8, any.length), EFAULT);
    wrong.any.sa_family = AF_INET6;
    FAILS(bind(one, &wrong.any, wrong.length), EAFNOSUPPORT);
    wrong = v4("8.8.8.8", 0);
    FAILS(bind(one, &wrong.any, wrong.length), EADDRNOTAVAIL);
    CHECK(bind(one, &any.any, any.length) == 0 && port_of(own(one)) >= 32768 && port_of(own(one)) < 61000);
    FAILS(bind(one, &any.any, any.length), EINVAL);
    struct name name = own(one), other = v4("127.0.0.1", port_of(name));
    FAILS(bind(two, &name.any, name.length), EADDRINUSE);
    FAILS(bind(two, &other.any, other.length), EADDRINUSE);
    /* A socket that is bound and does not listen. */
    CHECK(client(other) == -1 && errno == ECONNREFUSED);
    CHECK(close(one) == 0 && bind(two, &other.any, other.length) == 0 && same(own(two), other));
    /* Other addresses are other names. */
    one = socket(AF_INET, SOCK_STREAM, 0);
    name = v4("127.0.0.2", port_of(other));
    CHECK(bind(one, &name.any, name.length) == 0 && listen(one, 1) == 0 && listen(one, 2) == 0);
    CHECK(client(other) == -1 && errno == ECONNREFUSED);
    int fd = client(name);
    CHECK(fd >= 0 && same(peer(fd), name) && close(fd) == 0 && close(one) == 0 && close(two) == 0);
    /* With SO_REUSEADDR on both, a name may be shared until one listens. */
    one = socket(AF_INET, SOCK_STREAM, 0), two = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(set(one, SOL_SOCKET, SO_REUSEADDR, 1) == 0 && set(two, SOL_SOCKET, SO_REUSEADDR, 7) == 0);
    CHECK(number(two, SOL_SOCKET, SO_REUSEADDR) == 1);
    CHECK(bind(one, &any.any, any.length) == 0);
    name = own(one);
    CHECK(bind(two, &name.any, name.length) == 0 && listen(one, 1) == 0);
    FAILS(listen(two, 1), EADDRINUSE);
    CHECK(close(two) == 0 && number(one, SOL_SOCKET, SO_ACCEPTCONN) == 1);
    two = socket(AF_INET, SOCK_STREAM, 0);
    set(two, SOL_SOCKET, SO_REUSEADDR, 1);
    FAILS(bind(two, &name.any, name.length), EADDRINUSE);
    /* A short buffer gets a part, and the whole length. */
    struct name part = {.length = 4};
    CHECK(getsockname(one, &part.any, &part.length) == 0 && part.length == 16 && part.v4.sin_addr.s_addr == 0);
    CHECK(part.v4.sin_port == name.v4.sin_port);
    part.length = -1;
    FAILS(getsockname(one, &part.any, &part.length), EINVAL);
    FAILS(getsockname(one, (void *)8, &name.length), EFAULT);
    /* Listening binds. */
    CHECK(listen(two, 1) == 0 && port_of(own(two)) != 0);
    return close(one) || close(two);
}

static int versions(void)
{
    int six = socket(AF_INET6, SOCK_STREAM, 0), four = socket(AF_INET, SOCK_STREAM, 0);
    struct name any = v6("::", 0), name;
    CHECK(six >= 0 && number(six, IPPROTO_IPV6, IPV6_V6ONLY) == 0);
    FAILS(bind(six, &any.any, 23), EINVAL);
    CHECK(bind(six, &any.any, any.length) == 0 && listen(six, 5) == 0);
    int port = port_of(own(six));
    name = v4("127.0.0.1", port);
    FAILS(bind(four, &name.any, name.length), EADDRINUSE);
    /* A socket of both kinds serves both, and sees addresses of IPv4 as such of IPv6. */
    int fd = client(v4("127.0.0.1", port)), served;
    struct name from = {.length = sizeof from - offsetof(struct name, any)};
    CHECK(fd >= 0 && (served = accept(six, &from.any, &from.length)) >= 0);
    CHECK(same(from, v6("::ffff:127.0.0.1", port_of(own(fd)))) && same(own(served), v6("::ffff:127.0.0.1", port)));
    CHECK(same(peer(served), from) && same(peer(fd), v4("127.0.0.1", port)));
    CHECK(close(fd) == 0 && close(served) == 0);
    CHECK((fd = client(v6("::1", port))) >= 0 && (served = accept(six, &from.any, &from.length)) >= 0);
    CHECK(same(from, own(fd)) && same(own(served), v6("::1", port)) && same(peer(fd), own(served)));
    CHECK(close(fd) == 0 && close(served) == 0 && close(six) == 0);
    /* One of IPv6 alone leaves the port to IPv4. */
    six = socket(AF_INET6, SOCK_STREAM, 0);
    CHECK(set(six, IPPROTO_IPV6, IPV6_V6ONLY, 1) == 0 && bind(six, &any.any, any.length) == 0 && listen(six, 1) == 0);
    port = port_of(own(six));
    CHECK(client(v4("127.0.0.1", port)) == -1 && errno == ECONNREFUSED);
    name = v4("127.0.0.1", port);
    CHECK(bind(four, &name.any, name.length) == 0 && listen(four, 1) == 0 && (fd = client(name)) >= 0);
    CHECK((served = accept(four, NULL, NULL)) >= 0 && same(peer(served), own(fd)));
    CHECK(close(fd) == 0 && close(served) == 0);
    CHECK((fd = client(v6("::ffff:127.0.0.1", port))) >= 0 && close(fd) == 0);
    CHECK((fd = client(v4("0.0.0.0", port))) >= 0 && same(peer(fd), name) && close(fd) == 0);
    return close(six) || close(four);
}

static int paths(void)
{
    unlink("socket");
    struct name name = local("socket", 7), missing = local("missing", 8), file = local("file", 5);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), fd = socket(AF_UNIX, SOCK_STREAM, 0), served;
    FAILS(connect(fd, &name.any, name.length), ENOENT);
    FAILS(bind(server, &name.any, 111), EINVAL);
    FAILS(bind(server, &name.any, 1), EINVAL);
    struct name long_name = name;
    memset(long_name.local.sun_path, 'x', 108);
    long_name.length = 110;
    CHECK(bind(fd, &long_name.any, 110) == 0 && own(fd).length >= 110 && close(fd) == 0);
    char path[109] = "";
    memset(path, 'x', 108);
    CHECK(unlink(path) == 0);
    CHECK(bind(server, &name.any, name.length) == 0 && same(own(server), name));
    struct stat stat;
    CHECK(lstat("socket", &stat) == 0 && S_ISSOCK(stat.st_mode));
    FAILS(open("socket", O_RDWR), ENXIO);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    FAILS(bind(fd, &name.any, name.length), EADDRINUSE);
    FAILS(connect(fd, &name.any, name.length), ECONNREFUSED);
    FAILS(connect(fd, &missing.any, missing.length), ENOENT);
    CHECK(close(open("file", O_CREAT | O_WRONLY, 0600)) == 0);
    FAILS(connect(fd, &file.any, file.length), ECONNREFUSED);
    CHECK(unlink("file") == 0 && listen(server, 1) == 0);
    FAILS(connect(server, &name.any, name.length), EINVAL);
    CHECK(connect(fd, &name.any, name.length) == 0 && same(peer(fd), name) && own(fd).length == 2);
    FAILS(connect(fd, &name.any, name.length), EISCONN);
    struct name from = {.length = sizeof from - offsetof(struct name, any)};
    CHECK((served = accept4(server, &from.any, &from.length, SOCK_NONBLOCK)) >= 0 && from.length == 2);
    CHECK(same(own(served), name) && fcntl(served, F_GETFL) == (O_RDWR | O_NONBLOCK));
    struct ucred user;
    socklen_t length = sizeof user;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &length) == 0 && user.pid == getpid() && user.uid == getuid());
    CHECK(close(fd) == 0 && close(served) == 0 && close(server) == 0);
    /* The name outlives the socket; nothing listens there any more. */
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    FAILS(connect(fd, &name.any, name.length), ECONNREFUSED);
    CHECK(unlink("socket") == 0);
    FAILS(connect(fd, &name.any, name.length), ENOENT);
    /* A renamed node leads to its socket. */
    CHECK((server = listener(name, 1)) >= 0 && rename("socket", "renamed") == 0);
    FAILS(connect(fd, &name.any, name.length), ENOENT);
    name = local("renamed", 8);
    CHECK(connect(fd, &name.any, name.length) == 0 && unlink("renamed") == 0 && close(fd) == 0 && close(server) == 0);
    /* Abstract names have no node, and any bytes. */
    struct name hidden = local("\0quire\0name", 11), shorter = local("\0quire", 6);
    CHECK((server = listener(hidden, 1)) >= 0 && same(own(server), hidden));
    CHECK(client(shorter) == -1 && errno == ECONNREFUSED);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    FAILS(bind(fd, &hidden.any, hidden.length), EADDRINUSE);
    CHECK(connect(fd, &hidden.any, hidden.length) == 0 && same(peer(fd), hidden));
    CHECK(close(fd) == 0 && close(server) == 0);
    CHECK(client(hidden) == -1 && errno == ECONNREFUSED);
    /* A name that the kernel chooses. */
    struct name none = local("", 0);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(fd, &none.any, none.length) == 0 && own(fd).length == 8 && own(fd).local.sun_path[0] == 0);
    CHECK(listen(fd, 1) == 0 && (server = client(own(fd))) >= 0 && close(server) == 0 && close(fd) == 0);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    FAILS(connect(fd, &none.any, none.length), EINVAL);
    CHECK(close(fd) == 0);
    return 0;
}

static int options(void)
{
    static const struct {
        int level, name, first, set, got;
    } NUMBERS[] = {
        {SOL_SOCKET, SO_REUSEADDR, 0, 3, 1}, {SOL_SOCKET, SO_KEEPALIVE, 0, 1, 1},
        {SOL_SOCKET, SO_BROADCAST, 0, 1, 1}, {SOL_SOCKET, SO_OOBINLINE, 0, 1, 1},
        {SOL_SOCKET, SO_SNDBUF, -1, 8192, 16384}, {SOL_SOCKET, SO_RCVBUF, -1, 8192, 16384},
        {SOL_SOCKET, SO_RCVLOWAT, 1, 2, 2}, {SOL_SOCKET, SO_PRIORITY, 0, 6, 6},
        {IPPROTO_TCP, TCP_NODELAY, 0, 5, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 7200, 10, 10},
        {IPPROTO_TCP, TCP_KEEPINTVL, 75, 11, 11}, {IPPROTO_TCP, TCP_KEEPCNT, 9, 12, 12},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 0, 1000, 1000}, {IPPROTO_IP, IP_TOS, 0, 16, 16},
    };
    int fd = socket(AF_INET, SOCK_STREAM, 0), here = socket(AF_UNIX, SOCK_STREAM, 0);
    for (size_t at = 0; at < sizeof NUMBERS / sizeof *NUMBERS; at++) {
        int level = NUMBERS[at].level, name = NUMBERS[at].name;
        CHECK(NUMBERS[at].first == -1 || number(fd, level, name) == NUMBERS[at].first);
        CHECK(set(fd, level, name, NUMBERS[at].set) == 0 && number(fd, level, name) == NUMBERS[at].got);
    }
    FAILS(set(fd, IPPROTO_TCP, TCP_KEEPCNT, 0), EINVAL);
    FAILS(set(fd, IPPROTO_TCP, 12345, 0), ENOPROTOOPT);
    FAILS(set(fd, SOL_SOCKET, 12345, 0), ENOPROTOOPT);
    FAILS(set(fd, SOL_SOCKET, SO_TYPE, 0), ENOPROTOOPT);
    FAILS(set(here, IPPROTO_TCP, TCP_NODELAY, 1), EOPNOTSUPP);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, "", 1), EINVAL);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, (void *)8, 4), EFAULT);
    char byte = 9;
    socklen_t length = 1;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &byte, &length) == 0 && length == 1 && byte == SOCK_STREAM);
    length = -1;
    FAILS(getsockopt(fd, SOL_SOCKET, SO_TYPE, &byte, &length), EINVAL);
    struct linger linger = {1, 5}, got = {0, 0};
    length = sizeof got;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &got, &length) == 0 && got.l_onoff == 1 && got.l_linger == 5);
    struct timeval time = {0, 50000}, now;
    length = sizeof now;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &now, &length) == 0 && length == sizeof now && now.tv_sec == 0);
    CHECK(now.tv_usec >= 48000 && now.tv_usec <= 52000);
    time.tv_usec = 1000000;
    FAILS(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), EDOM);
    return close(fd) || close(here);
}

/* Times out by SO_RCVTIMEO and SO_SNDTIMEO. */
static int timeouts(void)
{
    int pair[2];
    char block[4096] = "";
    struct timeval time = {0, 50000};
    struct timespec before, after;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0);
    clock_gettime(CLOCK_MONOTONIC, &before);
    FAILS(read(pair[0], block, 1), EAGAIN);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long waited = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    CHECK(waited > 40000000);
    long sent = 0, count;
    while ((count = write(pair[0], block, sizeof block)) > 0)
        sent += count;
    CHECK(errno == EAGAIN && sent > 30000);
    int server = listener(v4("127.0.0.1", 0), 1);
    CHECK(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    FAILS(accept(server, NULL, NULL), EAGAIN);
    return close(pair[0]) || close(pair[1]) || close(server);
}

/* Bytes in both directions, by each pair of calls, on both kinds of sockets. */
static int transfer_on(int one, int other)
{
    char got[64] = "";
    int count;
    CHECK(write(one, "hello", 5) == 5 && send(one, " you", 4, 0) == 4);
    CHECK(ioctl(other, FIONREAD, &count) == 0 && count == 9);
    CHECK(recv(other, got, 5, MSG_PEEK) == 5 && recv(other, got, sizeof got, MSG_PEEK) == 9 && !memcmp(got, "hello you", 9));
    CHECK(read(other, got, 2) == 2 && recv(other, got + 2, 62, 0) == 7 && !memcmp(got, "hello you", 9));
    struct iovec parts[2] = {{"ab", 2}, {"cdef", 4}}, into[2] = {{got, 3}, {got + 8, 8}};
    CHECK(writev(other, parts, 2) == 6 && readv(one, into, 2) == 6 && !memcmp(got, "abc", 3) && !memcmp(got + 8, "def", 3));
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2}, answer = {.msg_iov = into, .msg_iovlen = 2};
    CHECK(sendmsg(one, &message, 0) == 6 && recvmsg(other, &answer, 0) == 6 && answer.msg_flags == 0);
    CHECK(answer.msg_controllen == 0);
    struct name from = {.length = 99};
    CHECK(sendto(one, "x", 1, 0, NULL, 0) == 1);
    CHECK(recvfrom(other, got, 64, 0, &from.any, &from.length) == 1 && got[0] == 'x' && from.length == 0);
    FAILS(recv(one, got, 1, MSG_DONTWAIT), EAGAIN);
    FAILS(recv(one, got, 1, MSG_OOB), EINVAL);
    int on = 1;
    CHECK(ioctl(one, FIONBIO, &on) == 0 && fcntl(one, F_GETFL) & O_NONBLOCK);
    FAILS(read(one, got, 1), EAGAIN);
    CHECK(fcntl(one, F_SETFL, 0) == 0 && write(one, "", 0) == 0);
    /* MSG_WAITALL waits for what a child sends later. */
    CHECK(write(one, "ab", 2) == 2);
    pid_t child = fork();
    if (child == 0) {
        usleep(20000);
        _exit(write(one, "cd", 2) != 2);
    }
    int status;
    CHECK(recv(other, got, 4, MSG_WAITALL) == 4 && !memcmp(got, "abcd", 4));
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FAILS(write(one, (void *)8, 4), EFAULT);
    CHECK(write(one, "z", 1) == 1);
    FAILS(read(other, (void *)8, 4), EFAULT);
    FAILS(sendmsg(one, (void *)8, 0), EFAULT);
    CHECK(close(one) == 0 && close(other) == 0);
    return 0;
}

static int transfer(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && transfer_on(pair[0], pair[1]) == 0);
    CHECK(tcp_pair(pair) == 0 && transfer_on(pair[0], pair[1]) == 0);
    CHECK(tcp_pair(pair) == 0);
    /* An address beside a stream. */
    struct name name = v4("127.0.0.1", 1);
    CHECK(sendto(pair[0], "x", 1, 0, &name.any, name.length) == 1);
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    name = local("x", 2);
    FAILS(sendto(pair[0], "x", 1, 0, &name.any, name.length), EISCONN);
    /* sendfile. */
    int fd = open("/proc/self/exe", O_RDONLY);
    char got[4096], same_bytes[4096];
    off_t offset = 64;
    CHECK(sendfile(pair[0], fd, &offset, 4096) == 4096 && recv(pair[1], got, 4096, MSG_WAITALL) == 4096);
    CHECK(pread(fd, same_bytes, 4096, 64) == 4096 && !memcmp(got, same_bytes, 4096));
    return close(fd) || close(pair[0]) || close(pair[1]);
}

/* One side fills the connection until it must wait; the other side's reads make room. */
static int full_on(int one, int other)
{
    static char block[1 << 16];
    long sent = 0, taken = 0, count;
    CHECK(fcntl(one, F_SETFL, O_NONBLOCK) == 0);
    while ((count = write(one, block, sizeof block)) > 0)
        sent += count;
    CHECK(errno == EAGAIN && sent >= 1 << 16 && !(events(one) & POLLOUT) && events(other) & POLLIN);
    while (taken < sent && (count = read(other, block, sizeof block)) > 0)
        taken += count;
    CHECK(taken == sent && events(one) & POLLOUT);
    /* Much more than it holds, checked byte by byte. */
    CHECK(fcntl(one, F_SETFL, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        unsigned value = 1;
        for (int round = 0; round < 64; round++) {
            for (size_t at = 0; at < sizeof block; at++)
                block[at] = (value = value * 1103515245 + 12345) >> 16;
            for (size_t done = 0; done < sizeof block; done += count)
                if ((count = write(one, block + done, sizeof block - done)) <= 0)
                    _exit(1);
        }
        _exit(0);
    }
    CHECK(close(one) == 0);
    unsigned value = 1;
    for (taken = 0; (count = read(other, block, 50000)) > 0; taken += count)
        for (long at = 0; at < count; at++)
            CHECK(block[at] == (char)((value = value * 1103515245 + 12345) >> 16));
    int status;
    CHECK(count == 0 && taken == 64L << 16 && waitpid(child, &status, 0) == child && status == 0);
    return close(other);
}

static int full(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && full_on(pair[0], pair[1]) == 0);
    return tcp_pair(pair) || full_on(pair[0], pair[1]);
}

static volatile int pipe_signals;

static void count_signal(int signal)
{
    (void)signal;
    pipe_signals++;
}

static int halves(void)
{
    int pair[2];
    char byte;
    signal(SIGPIPE, count_signal);
    for (int kind = 0; kind < 2; kind++) {
        CHECK((kind ? tcp_pair(pair) : socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) == 0);
        CHECK(events(pair[0]) == POLLOUT && write(pair[0], "x", 1) == 1 && shutdown(pair[0], SHUT_WR) == 0);
        /* What was sent arrives before the end. */
        CHECK(events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP));
        CHECK(read(pair[1], &byte, 1) == 1 && read(pair[1], &byte, 1) == 0 && read(pair[1], &byte, 1) == 0);
        pipe_signals = 0;
        FAILS(write(pair[0], "x", 1), EPIPE);
        CHECK(pipe_signals == 1);
        FAILS(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
        CHECK(pipe_signals == 1);
        /* The other half still works. */
        CHECK(write(pair[1], "y", 1) == 1 && read(pair[0], &byte, 1) == 1 && byte == 'y');
        CHECK(shutdown(pair[1], SHUT_RDWR) == 0 && read(pair[0], &byte, 1) == 0);
        CHECK(events(pair[0]) == (POLLIN | POLLOUT | POLLRDHUP | POLLHUP));
        CHECK(events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP | POLLHUP));
        CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
    }
    /* Unix sockets tell the writer that nothing is read any more. */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[1], "z", 1) == 1);
    CHECK(shutdown(pair[0], SHUT_RD) == 0);
    FAILS(send(pair[1], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK(read(pair[0], &byte, 1) == 1 && byte == 'z' && read(pair[0], &byte, 1) == 0);
    CHECK(close(pair[0]) == 0);
    /* The other side is closed. */
    pipe_signals = 0;
    FAILS(write(pair[1], "x", 1), EPIPE);
    CHECK(pipe_signals == 1 && close(pair[1]) == 0);
    CHECK(tcp_pair(pair) == 0 && close(pair[0]) == 0 && read(pair[1], &byte, 1) == 0);
    /* The first bytes after the end are sent in vain. */
    CHECK(events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP));
    CHECK(send(pair[1], "x", 1, MSG_NOSIGNAL) == 1);
    FAILS(send(pair[1], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK(events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP | POLLHUP) && read(pair[1], &byte, 1) == 0);
    CHECK(close(pair[1]) == 0);
    signal(SIGPIPE, SIG_DFL);
    return 0;
}

/* A side that is closed with bytes that it has not read. */
static int resets(void)
{
    int pair[2];
    char got[8];
    for (int kind = 0; kind < 2; kind++) {
        CHECK((kind ? tcp_pair(pair) : socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) == 0);
        CHECK(write(pair[0], "lost", 4) == 4 && write(pair[1], "kept", 4) == 4 && close(pair[1]) == 0);
        CHECK(events(pair[0]) & POLLERR && read(pair[0], got, 8) == 4 && !memcmp(got, "kept", 4));
        FAILS(read(pair[0], got, 8), ECONNRESET);
        CHECK(read(pair[0], got, 8) == 0 && close(pair[0]) == 0);
    }
    /* Over TCP the error comes after all bytes, also if one call wanted more than there were. */
    CHECK(tcp_pair(pair) == 0 && write(pair[0], "lost", 4) == 4 && write(pair[1], "kept", 4) == 4 && close(pair[1]) == 0);
    CHECK(recv(pair[0], got, 8, MSG_WAITALL) == 4);
    FAILS(read(pair[0], got, 8), ECONNRESET);
    CHECK(close(pair[0]) == 0);
    /* SO_LINGER with no time. */
    struct linger linger = {1, 0};
    CHECK(tcp_pair(pair) == 0 && setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(close(pair[0]) == 0 && number(pair[1], SOL_SOCKET, SO_ERROR) == ECONNRESET);
    CHECK(number(pair[1], SOL_SOCKET, SO_ERROR) == 0 && close(pair[1]) == 0);
    /* A listener that goes resets the connections that it has not accepted. */
    int server = listener(v4("127.0.0.1", 0), 1), fd = client(own(server));
    CHECK(fd >= 0 && close(server) == 0);
    FAILS(read(fd, got, 1), ECONNRESET);
    CHECK(close(fd) == 0);
    unlink("socket");
    server = listener(local("socket", 7), 1), fd = client(own(server));
    CHECK(fd >= 0 && close(server) == 0 && unlink("socket") == 0);
    FAILS(read(fd, got, 1), ECONNRESET);
    return close(fd);
}

/* The port of a connection is not given away while the connection is there. */
static int ports(void)
{
    int server = listener(v4("127.0.0.1", 0), 5), kept, fd, served, other;
    struct name name = own(server);
    CHECK((kept = client(name)) >= 0 && (served = accept(server, NULL, NULL)) >= 0);
    struct name near = own(kept);
    CHECK((other = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    FAILS(bind(other, &near.any, near.length), EADDRINUSE);
    /* As many as there are ephemeral ports. Linux keeps ended connections for a minute, so its ports would run out. */
    if (getpid() == 1)
        for (int i = 0; i < 28300; i++) {
            CHECK((fd = client(name)) >= 0 && !same(own(fd), near) && (other = accept(server, NULL, NULL)) >= 0);
            CHECK(close(fd) == 0 && close(other) == 0);
        }
    CHECK(close(kept) == 0 && close(served) == 0 && close(server) == 0);
    return 0;
}

/* connect without waiting, and with a backlog that is full. */
static int connecting(void)
{
    int server = listener(v4("127.0.0.1", 0), 0);
    struct name name = own(server), nowhere = v4("127.0.0.1", 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), filler[8], served;
    char got[8];
    FAILS(accept4(server, NULL, NULL, 0x100), EINVAL);
    CHECK(fcntl(server, F_SETFL, O_NONBLOCK) == 0 && events(server) == 0);
    FAILS(accept(server, NULL, NULL), EAGAIN);
    FAILS(connect(fd, &name.any, name.length), EINPROGRESS);
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&entry, 1, 1000) == 1 && entry.revents == POLLOUT && number(fd, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(connect(fd, &name.any, name.length) == 0);
    FAILS(connect(fd, &name.any, name.length), EISCONN);
    CHECK(events(server) == POLLIN && (served = accept(server, NULL, NULL)) >= 0 && !(fcntl(served, F_GETFL) & O_NONBLOCK));
    CHECK(write(fd, "x", 1) == 1 && read(served, got, 8) == 1 && close(fd) == 0 && close(served) == 0);
    /* Refused. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    FAILS(connect(fd, &nowhere.any, nowhere.length), ECONNREFUSED);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    FAILS(connect(fd, &nowhere.any, nowhere.length), EINPROGRESS);
    entry.fd = fd;
    CHECK(poll(&entry, 1, 1000) == 1 && entry.revents == (POLLOUT | POLLERR | POLLHUP));
    CHECK(number(fd, SOL_SOCKET, SO_ERROR) == ECONNREFUSED && number(fd, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(close(fd) == 0);
    /* A backlog of 0 has room for one. The others come in when it has been accepted. */
    CHECK((filler[0] = client(name)) >= 0);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    FAILS(connect(fd, &name.any, name.length), EINPROGRESS);
    FAILS(connect(fd, &name.any, name.length), EALREADY);
    CHECK(events(fd) == 0 && peer(fd).length == 0);
    FAILS(recv(fd, got, 1, 0), EAGAIN);
    FAILS(send(fd, "x", 1, 0), EAGAIN);
    CHECK((served = accept(server, NULL, NULL)) >= 0 && close(served) == 0);
    entry.fd = fd;
    CHECK(poll(&entry, 1, 10000) == 1 && entry.revents == POLLOUT);
    CHECK((served = accept(server, NULL, NULL)) >= 0 && same(peer(served), own(fd)));
    CHECK(close(served) == 0 && close(fd) == 0 && close(filler[0]) == 0 && close(server) == 0);
    /* The same for unix sockets, which do not wait in the background. */
    unlink("socket");
    name = local("socket", 7);
    CHECK((server = listener(name, 1)) >= 0);
    int connected = 0;
    while (connected < 8) {
        filler[connected] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(filler[connected], &name.any, name.length))
            break;
        connected++;
    }
    CHECK(connected == 2 && errno == EAGAIN);
    fcntl(filler[2], F_SETFL, 0);
    pid_t child = fork();
    if (child == 0)
        _exit(connect(filler[2], &name.any, name.length) || write(filler[2], "child", 5) != 5);
    usleep(20000);
    int status;
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    for (int at = 0; at < 3; at++) {
        CHECK((served = accept(server, NULL, NULL)) >= 0);
        CHECK(at < 2 || (read(served, got, 5) == 5 && !memcmp(got, "child", 5)));
        CHECK(close(served) == 0 && close(filler[at]) == 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* shutdown ends a wait in accept. */
    child = fork();
    if (child == 0)
        _exit(accept(server, NULL, NULL) == -1 && errno == EINVAL ? 0 : 1);
    usleep(20000);
    CHECK(shutdown(server, SHUT_RD) == 0 && waitpid(child, &status, 0) == child && status == 0);
    return close(server) || unlink("socket");
}

/* A signal ends a wait. */
static int signals(void)
{
    int pair[2], server = listener(v4("127.0.0.1", 0), 1);
    char byte;
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGALRM, &action, NULL);
    CHECK(tcp_pair(pair) == 0);
    /* Again and again: on a busy machine the first one may come before the call. */
    struct itimerval soon = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &soon, NULL);
    FAILS(read(pair[0], &byte, 1), EINTR);
    FAILS(accept(server, NULL, NULL), EINTR);
    /* With SA_RESTART it goes on. */
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    pid_t child = fork();
    if (child == 0) {
        usleep(60000);
        _exit(write(pair[1], "x", 1) != 1);
    }
    int status;
    CHECK(read(pair[0], &byte, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    setitimer(ITIMER_REAL, &never, NULL);
    return close(pair[0]) || close(pair[1]) || close(server);
}

static int watched(void)
{
    int pair[2], set_fd = epoll_create1(0), server = listener(v4("127.0.0.1", 0), 4), fd, served;
    char got[8];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1}, seen[4];
    /* A listener, level-triggered. */
    CHECK(epoll_ctl(set_fd, EPOLL_CTL_ADD, server, &event) == 0 && epoll_wait(set_fd, seen, 4, 0) == 0);
    struct name name = own(server);
    CHECK((fd = client(name)) >= 0 && epoll_wait(set_fd, seen, 4, 1000) == 1 && seen[0].events == EPOLLIN);
    CHECK(epoll_wait(set_fd, seen, 4, 0) == 1 && (served = accept(server, NULL, NULL)) >= 0);
    CHECK(epoll_wait(set_fd, seen, 4, 0) == 0 && epoll_ctl(set_fd, EPOLL_CTL_DEL, server, NULL) == 0);
    CHECK(close(fd) == 0 && close(served) == 0);
    /* A socket that is watched before it is connected. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    event.events = EPOLLIN | EPOLLRDHUP;
    CHECK(epoll_ctl(set_fd, EPOLL_CTL_ADD, fd, &event) == 0 && epoll_wait(set_fd, seen, 4, 0) == 1);
    CHECK(seen[0].events == EPOLLHUP && connect(fd, &name.any, name.length) == 0);
    CHECK((served = accept(server, NULL, NULL)) >= 0 && epoll_wait(set_fd, seen, 4, 0) == 0);
    CHECK(write(served, "ab", 2) == 2 && epoll_wait(set_fd, seen, 4, 1000) == 1 && seen[0].events == EPOLLIN);
    CHECK(read(fd, got, 1) == 1 && epoll_wait(set_fd, seen, 4, 0) == 1 && read(fd, got, 1) == 1);
    CHECK(epoll_wait(set_fd, seen, 4, 0) == 0);
    /* Edge-triggered: once for each arrival. */
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    CHECK(epoll_ctl(set_fd, EPOLL_CTL_MOD, fd, &event) == 0 && epoll_wait(set_fd, seen, 4, 0) == 0);
    CHECK(write(served, "a", 1) == 1 && epoll_wait(set_fd, seen, 4, 1000) == 1 && epoll_wait(set_fd, seen, 4, 0) == 0);
    CHECK(write(served, "b", 1) == 1 && epoll_wait(set_fd, seen, 4, 1000) == 1 && epoll_wait(set_fd, seen, 4, 0) == 0);
    CHECK(read(fd, got, 8) == 2 && epoll_wait(set_fd, seen, 4, 0) == 0);
    CHECK(close(served) == 0 && epoll_wait(set_fd, seen, 4, 1000) == 1);
    CHECK(seen[0].events == (EPOLLIN | EPOLLRDHUP) && epoll_wait(set_fd, seen, 4, 0) == 0 && close(fd) == 0);
    /* What a socket writes is no edge of its own. */
    CHECK(tcp_pair(pair) == 0);
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    CHECK(epoll_ctl(set_fd, EPOLL_CTL_ADD, pair[0], &event) == 0 && epoll_wait(set_fd, seen, 4, 0) == 1);
    CHECK(seen[0].events == EPOLLOUT && write(pair[0], "x", 1) == 1 && epoll_wait(set_fd, seen, 4, 0) == 0);
    /* One-shot, with a wait in a child. */
    event.events = EPOLLIN | EPOLLONESHOT;
    CHECK(epoll_ctl(set_fd, EPOLL_CTL_MOD, pair[0], &event) == 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(20000);
        _exit(write(pair[1], "y", 1) != 1);
    }
    CHECK(epoll_wait(set_fd, seen, 4, 10000) == 1 && seen[0].events == EPOLLIN && epoll_wait(set_fd, seen, 4, 0) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* What is ready and removed is not reported any more, and may be added again. */
    event.events = EPOLLIN;
    CHECK(epoll_ctl(set_fd, EPOLL_CTL_MOD, pair[0], &event) == 0 && epoll_wait(set_fd, seen, 4, 0) == 1);
    for (int at = 0; at < 100; at++) {
        CHECK(epoll_ctl(set_fd, EPOLL_CTL_DEL, pair[0], NULL) == 0);
        CHECK(at % 10 || epoll_wait(set_fd, seen, 4, 0) == 0);
        CHECK(epoll_ctl(set_fd, EPOLL_CTL_ADD, pair[0], &event) == 0);
    }
    CHECK(epoll_wait(set_fd, seen, 4, 0) == 1);
    /* select. */
    fd_set reads, writes;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_SET(pair[0], &reads);
    FD_SET(pair[0], &writes);
    FD_SET(server, &reads);
    struct timeval time = {1, 0};
    CHECK(select(server + pair[0] + 1, &reads, &writes, NULL, &time) == 2 && FD_ISSET(pair[0], &reads));
    CHECK(FD_ISSET(pair[0], &writes) && !FD_ISSET(server, &reads));
    return close(pair[0]) || close(pair[1]) || close(set_fd) || close(server);
}

static int send_files(int fd, const int *files, int count, const char *bytes, size_t length)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control = {.header = {CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {(char *)bytes, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control};
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    memcpy(CMSG_DATA(&control.header), files, count * sizeof(int));
    return sendmsg(fd, &message, 0);
}

/* Returns how many bytes were received; the files in `files`, and the flags. */
static int take_files(int fd, int *files, int *count, int room, int flags, int *answer, char *got)
{
    char control[CMSG_SPACE(8 * sizeof(int))];
    struct iovec part = {got, 16};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
    message.msg_controllen = room ? CMSG_LEN(room * sizeof(int)) : 0;
    int length = recvmsg(fd, &message, flags);
    struct cmsghdr *header = length < 0 ? NULL : CMSG_FIRSTHDR(&message);
    *count = header ? (header->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    *answer = message.msg_flags;
    memcpy(files, header ? CMSG_DATA(header) : (void *)"", *count * sizeof(int));
    return length;
}

/* Files go through unix sockets. */
static int rights(void)
{
    int pair[2], pipe_ends[2], files[8], count, answer;
    char got[16];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(pipe_ends) == 0);
    int sent[2] = {pipe_ends[1], pipe_ends[0]};
    CHECK(write(pair[0], "ab", 2) == 2 && send_files(pair[0], sent, 2, "cd", 2) == 2 && write(pair[0], "ef", 2) == 2);
    /* A read ends with the bytes that files came with. */
    int length = take_files(pair[1], files, &count, 8, MSG_CMSG_CLOEXEC, &answer, got);
    CHECK(length == 4 && count == 2 && answer == MSG_CMSG_CLOEXEC && !memcmp(got, "abcd", 4));
    CHECK(read(pair[1], got, 16) == 2 && !memcmp(got, "ef", 2));
    CHECK(fcntl(files[0], F_GETFD) == FD_CLOEXEC && close(pipe_ends[1]) == 0);
    CHECK(write(files[0], "through", 7) == 7 && read(pipe_ends[0], got, 16) == 7 && !memcmp(got, "through", 7));
    CHECK(close(files[0]) == 0 && close(files[1]) == 0 && read(pipe_ends[0], got, 16) == 0 && close(pipe_ends[0]) == 0);
    /* Without room they are dropped, and read() drops them. */
    CHECK(pipe(pipe_ends) == 0);
    sent[0] = sent[1] = pipe_ends[1];
    CHECK(send_files(pair[0], sent, 2, "x", 1) == 1 && send_files(pair[0], sent, 1, "y", 1) == 1);
    CHECK(take_files(pair[1], files, &count, 1, 0, &answer, got) == 1 && count == 1 && answer == MSG_CTRUNC);
    CHECK(close(files[0]) == 0 && read(pair[1], got, 16) == 1 && close(pipe_ends[1]) == 0);
    CHECK(read(pipe_ends[0], got, 1) == 0 && close(pipe_ends[0]) == 0);
    /* Files that never arrive are closed with the sockets. */
    CHECK(pipe(pipe_ends) == 0 && send_files(pair[0], pipe_ends + 1, 1, "x", 1) == 1 && close(pipe_ends[1]) == 0);
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0 && read(pipe_ends[0], got, 1) == 0 && close(pipe_ends[0]) == 0);
    /* A socket through a socket, to another process. */
    int inner[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, inner) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(inner[0]), close(inner[1]), close(pair[0]);
        length = take_files(pair[1], files, &count, 8, 0, &answer, got);
        _exit(length != 1 || count != 1 || write(files[0], "hi", 2) != 2);
    }
    CHECK(send_files(pair[0], inner + 1, 1, "x", 1) == 1 && close(inner[1]) == 0);
    CHECK(read(inner[0], got, 2) == 2 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(close(inner[0]) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    int closed = 999;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    FAILS(send_files(pair[0], &closed, 1, "x", 1), EBADF);
    /* A socket on its way through itself: Linux collects it, Quire refuses to send it. */
    count = send_files(pair[0], pair + 1, 1, "x", 1);
    CHECK(count == 1 || (count == -1 && errno == ETOOMANYREFS));
    return close(pair[0]) || close(pair[1]);
}

#define THREADS 8
#define ROUNDS 40

static void *serve(void *argument)
{
    int server = *(int *)argument;
    for (;;) {
        char block[1024];
        int fd = accept(server, NULL, NULL), count = 0;
        if (fd < 0)
            return errno == EINVAL ? NULL : argument;
        while ((count = read(fd, block, sizeof block)) > 0)
            if (write(fd, block, count) != count)
                return argument;
        if (count < 0 || close(fd))
            return argument;
    }
}

static void *use(void *argument)
{
    struct name name = *(struct name *)argument;
    for (int round = 0; round < ROUNDS; round++) {
        char block[1000], got[1000];
        memset(block, round, sizeof block);
        int fd = client(name);
        if (fd < 0)
            return argument;
        for (int turn = 0; turn < 5; turn++)
            if (write(fd, block, sizeof block) != sizeof block || recv(fd, got, sizeof got, MSG_WAITALL) != sizeof got ||
                memcmp(block, got, sizeof got))
                return argument;
        if (close(fd))
            return argument;
    }
    return NULL;
}

/* Many connections at once, by threads that share a listener. */
static int threads(void)
{
    unlink("socket");
    struct name names[2] = {v4("127.0.0.1", 0), local("socket", 7)};
    for (int kind = 0; kind < 2; kind++) {
        pthread_t servers[THREADS], users[THREADS];
        int server = listener(names[kind], 128);
        CHECK(server >= 0);
        struct name name = own(server);
        void *failed = NULL, *result;
        for (int at = 0; at < THREADS; at++)
            CHECK(!pthread_create(servers + at, NULL, serve, &server) && !pthread_create(users + at, NULL, use, &name));
        for (int at = 0; at < THREADS; at++)
            CHECK(!pthread_join(users[at], &result) && (failed = failed ? failed : result, 1));
        CHECK(shutdown(server, SHUT_RD) == 0);
        for (int at = 0; at < THREADS; at++)
            CHECK(!pthread_join(servers[at], &result) && (failed = failed ? failed : result, 1));
        CHECK(!failed && close(server) == 0);
    }
    return unlink("socket");
}

/* Processes that share a listener. */
static int forked(void)
{
    int server = listener(v4("127.0.0.1", 0), 16), status;
    struct name name = own(server);
    for (int at = 0; at < 3; at++)
        if (fork() == 0) {
            int fd;
            char got[8];
            while ((fd = accept(server, NULL, NULL)) >= 0) {
                if (read(fd, got, 8) != 4 || write(fd, got, 4) != 4)
                    _exit(1);
                close(fd);
            }
            _exit(errno != EINVAL);
        }
    for (int at = 0; at < 60; at++) {
        char got[8];
        int fd = client(name);
        CHECK(fd >= 0 && write(fd, "ping", 4) == 4 && read(fd, got, 8) == 4 && read(fd, got, 8) == 0);
        CHECK(close(fd) == 0);
    }
    CHECK(shutdown(server, SHUT_RDWR) == 0 && close(server) == 0);
    for (int at = 0; at < 3; at++)
        CHECK(wait(&status) > 0 && status == 0);
    return 0;
}

/* What libc does to resolve a name of this machine. */
static int resolve(void)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    CHECK(getaddrinfo("127.0.0.1", "80", &hints, &list) == 0 && list->ai_family == AF_INET);
    freeaddrinfo(list);
    hints.ai_flags |= AI_PASSIVE;
    CHECK(getaddrinfo(NULL, "80", &hints, &list) == 0 && list);
    freeaddrinfo(list);
    return 0;
}

#define SHARED_ROUNDS 2000
static int shared_set, shared_server;
static volatile int accepted;

/* Accepts one connection in each round, and does not look for another one before both were accepted. */
static void *accept_in_turn(void *unused)
{
    for (int round = 1; round <= SHARED_ROUNDS; round++) {
        struct epoll_event seen;
        int fd;
        do
            epoll_wait(shared_set, &seen, 1, -1);
        while ((fd = accept(shared_server, NULL, NULL)) < 0);
        close(fd);
        __atomic_fetch_add(&accepted, 1, __ATOMIC_SEQ_CST);
        while (accepted < 2 * round)
            usleep(100);
    }
    return unused;
}

/* A thread that waits for a set does not sleep while a file of it is ready, whatever another thread has taken. */
static int shared(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    pthread_t threads[2];
    shared_server = listener(v4("127.0.0.1", 0), 4);
    struct name name = own(shared_server);
    CHECK((shared_set = epoll_create1(0)) >= 0 && fcntl(shared_server, F_SETFL, O_NONBLOCK) == 0);
    CHECK(epoll_ctl(shared_set, EPOLL_CTL_ADD, shared_server, &event) == 0);
    for (int at = 0; at < 2; at++)
        CHECK(pthread_create(&threads[at], NULL, accept_in_turn, NULL) == 0);
    for (int round = 1; round <= SHARED_ROUNDS; round++) {
        int first = client(name), second = client(name);
        CHECK(first >= 0 && second >= 0);
        for (int tries = 0; accepted < 2 * round; tries++)
            CHECK(tries < 50000 && usleep(100) == 0);
        CHECK(close(first) == 0 && close(second) == 0);
    }
    for (int at = 0; at < 2; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(close(shared_set) == 0 && close(shared_server) == 0);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} CASES[] = {
    {"create", create}, {"idle", idle}, {"names", names}, {"versions", versions}, {"paths", paths},
    {"options", options}, {"timeouts", timeouts}, {"transfer", transfer}, {"full", full}, {"halves", halves},
    {"resets", resets}, {"ports", ports}, {"connecting", connecting}, {"signals", signals}, {"watched", watched}, {"rights", rights},
    {"threads", threads}, {"forked", forked}, {"resolve", resolve}, {"shared", shared},
};

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    int status = 2;
    char folder[] = "/tmp/sockets-XXXXXX";
    if (access("/tmp", W_OK) == 0 && count < 3 && (!mkdtemp(folder) || chdir(folder)))
        return 1;
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        if (strcmp(name, CASES[at].name) && strcmp(name, "all"))
            continue;
        int failed = CASES[at].run();
        if (failed)
            printf("%s failed\n", CASES[at].name);
        fflush(stdout);
        status = (status == 2 ? 0 : status) | !!failed;
    }
    rmdir(folder);
    return status;
}
