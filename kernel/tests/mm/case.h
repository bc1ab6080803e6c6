/* What the tests of memory calls share. Each case runs in a child, so that the kernel checks its address space at its
 * end, and so that cases do not disturb each other. The same programs run on Linux.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define SHARED (MAP_SHARED | MAP_ANONYMOUS)

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)
/* The call must fail with this error. */
#define FAILS(error, call) \
    do { \
        errno = 0; \
        long got = (long)(call); \
        if (got != -1 || errno != (error)) { \
            printf("%s:%d: %s: %ld, errno %d instead of %d\n", __FILE__, __LINE__, #call, got, errno, (error)); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)
#define OK(call) CHECK((call) == 0)

struct test_case {
    const char *name;
    void (*run)(void);
};

static inline char *map(size_t bytes, int prot, int flags)
{
    char *memory = mmap(NULL, bytes, prot, flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static inline bool is_quire(void)
{
    int file = open("/proc/version", O_RDONLY);
    char text[256] = "quire";
    if (file >= 0) {
        ssize_t bytes = read(file, text, sizeof text - 1);
        text[bytes > 0 ? bytes : 0] = 0;
        close(file);
    }
    return strstr(text, "uire") != NULL;
}

/* The signal that the access raises in a child; 0 for none. */
static inline int signal_of(volatile char *at, bool store)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (store)
            *at = 1;
        else
            (void)*at;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* The status of a child that runs the function. */
static inline int in_child(void (*run)(void *), void *argument)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run(argument);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static inline int run_cases(const struct test_case *cases, size_t count, int arguments, char **names)
{
    int failed = 0;
    for (size_t at = 0; at < count; at++) {
        if (arguments > 1 && strcmp(names[1], cases[at].name))
            continue;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            cases[at].run();
            fflush(stdout);
            _exit(0);
        }
        int status = -1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            printf("FAILED %s (status %#x)\n", cases[at].name, status);
            failed = 1;
        }
    }
    return failed;
}

#define CASE(name) { #name, name }
#define MAIN(...) \
    int main(int count, char **arguments) \
    { \
        static const struct test_case cases[] = { __VA_ARGS__ }; \
        return run_cases(cases, sizeof cases / sizeof *cases, count, arguments); \
    }
