/* mmap, munmap, mprotect, mremap, brk. */
#include "case.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MAP_SHARED_VALIDATE
#define MAP_SHARED_VALIDATE 3
#endif
#define HUGE_SHIFT 26

static void *try_map(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

static void mmap_errors(void)
{
    FAILS(EINVAL, try_map(0, 0, RW, ANON, -1, 0));
    FAILS(EINVAL, try_map(0, PAGE, RW, MAP_ANONYMOUS, -1, 0));
    FAILS(EINVAL, try_map(0, PAGE, RW, MAP_ANONYMOUS | MAP_SHARED_VALIDATE, -1, 0));
    FAILS(EINVAL, try_map(0, PAGE, RW, ANON, -1, 1));
    FAILS(EINVAL, try_map((void *)1, PAGE, RW, ANON | MAP_FIXED, -1, 0));
    FAILS(EINVAL, try_map(0, PAGE, RW, SHARED | MAP_GROWSDOWN, -1, 0));
    FAILS(EINVAL, try_map(0, PAGE, RW, ANON | MAP_HUGETLB | 5 << HUGE_SHIFT, -1, 0));
    FAILS(EINVAL, try_map(0, 2 * MIB, RW, ANON | MAP_HUGETLB | 31u << HUGE_SHIFT, -1, 0));
    FAILS(ENOMEM, try_map(0, -1UL, RW, ANON, -1, 0));
    FAILS(ENOMEM, try_map(0, 1UL << 47, RW, ANON | MAP_NORESERVE, -1, 0));
    FAILS(ENOMEM, try_map((void *)(1UL << 56), PAGE, RW, ANON | MAP_FIXED, -1, 0));
    FAILS(EPERM, try_map((void *)0, PAGE, RW, ANON | MAP_FIXED, -1, 0) == (void *)0 ? (errno = EPERM, -1) : -1);
    FAILS(EBADF, try_map(0, PAGE, RW, MAP_PRIVATE, 77, 0));
    FAILS(EBADF, try_map(0, 0, RW, MAP_PRIVATE, 77, 0));
    FAILS(EINVAL, munmap((void *)1, PAGE));
    FAILS(EINVAL, munmap((void *)PAGE, 0));
    FAILS(EINVAL, munmap((void *)PAGE, -1UL));
    FAILS(EINVAL, munmap((void *)(1UL << 56), PAGE));
}

/* Files that are open for reading. */
static void mmap_file_errors(void)
{
    int file = open("/proc/self/exe", O_RDONLY);
    if (file < 0)
        file = open("/bin/map", O_RDONLY);
    CHECK(file >= 0);
    FAILS(EACCES, try_map(0, PAGE, RW, MAP_SHARED, file, 0));
    FAILS(EINVAL, try_map(0, PAGE, PROT_READ, 0, file, 0));
    FAILS(EINVAL, try_map(0, PAGE, PROT_READ, MAP_PRIVATE, file, 7));
    FAILS(EINVAL, try_map(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_GROWSDOWN, file, 0));
    FAILS(EINVAL, try_map(0, 2 * MIB, PROT_READ, MAP_PRIVATE | MAP_HUGETLB, file, 0));
    FAILS(EINVAL, try_map(0, 0, PROT_READ, MAP_PRIVATE, file, 0));
    FAILS(EOVERFLOW, try_map(0, PAGE * 2, PROT_READ, MAP_PRIVATE, file, -PAGE));
    FAILS(EOPNOTSUPP, try_map(0, PAGE, PROT_READ, MAP_SHARED_VALIDATE | 0x40000000 | 0x80000, file, 0));
    FAILS(EOPNOTSUPP, try_map(0, PAGE, PROT_READ, MAP_SHARED_VALIDATE | 0x80000, file, 0));
    char *shared = try_map(0, PAGE, PROT_READ, MAP_SHARED_VALIDATE, file, 0);
    CHECK(shared != MAP_FAILED && !memcmp(shared, "\177ELF", 4));
    FAILS(EACCES, mprotect(shared, PAGE, RW));
    OK(mprotect(shared, PAGE, PROT_READ | PROT_EXEC));
    char *private = try_map(0, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(private != MAP_FAILED);
    OK(mprotect(private, PAGE, RW));
    private[0] = 1;
    CHECK(shared[0] == 0x7f);
    OK(munmap(shared, PAGE));
    OK(munmap(private, PAGE));
}

static void placement(void)
{
    char *block = map(16 * PAGE, RW, ANON);
    memset(block, 1, 16 * PAGE);
    FAILS(EEXIST, try_map(block + PAGE, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0));
    CHECK(try_map(block + PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0) == block + PAGE);
    CHECK(block[0] == 1 && block[PAGE] == 0 && block[2 * PAGE] == 1);
    OK(munmap(block + 4 * PAGE, 2 * PAGE));
    CHECK(try_map(block + 4 * PAGE, 2 * PAGE, RW, ANON, -1, 0) == block + 4 * PAGE);
    OK(munmap(block + 4 * PAGE, 2 * PAGE));
    CHECK(try_map(block + 4 * PAGE, 2 * PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == block + 4 * PAGE);
    char *elsewhere = try_map(block, PAGE, RW, ANON, -1, 0);
    CHECK(elsewhere != MAP_FAILED && elsewhere != block);
    char *low = try_map(0, MIB, RW, ANON | MAP_32BIT, -1, 0);
    CHECK(low != MAP_FAILED && (uintptr_t)low + MIB <= 1UL << 31);
    memset(low, 2, MIB);
    CHECK(try_map(0, PAGE, RW, ANON | MAP_STACK | MAP_NORESERVE, -1, 0) != MAP_FAILED);
    OK(munmap(block, 16 * PAGE));
    CHECK(signal_of(block, false) == SIGSEGV);
}

static void populate(void)
{
    unsigned char in[4];
    char *memory = map(4 * PAGE, RW, ANON | MAP_POPULATE);
    OK(mincore(memory, 4 * PAGE, in));
    CHECK(in[0] == 1 && in[1] == 1 && in[2] == 1 && in[3] == 1);
    char *empty = map(4 * PAGE, RW, ANON);
    OK(mincore(empty, 4 * PAGE, in));
    CHECK(in[0] == 0 && in[1] == 0 && in[2] == 0 && in[3] == 0);
    char *shared = map(4 * PAGE, RW, SHARED | MAP_POPULATE);
    OK(mincore(shared, 4 * PAGE, in));
    CHECK(in[0] == 1 && in[3] == 1);
}

static void write_shared(void *memory)
{
    strcpy(memory, "child");
}

static void sharing(void)
{
    char *shared = map(PAGE, RW, SHARED), *private = map(PAGE, RW, ANON);
    strcpy(private, "parent");
    CHECK(in_child(write_shared, shared) == 0 && !strcmp(shared, "child"));
    CHECK(in_child(write_shared, private) == 0 && !strcmp(private, "parent"));
}

static void grows_down(void)
{
    char *block = map(2 * MIB + PAGE, PROT_NONE, ANON | MAP_NORESERVE);
    OK(munmap(block, 2 * MIB + PAGE));
    char *top = block + 2 * MIB;
    CHECK(try_map(top, PAGE, RW, ANON | MAP_GROWSDOWN | MAP_FIXED, -1, 0) == top);
    for (int page = 1; page < 64; page++)
        top[-page * (long)PAGE] = page;
    FAILS(EINVAL, mprotect(map(PAGE, RW, ANON), PAGE, PROT_READ | PROT_GROWSDOWN));
    OK(mprotect(top, PAGE, PROT_READ | PROT_GROWSDOWN));
    CHECK(signal_of(top - 32 * PAGE, true) == SIGSEGV);
    CHECK(top[-32 * (long)PAGE] == 32);
    FAILS(EINVAL, mprotect(top, PAGE, RW | PROT_GROWSDOWN | PROT_GROWSUP));
    FAILS(EINVAL, mprotect(top, PAGE, RW | PROT_GROWSUP));
}

static void protect(void)
{
    char *block = map(4 * PAGE, RW, ANON);
    block[0] = 1;
    FAILS(EINVAL, mprotect(block + 1, PAGE, RW));
    OK(mprotect(block, 0, RW));
    FAILS(EINVAL, mprotect(block, PAGE, 0x10));
    FAILS(ENOMEM, mprotect(block, -PAGE, RW));
    OK(munmap(block + 2 * PAGE, PAGE));
    FAILS(ENOMEM, mprotect(block, 4 * PAGE, PROT_READ));
    CHECK(signal_of(block, true) == SIGSEGV && signal_of(block, false) == 0);
    CHECK(signal_of(block + 3 * PAGE, true) == 0);
    OK(mprotect(block, PAGE, PROT_NONE));
    CHECK(signal_of(block, false) == SIGSEGV);
    OK(mprotect(block, PAGE, RW));
    CHECK(block[0] == 1);
    FAILS(EINVAL, syscall(SYS_pkey_mprotect, block, PAGE, RW, 99));
    OK(syscall(SYS_pkey_mprotect, block, PAGE, RW, -1));
    FAILS(EINVAL, syscall(SYS_pkey_alloc, 1, 0));
    FAILS(EINVAL, syscall(SYS_pkey_alloc, 0, 8));
    FAILS(EINVAL, syscall(SYS_pkey_free, 7));
}

static void remap(void)
{
    char *block = map(4 * PAGE, RW, ANON);
    strcpy(block, "here");
    FAILS(EINVAL, mremap(block + 1, PAGE, PAGE, 0));
    FAILS(EINVAL, mremap(block, PAGE, PAGE, 8));
    FAILS(EINVAL, syscall(SYS_mremap, block, PAGE, PAGE, MREMAP_FIXED, block + 2 * PAGE));
    FAILS(EINVAL, mremap(block, PAGE, 0, 0));
    FAILS(EINVAL, mremap(block, 0, PAGE, MREMAP_MAYMOVE));
    FAILS(EINVAL, syscall(SYS_mremap, block, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, block + PAGE));
    FAILS(EINVAL, syscall(SYS_mremap, block, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, block + 1));
    FAILS(EINVAL, syscall(SYS_mremap, block, 2 * PAGE, PAGE, MREMAP_MAYMOVE | 4, 0));
    FAILS(EINVAL, syscall(SYS_mremap, block, PAGE, PAGE, 4, 0));
    OK(munmap(block + 2 * PAGE, PAGE));
    FAILS(EFAULT, mremap(block, 4 * PAGE, 5 * PAGE, MREMAP_MAYMOVE));
    FAILS(EFAULT, mremap(block + 2 * PAGE, PAGE, PAGE, 0));
    FAILS(ENOMEM, mremap(block, 2 * PAGE, 4 * PAGE, 0));
    char *moved = mremap(block, 2 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && !strcmp(moved, "here") && moved[63 * PAGE] == 0);
    CHECK(signal_of(block, false) == SIGSEGV);
    CHECK(mremap(moved, 64 * PAGE, PAGE, 0) == moved);
    char *left = (void *)syscall(SYS_mremap, moved, PAGE, PAGE, MREMAP_MAYMOVE | 4, 0);
    CHECK(left != MAP_FAILED && left != moved && !strcmp(left, "here") && moved[0] == 0);
    char *place = map(2 * PAGE, PROT_NONE, ANON);
    CHECK(mremap(left, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place && !strcmp(place, "here"));
    /* An old length of 0 maps shared memory a second time. */
    char *shared = map(PAGE, RW, SHARED);
    char *second = mremap(shared, 0, PAGE, MREMAP_MAYMOVE);
    CHECK(second != MAP_FAILED && second != shared);
    strcpy(shared, "both");
    CHECK(!strcmp(second, "both"));
}

static void heap(void)
{
    char *end = (char *)syscall(SYS_brk, 0);
    CHECK((char *)syscall(SYS_brk, end + 3 * PAGE) == end + 3 * PAGE);
    memset(end, 1, 3 * PAGE);
    CHECK((char *)syscall(SYS_brk, end + 10) == end + 10);
    CHECK((char *)syscall(SYS_brk, 1) == end + 10);
    CHECK((char *)syscall(SYS_brk, -1UL) == end + 10);
    CHECK((char *)syscall(SYS_brk, end) == end);
}

static void huge(void)
{
    /* A pool without pages: the mapping without reservation succeeds, an access is a bus error. */
    FAILS(ENOMEM, try_map(0, 2 * MIB, RW, ANON | MAP_HUGETLB, -1, 0));
    FAILS(ENOMEM, try_map(0, 1, RW, SHARED | MAP_HUGETLB | 21u << HUGE_SHIFT, -1, 0));
    char *none = try_map(0, 2 * MIB, RW, ANON | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    CHECK(none != MAP_FAILED && (uintptr_t)none % (2 * MIB) == 0);
    CHECK(signal_of(none, true) == SIGBUS);
    FAILS(EINVAL, munmap(none, PAGE));
    FAILS(EINVAL, mprotect(none, PAGE, PROT_READ));
    FAILS(EINVAL, mprotect(none + PAGE, 2 * MIB - PAGE, PROT_READ));
    OK(madvise(none, 2 * MIB, MADV_HUGEPAGE));
    FAILS(EINVAL, madvise(none, 2 * MIB, 20));
    OK(mprotect(none, 2 * MIB, PROT_READ));
    OK(munmap(none, 2 * MIB));
}

MAIN(CASE(mmap_errors), CASE(mmap_file_errors), CASE(placement), CASE(populate), CASE(sharing), CASE(grows_down),
     CASE(protect), CASE(remap), CASE(heap), CASE(huge))
