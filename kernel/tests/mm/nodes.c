/* Memory policies and nodes, on a machine of one or more nodes. */
#include "case.h"
#include <time.h>

enum { DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL, PREFERRED_MANY };
enum { F_NODE = 1, F_ADDR = 2, F_ALLOWED = 4 };

static long get(int *mode, unsigned long *mask, unsigned long bits, void *at, unsigned long flags)
{
    return syscall(SYS_get_mempolicy, mode, mask, bits, at, flags);
}

static void policies(void)
{
    unsigned long mask[16] = { 0 }, one = 1, many = ~0UL, far = 1UL << 20;
    int mode = -1;
    OK(get(&mode, mask, 1024, NULL, 0));
    CHECK(mode == DEFAULT && mask[0] == 0);
    OK(get(&mode, mask, 1024, NULL, F_ALLOWED));
    CHECK(mode == 0 && (mask[0] & 1));
    FAILS(EINVAL, get(&mode, mask, 1024, NULL, F_ALLOWED | F_NODE));
    FAILS(EINVAL, get(&mode, mask, 1024, NULL, 8));
    FAILS(EINVAL, get(&mode, mask, 0, NULL, 0));
    FAILS(EINVAL, get(&mode, NULL, 0, &mode, 0));
    FAILS(EFAULT, get(&mode, NULL, 0, (void *)PAGE, F_ADDR));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, 77, &one, 2));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, BIND, NULL, 0));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, DEFAULT, &one, 2));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, LOCAL, &one, 2));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, BIND, &far, 64));
    FAILS(EFAULT, syscall(SYS_set_mempolicy, BIND, (void *)8, 64));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, BIND, &many, 1UL << 30));
    OK(syscall(SYS_set_mempolicy, BIND, &one, 2));
    OK(get(&mode, mask, 1024, NULL, 0));
    CHECK(mode == BIND && mask[0] == 1);
    OK(syscall(SYS_set_mempolicy, PREFERRED, NULL, 0));
    OK(get(&mode, mask, 1024, NULL, 0));
    CHECK(mode == LOCAL && mask[0] == 0);
    OK(syscall(SYS_set_mempolicy, INTERLEAVE, &one, 2));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, PREFERRED_MANY, NULL, 0));
    OK(syscall(SYS_set_mempolicy, PREFERRED_MANY, &one, 2));
    OK(get(&mode, mask, 1024, NULL, 0));
    CHECK(mode == PREFERRED_MANY && mask[0] == 1);
    char *memory = map(4 * PAGE, RW, ANON);
    memset(memory, 1, 4 * PAGE);
    OK(get(&mode, NULL, 0, memory, F_ADDR));
    CHECK(mode == DEFAULT);
    OK(get(&mode, NULL, 0, memory, F_ADDR | F_NODE));
    CHECK(mode == 0);
    OK(syscall(SYS_set_mempolicy, DEFAULT, NULL, 0));
    /* The number of bits is one too large: 65 of them are one word. */
    mask[1] = 0x5a5a;
    OK(get(&mode, mask, 65, NULL, 0));
    CHECK(mask[0] == 0 && mask[1] == 0x5a5a);
    OK(get(&mode, mask, 66, NULL, 0));
    CHECK(mask[1] == 0);
    FAILS(EINVAL, get(&mode, mask, 8 * PAGE + 2, NULL, 0));
}

/* Flags in the mode: the nodes that a program named are told back, of which the machine may have none. */
static void flags(void)
{
    enum { BALANCING = 1 << 13, RELATIVE = 1 << 14, STATIC = 1 << 15 };
    unsigned long one = 1, far = 1UL << 5 | 1, none = 1UL << 5, mask[16] = { 0 };
    int mode;
    const int modes[] = { BIND, INTERLEAVE, PREFERRED, PREFERRED_MANY };
    for (size_t at = 0; at < sizeof modes / sizeof *modes; at++)
        for (int flag = RELATIVE; flag <= STATIC; flag <<= 1) {
            OK(syscall(SYS_set_mempolicy, modes[at] | flag, &far, 64));
            OK(get(&mode, mask, 1024, NULL, 0));
            CHECK(mode == (modes[at] | flag) && mask[0] == far);
            char *touched = map(PAGE, RW, ANON);
            *touched = 1;
            OK(munmap(touched, PAGE));
            FAILS(EINVAL, syscall(SYS_set_mempolicy, modes[at] | flag, NULL, 0));
        }
    /* Relative nodes go round, others are those of the machine. */
    OK(syscall(SYS_set_mempolicy, BIND | RELATIVE, &none, 64));
    OK(get(&mode, mask, 1024, NULL, 0));
    CHECK(mode == (BIND | RELATIVE) && mask[0] == none);
    FAILS(EINVAL, syscall(SYS_set_mempolicy, BIND | STATIC, &none, 64));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, BIND | STATIC | RELATIVE, &one, 2));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, 77 | STATIC, (void *)8, 64));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, LOCAL | STATIC, NULL, 0));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, INTERLEAVE | BALANCING, &one, 2));
    FAILS(EINVAL, syscall(SYS_set_mempolicy, DEFAULT | STATIC, &one, 2));
    OK(get(&mode, mask, 1024, NULL, 0));
    CHECK(mode == (BIND | RELATIVE) && mask[0] == none);
    /* Linux balances this one; Quire refuses it. */
    if (is_quire())
        FAILS(EINVAL, syscall(SYS_set_mempolicy, BIND | BALANCING, &one, 2));
    /* A child has its parent's policy as the parent named it. */
    pid_t child = fork();
    if (child == 0)
        _exit(get(&mode, mask, 1024, NULL, 0) != 0 || mode != (BIND | RELATIVE) || mask[0] != none);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* A mapping keeps its flags; its neighbour has none. */
    char *memory = map(4 * PAGE, RW, ANON);
    OK(syscall(SYS_mbind, memory, 2 * PAGE, BIND | STATIC, &far, 64, 0));
    OK(syscall(SYS_mbind, memory + 2 * PAGE, 2 * PAGE, BIND, &one, 2, 0));
    OK(get(&mode, mask, 1024, memory + PAGE, F_ADDR));
    CHECK(mode == (BIND | STATIC) && mask[0] == far);
    OK(get(&mode, mask, 1024, memory + 2 * PAGE, F_ADDR));
    CHECK(mode == BIND && mask[0] == 1);
    memset(memory, 1, 4 * PAGE);
    OK(get(&mode, NULL, 0, memory, F_ADDR | F_NODE));
    CHECK(mode == 0);
    FAILS(EINVAL, syscall(SYS_mbind, memory, PAGE, BIND | STATIC | RELATIVE, &one, 2, 0));
    /* A length of 0 needs no node with memory, though a mode that there is. */
    FAILS(EINVAL, syscall(SYS_mbind, memory, PAGE, BIND | STATIC, &none, 64, 0));
    OK(syscall(SYS_mbind, memory, 0, BIND | STATIC, &none, 64, 0));
    FAILS(EINVAL, syscall(SYS_mbind, memory, 0, BIND | STATIC | RELATIVE, &one, 2, 0));
    FAILS(EINVAL, syscall(SYS_mbind, memory, PAGE, PREFERRED | RELATIVE, NULL, 0, 0));
    OK(syscall(SYS_mbind, memory, 4 * PAGE, DEFAULT | RELATIVE, NULL, 0, 0));
    OK(get(&mode, mask, 1024, memory, F_ADDR));
    CHECK(mode == DEFAULT);
    OK(syscall(SYS_set_mempolicy, DEFAULT, NULL, 0));
}

static void child(void *memory)
{
    unsigned long mask[16] = { 0 };
    int mode;
    OK(get(&mode, mask, 1024, NULL, 0));
    CHECK(mode == BIND && mask[0] == 1);
    OK(get(&mode, mask, 1024, memory, F_ADDR));
    CHECK(mode == PREFERRED && mask[0] == 1);
}

static void bound(void)
{
    unsigned long one = 1, mask[16] = { 0 };
    int mode;
    char *memory = map(8 * PAGE, RW, ANON);
    FAILS(EINVAL, syscall(SYS_mbind, memory + 1, PAGE, BIND, &one, 2, 0));
    FAILS(EINVAL, syscall(SYS_mbind, memory, PAGE, BIND, &one, 2, 64));
    FAILS(EINVAL, syscall(SYS_mbind, memory, PAGE, 66, &one, 2, 0));
    OK(syscall(SYS_mbind, memory, -1UL, BIND, &one, 2, 0));
    FAILS(EINVAL, syscall(SYS_mbind, memory, -PAGE, BIND, &one, 2, 0));
    OK(syscall(SYS_mbind, memory, 0, BIND, &one, 2, 0));
    OK(syscall(SYS_mbind, memory + 2 * PAGE, 2 * PAGE, PREFERRED, &one, 2, 0));
    OK(get(&mode, mask, 1024, memory + 3 * PAGE, F_ADDR));
    CHECK(mode == PREFERRED && mask[0] == 1);
    OK(get(&mode, mask, 1024, memory, F_ADDR));
    CHECK(mode == DEFAULT);
    memset(memory, 1, 8 * PAGE);
    OK(syscall(SYS_mbind, memory, 8 * PAGE, BIND, &one, 2, 3));
    OK(munmap(memory + 7 * PAGE, PAGE));
    FAILS(EFAULT, syscall(SYS_mbind, memory, 8 * PAGE, BIND, &one, 2, 0));
    OK(syscall(SYS_mbind, memory, PAGE, PREFERRED, &one, 2, 0));
    OK(syscall(SYS_set_mempolicy, BIND, &one, 2));
    CHECK(in_child(child, memory) == 0);
}

static void pages(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    memory[0] = memory[2 * PAGE] = 1;
    void *at[4] = { memory, memory + PAGE, memory + 2 * PAGE + 5, (void *)PAGE };
    int status[4] = { 9, 9, 9, 9 }, nodes[4] = { 0, 0, 0, 0 };
    OK(syscall(SYS_move_pages, 0, 4, at, NULL, status, 0));
    CHECK(status[0] == 0 && status[1] == -ENOENT && status[2] == 0 && status[3] == -EFAULT);
    // A page that was only read is the one of zeroes, which all programs share.
    CHECK(*(volatile char *)(memory + 3 * PAGE) == 0);
    at[3] = memory + 3 * PAGE;
    for (int wanted = 0; wanted < 2; wanted++) {
        status[3] = 9;
        OK(syscall(SYS_move_pages, 0, 1, at + 3, wanted ? nodes : NULL, status + 3, 0));
        CHECK(status[3] == -EFAULT);
    }
    FAILS(EINVAL, syscall(SYS_move_pages, 0, 4, at, NULL, status, 1));
    FAILS(ESRCH, syscall(SYS_move_pages, 999999, 4, at, NULL, status, 0));
    FAILS(EFAULT, syscall(SYS_move_pages, 0, 4, (void *)8, NULL, status, 0));
    OK(syscall(SYS_move_pages, 0, 1, at, nodes, status, 2));
    CHECK(status[0] == 0);
    nodes[0] = 60;
    FAILS(ENODEV, syscall(SYS_move_pages, 0, 1, at, nodes, status, 2));
    unsigned long one = 1;
    CHECK(syscall(SYS_migrate_pages, 0, 2, &one, &one) == 0);
    FAILS(ESRCH, syscall(SYS_migrate_pages, 999999, 2, &one, &one));
    FAILS(EFAULT, syscall(SYS_migrate_pages, 0, 64, (void *)8, &one));
}

static char *much_memory;

static void move_much(void *count)
{
    alarm(1);
    syscall(SYS_move_pages, 0, *(size_t *)count, much_memory, NULL, much_memory, 0);
    _exit(1);
}

/* Calls about much memory look at what is there alone, and a signal that ends the process ends them. */
static void endless(void)
{
    unsigned long one = 1;
    much_memory = map(1UL << 46, PROT_NONE, ANON | MAP_NORESERVE);
    alarm(30);
    CHECK(syscall(SYS_migrate_pages, 0, 2, &one, &one) == 0);
    OK(syscall(SYS_mbind, much_memory, 1UL << 46, BIND, &one, 2, 3));
    unsigned long second = 2;
    CHECK(syscall(SYS_migrate_pages, 0, 3, &second, &one) == 0);
    if (!is_quire())
        return;
    /* The same page again and again, whose number is in the file, too. */
    int file = memfd_create("pages", 0);
    OK(ftruncate(file, 2 * MIB));
    size_t count = 32 * MIB;
    for (size_t at = 0; at < count * 8; at += 2 * MIB)
        CHECK(mmap(much_memory + at, 2 * MIB, RW, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
    CHECK(in_child(move_much, &count) == SIGALRM);
}

/* A task is told the node of the CPU on which it runs. */
static void check_cpu(void *moved)
{
    unsigned cpu, node;
    time_t end = time(NULL) + 3;
    while (time(NULL) < end) {
        OK(syscall(SYS_getcpu, &cpu, &node, NULL));
        CHECK(node == cpu);
        *(volatile char *)moved |= 1 << cpu;
    }
}

/* Two nodes, which kernel/test-memory gives the kernel. */
static void second_node(void)
{
    unsigned long mask[16] = { 0 }, second = 2;
    int mode;
    OK(get(&mode, mask, 1024, NULL, F_ALLOWED));
    if (!(mask[0] & second))
        return;
    char *memory = map(2 * MIB, RW, ANON);
    OK(syscall(SYS_mbind, memory, 2 * MIB, BIND, &second, 3, 0));
    memset(memory, 1, 2 * MIB);
    for (size_t page = 0; page < 512; page++) {
        OK(get(&mode, NULL, 0, memory + page * PAGE, F_ADDR | F_NODE));
        CHECK(mode == 1);
    }
    /* Pages that are there move, one by one and all of them. */
    void *at = memory + 7 * PAGE;
    int node = 0, status = -1;
    OK(syscall(SYS_move_pages, 0, 1, &at, &node, &status, 2));
    CHECK(status == 0 && memory[7 * PAGE] == 1);
    unsigned long first = 1;
    FAILS(EIO, syscall(SYS_mbind, memory, 2 * MIB, BIND, &first, 3, 1));
    OK(syscall(SYS_mbind, memory, 2 * MIB, BIND, &first, 3, 1 | 2));
    for (size_t page = 0; page < 512; page++) {
        OK(get(&mode, NULL, 0, memory + page * PAGE, F_ADDR | F_NODE));
        CHECK(mode == 0 && memory[page * PAGE] == 1);
    }
    /* The page of zeroes is on no node. */
    char *zeroes = map(2 * PAGE, RW, ANON);
    CHECK(*(volatile char *)zeroes == 0 && *(volatile char *)(zeroes + PAGE) == 0);
    OK(syscall(SYS_mbind, zeroes, PAGE, BIND, &second, 3, 1));
    OK(syscall(SYS_mbind, zeroes + PAGE, PAGE, BIND, &second, 3, 1 | 2));
    if (is_quire()) {
        char *seen = map(PAGE, RW, SHARED);
        pid_t beside = fork();
        if (beside == 0) {
            check_cpu(seen);
            _exit(0);
        }
        int status;
        check_cpu(seen);
        CHECK(waitpid(beside, &status, 0) == beside && status == 0 && *seen == 3);
    }
    char *rather = map(PAGE, RW, ANON);
    OK(syscall(SYS_mbind, rather, PAGE, PREFERRED_MANY, &second, 3, 0));
    *rather = 1;
    OK(get(&mode, NULL, 0, rather, F_ADDR | F_NODE));
    CHECK(mode == 1);
    /* Relative nodes go round over both: the fifth place is the first node, the sixth the second. */
    unsigned long sixth = 1UL << 5;
    rather = map(PAGE, RW, ANON);
    OK(syscall(SYS_mbind, rather, PAGE, BIND | 1 << 14, &sixth, 64, 0));
    *rather = 1;
    OK(get(&mode, NULL, 0, rather, F_ADDR | F_NODE));
    CHECK(mode == 1);
    OK(syscall(SYS_set_mempolicy, BIND, &second, 3));
    char *other = map(16 * PAGE, RW, ANON);
    memset(other, 1, 16 * PAGE);
    OK(get(&mode, NULL, 0, other + 5 * PAGE, F_ADDR | F_NODE));
    CHECK(mode == 1);
}

MAIN(CASE(policies), CASE(flags), CASE(bound), CASE(pages), CASE(endless), CASE(second_node))
