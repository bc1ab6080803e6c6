/* remap_file_pages: pages of a shared mapping show other pages of its file. */
#include "case.h"

#include <sys/shm.h>

#define PAGES 16

static long remap(char *at, size_t bytes, int prot, size_t page, int flags)
{
    return syscall(SYS_remap_file_pages, at, bytes, prot, page, flags);
}

static void number_pages(char *memory)
{
    for (int page = 0; page < PAGES; page++)
        memset(memory + page * PAGE, page + 1, PAGE);
}

/* Reverses the order of pairs of pages, and stores through the new places. */
static void reverse(char *memory)
{
    number_pages(memory);
    for (int page = 0; page < PAGES; page += 2)
        OK(remap(memory + page * PAGE, 2 * PAGE, 0, PAGES - page - 2, 0));
    for (int page = 0; page < PAGES; page++) {
        int shown = PAGES - page / 2 * 2 - 2 + page % 2;
        CHECK(memory[page * PAGE] == shown + 1 && memory[page * PAGE + PAGE - 1] == shown + 1);
        memory[page * PAGE + 1] = shown + 100;
    }
    /* A window of one page over the whole file, backwards. */
    for (int page = PAGES - 1; page >= 0; page--) {
        OK(remap(memory, PAGE, 0, page, page % 2 ? MAP_NONBLOCK : 0));
        CHECK(memory[0] == page + 1 && memory[1] == page + 100);
    }
}

static void with_memfd(void)
{
    int file = memfd_create("remap", 0);
    OK(ftruncate(file, PAGES * PAGE));
    char *memory = mmap(NULL, PAGES * PAGE, RW, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED);
    reverse(memory);
    char bytes[2];
    for (int page = 0; page < PAGES; page++) {
        CHECK(pread(file, bytes, 2, page * PAGE) == 2);
        CHECK(bytes[0] == page + 1 && bytes[1] == page + 100);
    }
    /* Behind the end of the file. */
    OK(remap(memory, PAGE, 0, PAGES, 0));
}

/* A new file, and its pages mapped. The name is filled in. */
static int map_new_file(char *name, char **memory)
{
    int file = mkstemp(name);
    CHECK(file >= 0);
    OK(ftruncate(file, PAGES * PAGE));
    *memory = mmap(NULL, PAGES * PAGE, RW, MAP_SHARED, file, 0);
    CHECK(*memory != MAP_FAILED);
    return file;
}

static void with_file(void)
{
    char name[] = "/tmp/remapXXXXXX", *memory;
    OK(close(map_new_file(name, &memory)));
    reverse(memory);
    OK(unlink(name));
}

/* What the mapping may not do, its parts may not either. */
static void keeps_rights(void)
{
    char name[] = "/tmp/remapXXXXXX", *memory;
    int file = map_new_file(name, &memory);
    number_pages(memory);
    OK(munmap(memory, PAGES * PAGE));
    int readable = open(name, O_RDONLY);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, readable, 0);
    CHECK(memory != MAP_FAILED);
    FAILS(EINVAL, remap(memory + PAGE, PAGE, 0, 7, 0));
    CHECK(memory[PAGE] == 2);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED);
    OK(remap(memory + PAGE, PAGE, 0, 7, 0));
    CHECK(memory[PAGE] == 8 && memory[2 * PAGE] == 3 && signal_of(memory + PAGE, true) == SIGSEGV);
    OK(mprotect(memory + PAGE, PAGE, RW));
    memory[PAGE] = 9;
    CHECK(memory[7 * PAGE] == 9);
    OK(unlink(name));
}

static void with_anonymous(void)
{
    char *memory = map(PAGES * PAGE, RW, SHARED);
    number_pages(memory);
    OK(remap(memory + PAGE, 2 * PAGE, 0, 9, 0));
    CHECK(memory[PAGE] == 10 && memory[2 * PAGE] == 11 && memory[3 * PAGE] == 4);
    memory[PAGE] = 77;
    CHECK(memory[9 * PAGE] == 77);
    /* Over the edges of what is now three mappings of one file. */
    OK(remap(memory, 5 * PAGE, 0, 0, 0));
    CHECK(memory[PAGE] == 2 && memory[2 * PAGE] == 3 && memory[4 * PAGE] == 5 && memory[9 * PAGE] == 77);
}

static void with_segment(void)
{
    int segment = shmget(IPC_PRIVATE, PAGES * PAGE, 0600);
    CHECK(segment >= 0);
    char *memory = shmat(segment, NULL, 0);
    CHECK(memory != (char *)-1);
    OK(shmctl(segment, IPC_RMID, NULL));
    reverse(memory);
    struct shmid_ds found;
    OK(munmap(memory, PAGES * PAGE));
    FAILS(EINVAL, shmctl(segment, IPC_STAT, &found));
}

/* A segment that was removed goes with its last attachment. */
static void with_removed_segment(void)
{
    int segment = shmget(IPC_PRIVATE, PAGE, 0600);
    CHECK(segment >= 0);
    char *memory = shmat(segment, NULL, 0);
    CHECK(memory != (char *)-1);
    OK(remap(memory, PAGE, 0, 0, 0));
    OK(shmctl(segment, IPC_RMID, NULL));
    struct shmid_ds found;
    OK(shmctl(segment, IPC_STAT, &found));
    FAILS(EINVAL, remap(memory, PAGE, 0, 0, 0));
    CHECK(signal_of(memory, false) == SIGSEGV);
    FAILS(EINVAL, shmctl(segment, IPC_STAT, &found));
}

static void errors(void)
{
    char *memory = map(PAGES * PAGE, RW, SHARED);
    char *private = map(PAGE, RW, ANON);
    FAILS(EINVAL, remap(memory, PAGE, PROT_READ, 0, 0));
    FAILS(EINVAL, remap(memory, 0, 0, 0, 0));
    FAILS(EINVAL, remap(memory, PAGE - 1, 0, 0, 0));
    FAILS(EINVAL, remap(memory, PAGE, 0, ~0UL, 0));
    FAILS(EINVAL, remap((char *)-PAGE, PAGE, 0, 0, 0));
    FAILS(EINVAL, remap(private, PAGE, 0, 0, 0));
    /* The start is rounded down, and so is the length. */
    OK(remap(memory + 5, 2 * PAGE - 1, 0, 3, 0));
    number_pages(memory);
    CHECK(memory[0] == 4 && memory[PAGE] == 2);
    OK(munmap(memory + 4 * PAGE, PAGE));
    FAILS(EINVAL, remap(memory + 4 * PAGE, PAGE, 0, 0, 0));
    FAILS(EINVAL, remap(memory + 2 * PAGE, 3 * PAGE, 0, 0, 0));
    OK(mprotect(memory + 2 * PAGE, PAGE, PROT_READ));
    FAILS(EINVAL, remap(memory + PAGE, 2 * PAGE, 0, 0, 0));
    CHECK(memory[PAGE] == 2 && memory[2 * PAGE] == 3);
}

MAIN(CASE(with_memfd), CASE(with_file), CASE(keeps_rights), CASE(with_anonymous), CASE(with_segment), CASE(with_removed_segment), CASE(errors))
