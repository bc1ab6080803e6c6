/* Files by which an operator controls pools of huge pages: what they show, take and refuse. On Linux they are written
 * only by root and where all pools are empty, and are empty again afterwards.
 */
#include "case.h"
#include <linux/mempolicy.h>
#include <sys/stat.h>

#define VM "/proc/sys/vm/"
#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define GIGANTIC "/sys/kernel/mm/hugepages/hugepages-1048576kB/"
#define NODE "/sys/devices/system/node/node0/hugepages/"

static const char *show(const char *path)
{
    static char text[64];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    ssize_t bytes = read(file, text, sizeof text - 1);
    CHECK(bytes >= 0);
    text[bytes] = 0;
    close(file);
    return text;
}

static void shows(const char *path, const char *expected)
{
    const char *found = show(path);
    if (strcmp(found, expected)) {
        printf("%s: \"%s\" instead of \"%s\"\n", path, found, expected);
        fflush(stdout);
        _exit(1);
    }
}

static int put(const char *path, const char *value)
{
    int file = open(path, O_WRONLY);
    if (file < 0)
        return errno;
    ssize_t bytes = write(file, value, strlen(value));
    int error = bytes < 0 ? errno : 0;
    close(file);
    return error;
}

static void sets(const char *path, const char *value, const char *shown)
{
    int error = put(path, value);
    if (error) {
        printf("%s: \"%s\" is refused: %d\n", path, value, error);
        fflush(stdout);
        _exit(1);
    }
    shows(path, shown);
}

static void refuses(const char *path, const char *value, int expected)
{
    char before[64];
    strcpy(before, show(path));
    int error = put(path, value);
    if (error != expected) {
        printf("%s: \"%s\": %d instead of %d\n", path, value, error, expected);
        fflush(stdout);
        _exit(1);
    }
    shows(path, before);
}

static bool may_write(void)
{
    return geteuid() == 0 && !strcmp(show(VM "nr_hugepages"), "0\n") && !strcmp(show(VM "nr_overcommit_hugepages"), "0\n");
}

static mode_t mode(const char *path)
{
    struct stat stat_of;
    OK(stat(path, &stat_of));
    return stat_of.st_mode & 0777;
}

static void modes(void)
{
    const char *names[] = { "nr_hugepages", "nr_hugepages_mempolicy", "nr_overcommit_hugepages", "hugetlb_shm_group" };
    for (int at = 0; at < 4; at++) {
        char path[64] = VM;
        CHECK(mode(strcat(path, names[at])) == 0644);
    }
    CHECK(mode(POOL "nr_hugepages") == 0644 && mode(POOL "free_hugepages") == 0444);
    CHECK(mode(POOL "resv_hugepages") == 0444 && mode(POOL "surplus_hugepages") == 0444);
    CHECK(mode(NODE "hugepages-2048kB/nr_hugepages") == 0644 && mode(NODE "hugepages-2048kB/free_hugepages") == 0444);
    CHECK(access(POOL "demote", F_OK) && access(NODE "hugepages-2048kB/resv_hugepages", F_OK));
}

static void sysctls(void)
{
    if (!may_write())
        return;
    sets(VM "nr_hugepages", "2", "2\n");
    sets(VM "nr_hugepages", " 3 ", "3\n");
    sets(VM "nr_hugepages", "0x2", "2\n");
    sets(VM "nr_hugepages", "03", "3\n");
    sets(VM "nr_hugepages", "2 4", "2\n");
    sets(VM "nr_hugepages", "2\n\n", "2\n");
    shows(POOL "nr_hugepages", "2\n");
    shows(NODE "hugepages-2048kB/nr_hugepages", "2\n");
    refuses(VM "nr_hugepages", "-1", EINVAL);
    refuses(VM "nr_hugepages", "3x", EINVAL);
    refuses(VM "nr_hugepages", "+4", EINVAL);
    refuses(VM "nr_hugepages", "5,6", EINVAL);
    refuses(VM "nr_hugepages", "\n", EINVAL);
    refuses(VM "nr_hugepages", "18446744073709551616", EINVAL);
    sets(VM "nr_hugepages", "0", "0\n");
    sets(VM "nr_overcommit_hugepages", "0x5", "5\n");
    shows(POOL "nr_overcommit_hugepages", "5\n");
    refuses(VM "nr_overcommit_hugepages", "many", EINVAL);
    sets(VM "nr_overcommit_hugepages", "0", "0\n");
}

static void pool_files(void)
{
    if (!may_write())
        return;
    sets(POOL "nr_hugepages", "2", "2\n");
    sets(POOL "nr_hugepages", "+3\n", "3\n");
    sets(POOL "nr_hugepages", "010", "10\n");
    sets(NODE "hugepages-2048kB/nr_hugepages", "2\n", "2\n");
    refuses(POOL "nr_hugepages", " 3", EINVAL);
    refuses(POOL "nr_hugepages", "0x3", EINVAL);
    refuses(POOL "nr_hugepages", "3 4", EINVAL);
    refuses(POOL "nr_hugepages", "3\n\n", EINVAL);
    refuses(POOL "nr_hugepages", "-1", EINVAL);
    refuses(POOL "nr_hugepages", "18446744073709551616", ERANGE);
    refuses(NODE "hugepages-2048kB/nr_hugepages", "3x", EINVAL);
    refuses(POOL "nr_overcommit_hugepages", "0x3", EINVAL);
    sets(POOL "nr_hugepages", "0", "0\n");
    if (access(GIGANTIC "demote", F_OK))
        return;
    sets(GIGANTIC "demote_size", "2M", "2048kB\n");
    sets(GIGANTIC "demote_size", "2048kB\n", "2048kB\n");
    refuses(GIGANTIC "demote_size", "1G", EINVAL);
    refuses(GIGANTIC "demote_size", "2048", EINVAL);
    CHECK(put(GIGANTIC "demote", "1") == 0 && put(GIGANTIC "demote", "x") == EINVAL);
    CHECK(put(NODE "hugepages-1048576kB/demote", "1") == 0);
}

/* What a file shows is accepted by it. */
static void same_values(void)
{
    if (!may_write())
        return;
    const char *paths[] = {
        VM "nr_hugepages", VM "nr_hugepages_mempolicy", VM "nr_overcommit_hugepages", VM "hugetlb_shm_group",
        VM "hugetlb_optimize_vmemmap", POOL "nr_hugepages", POOL "nr_hugepages_mempolicy",
        POOL "nr_overcommit_hugepages", NODE "hugepages-2048kB/nr_hugepages", GIGANTIC "demote_size",
    };
    for (int pages = 0; pages < 2; pages++) {
        OK(put(VM "nr_hugepages", pages ? "3" : "0"));
        for (size_t at = 0; at < sizeof paths / sizeof *paths; at++) {
            if (access(paths[at], F_OK))
                continue;
            char value[64];
            strcpy(value, show(paths[at]));
            sets(paths[at], value, value);
        }
    }
    sets(VM "nr_hugepages", "0", "0\n");
}

static void shm_group(void)
{
    char before[64];
    strcpy(before, show(VM "hugetlb_shm_group"));
    if (!may_write())
        return;
    sets(VM "hugetlb_shm_group", "5", "5\n");
    sets(VM "hugetlb_shm_group", "-1", "-1\n");
    sets(VM "hugetlb_shm_group", "0x10", "16\n");
    sets(VM "hugetlb_shm_group", "2147483647", "2147483647\n");
    refuses(VM "hugetlb_shm_group", "2147483648", EINVAL);
    refuses(VM "hugetlb_shm_group", "x", EINVAL);
    sets(VM "hugetlb_shm_group", before, before);
}

/* Pages beyond the pool, as many as are allowed. */
static void overcommit(void)
{
    if (!may_write())
        return;
    FAILS(ENOMEM, mmap(NULL, 2 * MIB, RW, ANON | MAP_HUGETLB, -1, 0));
    sets(VM "nr_overcommit_hugepages", "2", "2\n");
    FAILS(ENOMEM, mmap(NULL, 6 * MIB, RW, ANON | MAP_HUGETLB, -1, 0));
    char *memory = map(4 * MIB, RW, ANON | MAP_HUGETLB);
    memory[0] = 1;
    shows(POOL "nr_hugepages", "2\n");
    shows(POOL "surplus_hugepages", "2\n");
    shows(POOL "resv_hugepages", "1\n");
    OK(munmap(memory, 4 * MIB));
    shows(POOL "nr_hugepages", "0\n");
    sets(VM "nr_overcommit_hugepages", "0", "0\n");
}

/* The pages come from the nodes of the task that writes. */
static void policy(void)
{
    unsigned long one = 1;
    if (!may_write())
        return;
    OK(syscall(SYS_set_mempolicy, MPOL_BIND, &one, 2));
    sets(VM "nr_hugepages_mempolicy", "2", "2\n");
    shows(NODE "hugepages-2048kB/nr_hugepages", "2\n");
    sets(POOL "nr_hugepages_mempolicy", "0", "0\n");
}

/* Two nodes, which kernel/test-memory gives the kernel. */
static void second_node(void)
{
    unsigned long second = 2;
    int mode;
    if (!is_quire() || access("/sys/devices/system/node/node1", F_OK))
        return;
#define SECOND "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/"
    OK(syscall(SYS_set_mempolicy, MPOL_BIND, &second, 3));
    sets(VM "nr_hugepages_mempolicy", "3", "3\n");
    shows(SECOND "nr_hugepages", "3\n");
    OK(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
    sets(NODE "hugepages-2048kB/nr_hugepages", "2", "2\n");
    char *memory = map(8 * MIB, RW, ANON | MAP_HUGETLB);
    OK(syscall(SYS_mbind, memory, 8 * MIB, MPOL_BIND, &second, 3, 0));
    for (int page = 0; page < 3; page++) {
        memory[page * 2 * MIB] = 1;
        OK(syscall(SYS_get_mempolicy, &mode, NULL, 0, memory + page * 2 * MIB, MPOL_F_ADDR | MPOL_F_NODE));
        CHECK(mode == 1);
    }
    shows(SECOND "free_hugepages", "0\n");
    CHECK(signal_of(memory + 6 * MIB, true) == SIGBUS);
    OK(syscall(SYS_mbind, memory, 8 * MIB, MPOL_PREFERRED, &second, 3, 0));
    memory[6 * MIB] = 1;
    OK(syscall(SYS_get_mempolicy, &mode, NULL, 0, memory + 6 * MIB, MPOL_F_ADDR | MPOL_F_NODE));
    CHECK(mode == 0);
    /* Pages in use go back and forth. */
    sets(SECOND "nr_hugepages", "4", "4\n");
    memset(memory + 6 * MIB, 7, 2 * MIB);
    void *at = memory + 7 * MIB;
    int node = 1, status = -1;
    OK(syscall(SYS_move_pages, 0, 1, &at, &node, &status, MPOL_MF_MOVE));
    CHECK(status == 1 && memory[6 * MIB] == 7 && memory[8 * MIB - 1] == 7);
    OK(syscall(SYS_move_pages, 0, 1, &at, NULL, &status, 0));
    CHECK(status == 1);
    unsigned long first = 1;
    OK(syscall(SYS_mbind, memory, 2 * MIB, MPOL_BIND, &first, 3, MPOL_MF_MOVE | MPOL_MF_STRICT));
    at = memory;
    OK(syscall(SYS_move_pages, 0, 1, &at, NULL, &status, 0));
    CHECK(status == 0 && memory[0] == 1);
    CHECK(syscall(SYS_migrate_pages, 0, 3, &first, &second) >= 0);
    OK(syscall(SYS_move_pages, 0, 1, &at, NULL, &status, 0));
    CHECK(status == 1 && memory[0] == 1 && memory[8 * MIB - 1] == 7);
    OK(munmap(memory, 8 * MIB));
    sets(SECOND "nr_hugepages", "3", "3\n");
    OK(syscall(SYS_set_mempolicy, MPOL_BIND, &second, 3));
    FAILS(ENOMEM, mmap(NULL, 8 * MIB, RW, ANON | MAP_HUGETLB, -1, 0));
    OK(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
    sets(VM "nr_hugepages", "0", "0\n");
}

MAIN(CASE(modes), CASE(sysctls), CASE(pool_files), CASE(same_values), CASE(shm_group), CASE(overcommit), CASE(policy),
     CASE(second_node))
