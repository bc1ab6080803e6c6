/* Files of memory: sharing, msync, seals, holes, and huge pages. */
#include "case.h"
#include <sys/shm.h>

static int memory_file(unsigned flags, size_t bytes)
{
    int file = memfd_create("test", flags);
    CHECK(file >= 0);
    OK(ftruncate(file, bytes));
    return file;
}

static char *map_file(int file, size_t bytes, int prot, int flags)
{
    char *memory = mmap(NULL, bytes, prot, flags, file, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void shared(void)
{
    int file = memory_file(0, 4 * PAGE);
    char *one = map_file(file, 4 * PAGE, RW, MAP_SHARED), *two = map_file(file, 4 * PAGE, PROT_READ, MAP_SHARED);
    char *private = map_file(file, 4 * PAGE, RW, MAP_PRIVATE), text[8] = { 0 };
    strcpy(one, "hello");
    CHECK(!strcmp(two, "hello") && !strcmp(private, "hello"));
    CHECK(pread(file, text, 6, 0) == 6 && !strcmp(text, "hello"));
    strcpy(private, "other");
    CHECK(!strcmp(one, "hello"));
    CHECK(pwrite(file, "HELLO", 6, 0) == 6 && !strcmp(two, "HELLO") && !strcmp(private, "other"));
    OK(msync(one, 4 * PAGE, MS_SYNC));
    OK(msync(one, 4 * PAGE, MS_ASYNC));
    unsigned char in[4];
    OK(mincore(two, 4 * PAGE, in));
    CHECK(in[0] == 1 && in[1] == 0);
    OK(madvise(one, PAGE, MADV_REMOVE));
    CHECK(one[0] == 0 && two[0] == 0 && !strcmp(private, "other"));
    OK(ftruncate(file, PAGE));
    CHECK(signal_of(one + PAGE, false) == SIGBUS && signal_of(private + PAGE, true) == SIGBUS);
    CHECK(signal_of(one, true) == 0 && signal_of(two, true) == SIGSEGV);
    OK(close(file));
    strcpy(one, "still");
    CHECK(!strcmp(two, "still"));
}

/* Only a mapping that may store keeps the file from being sealed. */
static void seals_and_copies(void)
{
    int file = memory_file(MFD_ALLOW_SEALING, PAGE);
    map_file(file, PAGE, RW, MAP_PRIVATE);
    OK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
}

static void seals(void)
{
    int file = memory_file(MFD_ALLOW_SEALING, 2 * PAGE);
    char *memory = map_file(file, PAGE, RW, MAP_SHARED);
    FAILS(EBUSY, fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
    OK(munmap(memory, PAGE));
    OK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK));
    CHECK(fcntl(file, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK));
    FAILS(EPERM, mmap(NULL, PAGE, RW, MAP_SHARED, file, 0));
    memory = map_file(file, PAGE, PROT_READ, MAP_SHARED);
    FAILS(EACCES, mprotect(memory, PAGE, RW));
    memory = map_file(file, PAGE, RW, MAP_PRIVATE);
    memory[0] = 1;
    FAILS(EPERM, ftruncate(file, PAGE));
    FAILS(EPERM, write(file, "x", 1));
    OK(ftruncate(file, 3 * PAGE));
    /* Only what is open for writing adds seals. */
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int reader = open(path, O_RDONLY);
    CHECK(reader >= 0 && fcntl(reader, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK));
    FAILS(EPERM, fcntl(reader, F_ADD_SEALS, F_SEAL_GROW));
    OK(close(reader));
    OK(fcntl(file, F_ADD_SEALS, F_SEAL_GROW));
    FAILS(EPERM, ftruncate(file, 4 * PAGE));
}

static void no_huge_pages(void)
{
    FAILS(ENODEV, memfd_create("test", MFD_HUGETLB | 5 << 26));
    FAILS(EINVAL, memfd_create("test", 5 << 26));
    int file = memory_file(MFD_HUGETLB, 4 * MIB);
    FAILS(EINVAL, ftruncate(file, PAGE));
    FAILS(EINVAL, write(file, "x", 1));
    FAILS(ENOMEM, mmap(NULL, 2 * MIB, RW, MAP_SHARED, file, 0));
    FAILS(EINVAL, mmap(NULL, 2 * MIB, RW, MAP_SHARED, file, PAGE));
    CHECK(mmap(NULL, PAGE, RW, MAP_PRIVATE | MAP_NORESERVE | MAP_HUGETLB, file, 0) != MAP_FAILED);
}

static long number(const char *path)
{
    char text[32] = { 0 };
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0);
    close(file);
    return atol(text);
}

static void resize(const char *pages)
{
    int file = open("/proc/sys/vm/nr_hugepages", O_WRONLY);
    CHECK(file >= 0 && write(file, pages, strlen(pages)) == (ssize_t)strlen(pages));
    close(file);
}

#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"

/* Settings of a machine that others use stay as they are: only the kernel runs this. */
static void huge_pages(void)
{
    if (!is_quire())
        return;
    resize("8");
    CHECK(number("/proc/sys/vm/nr_hugepages") == 8 && number(POOL "free_hugepages") == 8);
    char *memory = mmap(NULL, 4 * MIB, RW, ANON | MAP_HUGETLB, -1, 0);
    CHECK(memory != MAP_FAILED && number(POOL "resv_hugepages") == 2);
    memory[0] = memory[2 * MIB] = 1;
    CHECK(number(POOL "free_hugepages") == 6 && number(POOL "resv_hugepages") == 0);
    FAILS(EINVAL, munmap(memory, PAGE));
    OK(munmap(memory, 2 * MIB));
    CHECK(number(POOL "free_hugepages") == 7);
    int file = memory_file(MFD_HUGETLB | 21u << 26, 4 * MIB);
    char *one = map_file(file, 4 * MIB, RW, MAP_SHARED), *two = map_file(file, 4 * MIB, RW, MAP_SHARED);
    strcpy(one + 3 * MIB, "huge");
    CHECK(!strcmp(two + 3 * MIB, "huge"));
    char text[8] = { 0 };
    CHECK(pread(file, text, 5, 3 * MIB) == 5 && !strcmp(text, "huge"));
    FAILS(ENOMEM, mmap(NULL, 16 * MIB, RW, ANON | MAP_HUGETLB, -1, 0));
    OK(ftruncate(file, 2 * MIB));
    CHECK(signal_of(two + 3 * MIB, false) == SIGBUS);
    OK(munmap(one, 4 * MIB));
    OK(munmap(two, 4 * MIB));
    OK(close(file));
    CHECK(number(POOL "free_hugepages") == 7);
    int id = shmget(IPC_PRIVATE, 3 * MIB, 0600 | SHM_HUGETLB);
    CHECK(id >= 0 && number(POOL "resv_hugepages") == 2);
    one = shmat(id, NULL, 0);
    CHECK(one != (void *)-1 && (uintptr_t)one % (2 * MIB) == 0);
    one[0] = one[4 * MIB - 1] = 1;
    OK(shmctl(id, IPC_RMID, NULL));
    OK(shmdt(one));
    OK(munmap(memory + 2 * MIB, 2 * MIB));
    CHECK(number(POOL "free_hugepages") == 8 && number(POOL "resv_hugepages") == 0);
    resize("0");
    CHECK(number("/proc/sys/vm/nr_hugepages") == 0);
}

MAIN(CASE(shared), CASE(seals), CASE(seals_and_copies), CASE(no_huge_pages), CASE(huge_pages))
