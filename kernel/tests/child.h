/* Checks, and how a child ended, for the tests of processes and of threads. */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

/* Waits for a child and returns its status word. */
static int status_of(pid_t child)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static int exits_with(pid_t child, int expected)
{
    int status = status_of(child);
    return WIFEXITED(status) && WEXITSTATUS(status) == expected;
}

static int is_killed_by(pid_t child, int expected)
{
    int status = status_of(child);
    return WIFSIGNALED(status) && WTERMSIG(status) == expected;
}
