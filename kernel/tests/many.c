/* So many processes or mounts that a list of them needs more memory in a row than the kernel's heap gives: more than
 * 8192 bytes, by the option `fail-large=8192`. A call that would make the list longer fails, and no more. Runs as the
 * first process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

enum { PLACES = 20, MOST = 1500, FIT = 1024 };

/* Reads a file to its end. Returns whether there was memory for it. */
static int reads(const char *path)
{
    char text[4096];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 || errno == ENOMEM);
    if (file < 0)
        return 0;
    ssize_t bytes;
    while ((bytes = read(file, text, sizeof text)) > 0)
        ;
    CHECK(bytes == 0 || errno == ENOMEM);
    CHECK(close(file) == 0);
    return bytes == 0;
}

static void mounts(void)
{
    char place[PLACES][16];
    for (int i = 0; i < PLACES; i++) {
        snprintf(place[i], sizeof place[i], "/place%d", i);
        CHECK(mkdir(place[i], 0755) == 0);
    }
    int mounted = 0;
    while (mounted < MOST && mount("many", place[mounted % PLACES], "tmpfs", 0, NULL) == 0)
        mounted++;
    CHECK(mounted > FIT / 2 && mounted < FIT && errno == ENOMEM);
    reads("/proc/mounts");
    sync();
    // One that goes makes room for another one.
    const char *last = place[(mounted - 1) % PLACES];
    CHECK(umount(last) == 0);
    CHECK(mount("many", last, "tmpfs", 0, NULL) == 0);
    CHECK(mount("many", last, "tmpfs", 0, NULL) < 0 && errno == ENOMEM);
}

/* Two children have half of the processes each, and say how many they are. */
static int make_processes(pid_t parents[2], int ends[2])
{
    int numbers[2], both = 0;
    CHECK(pipe(numbers) == 0);
    for (int i = 0; i < 2; i++) {
        int go_on[2];
        CHECK(pipe(go_on) == 0);
        CHECK((parents[i] = fork()) >= 0);
        if (parents[i] == 0) {
            int made = 0;
            char byte;
            while (made < MOST / 2) {
                pid_t child = fork();
                if (child == 0)
                    for (;;)
                        pause();
                CHECK(child > 0 || errno == ENOMEM);
                if (child < 0)
                    break;
                made++;
            }
            CHECK(write(numbers[1], &made, sizeof made) == sizeof made);
            CHECK(close(go_on[1]) == 0 && read(go_on[0], &byte, 1) == 1);
            _exit(0);
        }
        int made;
        CHECK(read(numbers[0], &made, sizeof made) == sizeof made);
        CHECK(close(go_on[0]) == 0);
        ends[i] = go_on[1];
        both += made;
    }
    return both;
}

/* The parents end, so the first process has all of their children. */
static void orphans(int is_shown)
{
    pid_t parents[2];
    int ends[2], made = make_processes(parents, ends), ended = 0;
    if (is_shown)
        reads("/proc/meminfo");
    for (int i = 0; i < 2; i++)
        CHECK(write(ends[i], "", 1) == 1 && waitpid(parents[i], NULL, 0) == parents[i]);
    CHECK(kill(-1, SIGKILL) == 0);
    while (wait(NULL) > 0)
        ended++;
    CHECK(errno == ECHILD && ended == made);
    // The parents were two of those that fit.
    CHECK(made > FIT / 2 && made < FIT);
    CHECK(reads("/proc/meminfo"));
}

int main(int count, char **words)
{
    CHECK(count == 2);
    if (!strcmp(words[1], "mounts"))
        mounts();
    else
        orphans(!strcmp(words[1], "shown"));
    return 0;
}
