/* Starts a program in a machine that has just started as if it ran a second time: all files are in the page cache, and
 * private memory comes in folios of one size.
 *
 *   start KIB PROGRAM ARGUMENTS...
 *
 * The program reads and writes /dev/null. The log counts faults by program, so those of this one do not matter. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLIOS "/sys/kernel/mm/transparent_hugepage"

static void set(const char *path, const char *text)
{
    int file = open(path, O_WRONLY);
    if (file >= 0 && write(file, text, strlen(text)) < 0)
        perror(path);
    close(file);
}

/* Brings all pages of a file into the page cache. */
static int read_in(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)place;
    if (kind == FTW_D && (!strcmp(path, "/proc") || !strcmp(path, "/sys") || !strcmp(path, "/dev")))
        return FTW_SKIP_SUBTREE;
    if (kind != FTW_F || !S_ISREG(status->st_mode) || status->st_size == 0)
        return FTW_CONTINUE;
    int file = open(path, O_RDONLY);
    void *at = mmap(NULL, status->st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    close(file);
    if (at == MAP_FAILED)
        perror(path);
    else
        munmap(at, status->st_size);
    return FTW_CONTINUE;
}

int main(int count, char **arguments)
{
    glob_t sizes;
    char chosen[100];
    if (count < 3)
        return 2;
    snprintf(chosen, sizeof chosen, FOLIOS "/hugepages-%skB/enabled", arguments[1]);
    set(FOLIOS "/enabled", "never");
    if (glob(FOLIOS "/hugepages-*/enabled", 0, NULL, &sizes) == 0)
        for (size_t i = 0; i < sizes.gl_pathc; i++)
            set(sizes.gl_pathv[i], strcmp(sizes.gl_pathv[i], chosen) ? "never" : "always");
    nftw("/", read_in, 16, FTW_PHYS | FTW_ACTIONRETVAL);
    int nothing = open("/dev/null", O_RDWR);
    for (int descriptor = 0; descriptor < 3; descriptor++)
        dup2(nothing, descriptor);
    if (nothing > 2)
        close(nothing);
    execv(arguments[2], arguments + 2);
    return 127;
}
