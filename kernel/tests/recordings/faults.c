/* Takes some thousands of faults of each kind: what a program can do to memory, a few times each. The same each time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL

static sigjmp_buf recovery;

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static char *map(size_t pages, int flags)
{
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    must(at != MAP_FAILED, "mmap");
    return at;
}

static void store(char *at, size_t pages, size_t step)
{
    for (size_t i = 0; i < pages; i += step)
        *(volatile char *)(at + i * PAGE) = 1;
}

static void load(const char *at, size_t pages, size_t step)
{
    for (size_t i = 0; i < pages; i += step)
        (void)*(const volatile char *)(at + i * PAGE);
}

/* First reads and writes, memory that is given back, memory that moves. */
static void private_memory(void)
{
    char *at = map(8000, MAP_PRIVATE);
    load(at, 4000, 1);
    store(at, 8000, 2);
    must(madvise(at + 4000 * PAGE, 2000 * PAGE, MADV_DONTNEED) == 0, "madvise");
    store(at + 4000 * PAGE, 2000, 1);
    must(mprotect(at, 1000 * PAGE, PROT_READ) == 0, "mprotect");
    must(mprotect(at, 1000 * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
    store(at, 1000, 1);
    at = mremap(at, 8000 * PAGE, 9000 * PAGE, MREMAP_MAYMOVE);
    must(at != MAP_FAILED, "mremap");
    store(at, 9000, 3);
    must(munmap(at + 100 * PAGE, 4000 * PAGE) == 0, "munmap");
    store(map(500, MAP_PRIVATE | MAP_POPULATE), 500, 1);
    char *heap = sbrk(1000 * PAGE);
    store(heap, 1000, 1);
}

/* A child copies what it writes; the parent has the rest to itself when the child is gone. */
static void children(void)
{
    char *at = map(6000, MAP_PRIVATE);
    store(at, 6000, 1);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            store(at, 2000, 1);
            store(map(300, MAP_PRIVATE), 300, 1);
            _exit(0);
        }
        must(waitpid(child, NULL, 0) == child, "waitpid");
        store(at, 6000, 2);
    }
}

static void files(const char *path)
{
    int file = open(path, O_RDONLY);
    must(file >= 0, path);
    char *at = mmap(NULL, 4000 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    must(at != MAP_FAILED, "mmap");
    load(at, 4000, 1);
    store(at, 4000, 2);
    must(madvise(at, 4000 * PAGE, MADV_DONTNEED) == 0, "madvise");
    load(at, 4000, 1);
    close(file);
    int memory = memfd_create("shared", 0);
    must(memory >= 0 && ftruncate(memory, 3000 * PAGE) == 0, "memfd_create");
    for (int i = 0; i < 2; i++) {
        at = mmap(NULL, 3000 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        must(at != MAP_FAILED, "mmap");
        /* At first no page is there. */
        if (i == 0)
            store(at, 3000, 1);
        else
            load(at, 3000, 1);
    }
}

static void *thread(void *part)
{
    store(part, 1000, 1);
    return NULL;
}

static void threads(void)
{
    char *at = map(4000, MAP_PRIVATE);
    pthread_t all[4];
    for (int i = 0; i < 4; i++)
        must(pthread_create(&all[i], NULL, thread, at + i * 1000 * PAGE) == 0, "pthread_create");
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
}

static void recover(int signal)
{
    (void)signal;
    siglongjmp(recovery, 1);
}

/* Accesses to addresses where nothing is mapped. */
static void signals(void)
{
    struct sigaction action = { .sa_handler = recover, .sa_flags = SA_NODEFER };
    must(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
    char *at = map(1000, MAP_PRIVATE);
    must(munmap(at, 1000 * PAGE) == 0, "munmap");
    for (volatile size_t i = 0; i < 1000; i++)
        if (sigsetjmp(recovery, 0) == 0)
            store(at + i * PAGE, 1, 1);
}

int main(int count, char **arguments)
{
    must(count == 2, "the path of a file of 16 MiB");
    private_memory();
    children();
    files(arguments[1]);
    threads();
    signals();
    return 0;
}
