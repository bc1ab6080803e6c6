/* Checks, how a child ended, and cases in processes of their own. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
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

static inline int exits_with(pid_t child, int expected)
{
    int status = status_of(child);
    return WIFEXITED(status) && WEXITSTATUS(status) == expected;
}

static inline int is_killed_by(pid_t child, int expected)
{
    int status = status_of(child);
    return WIFSIGNALED(status) && WTERMSIG(status) == expected;
}

/* Blocks this signal in the calling thread. Returns the set of it alone. */
static inline sigset_t blocked(int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    return set;
}

struct test_case {
    const char *name;
    void (*run)(void);
};

/* Runs the case with this name, or with `all` every one, each in a process of its own that is killed after so many
   seconds. Returns the exit code: 0 if all passed, 1 if one failed, 2 without such a case. */
static inline int run_cases(const struct test_case *cases, size_t count, const char *name, unsigned patience)
{
    int code = 2;
    for (size_t at = 0; at < count; at++) {
        if (strcmp(name, cases[at].name) && strcmp(name, "all"))
            continue;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            alarm(patience);
            cases[at].run();
            _exit(0);
        }
        int status = status_of(child);
        if (status)
            printf("%s failed: status %#x\n", cases[at].name, status);
        fflush(stdout);
        code = (code == 2 ? 0 : code) | !!status;
    }
    return code;
}
