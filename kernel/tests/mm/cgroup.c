/* Limits on huge pages of control groups (version 2). On Linux only root runs this, where all pools are empty and no
 * group has the controller, and leaves nothing behind.
 */
#include "case.h"
#include <dirent.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define POOL "/proc/sys/vm/nr_hugepages"
#define HUGE (2 * MIB)

static char mounted[] = "/tmp/cgroupXXXXXX";

/* The path of a file of a group; the group is "" for the root. */
static const char *path(const char *group, const char *name)
{
    static char paths[4][192];
    static int next;
    char *at = paths[next++ % 4];
    snprintf(at, sizeof paths[0], "%s/%s/%s", mounted, group, name);
    return at;
}

static const char *show(const char *file_path)
{
    static char text[256];
    int file = open(file_path, O_RDONLY);
    if (file < 0) {
        printf("%s: %d\n", file_path, errno);
        fflush(stdout);
        _exit(1);
    }
    ssize_t bytes = read(file, text, sizeof text - 1);
    CHECK(bytes >= 0);
    text[bytes] = 0;
    close(file);
    return text;
}

static void shows(const char *file_path, const char *expected)
{
    const char *found = show(file_path);
    if (strcmp(found, expected)) {
        printf("%s: \"%s\" instead of \"%s\"\n", file_path, found, expected);
        fflush(stdout);
        _exit(1);
    }
}

static int put(const char *file_path, const char *value)
{
    int file = open(file_path, O_WRONLY);
    if (file < 0)
        return errno;
    int error = write(file, value, strlen(value)) < 0 ? errno : 0;
    close(file);
    return error;
}

static void answers(const char *file_path, const char *value, int expected)
{
    int error = put(file_path, value);
    if (error != expected) {
        printf("%s: \"%s\": %d instead of %d\n", file_path, value, error, expected);
        fflush(stdout);
        _exit(1);
    }
}

static void sets(const char *file_path, const char *value, const char *shown)
{
    answers(file_path, value, 0);
    shows(file_path, shown);
}

static void make(const char *group)
{
    OK(mkdir(path(group, ""), 0755));
}

static void drop(const char *group)
{
    OK(rmdir(path(group, "")));
}

/* Mounts the file system and gives the groups below the root the controller; false where that may not be tried. */
static bool begin(void)
{
    if (geteuid() || strcmp(show(POOL), "0\n") || !mkdtemp(mounted))
        return false;
    if (mount("none", mounted, "cgroup2", 0, NULL)) {
        CHECK(!is_quire());
        rmdir(mounted);
        return false;
    }
    bool usable = strstr(show(path("", "cgroup.controllers")), "hugetlb") != NULL;
    usable = usable && !strstr(show(path("", "cgroup.subtree_control")), "hugetlb");
    CHECK(usable || !is_quire());
    if (usable)
        answers(path("", "cgroup.subtree_control"), "+hugetlb", 0);
    return usable;
}

static void end(void)
{
    answers(path("", "cgroup.subtree_control"), "-hugetlb", 0);
    OK(umount(mounted));
    OK(rmdir(mounted));
}

static void files(void)
{
    if (!begin())
        return;
    make("quire");
    const char *names[] = { "current", "events", "events.local", "max", "numa_stat", "rsvd.current", "rsvd.max" };
    const char *texts[] = { "0\n", "max 0\n", "max 0\n", NULL, NULL, "0\n", NULL };
    for (int at = 0; at < 7; at++) {
        char name[64];
        sprintf(name, "hugetlb.2MB.%s", names[at]);
        CHECK(access(path("", name), F_OK) == -1 && errno == ENOENT);
        bool limit = strstr(name, "max") != NULL;
        struct stat of;
        OK(stat(path("quire", name), &of));
        CHECK((of.st_mode & 0777) == (limit ? 0644 : 0444));
        if (limit)
            sets(path("quire", name), "max", "max\n");
        else
            answers(path("quire", name), "1", EINVAL);
        if (texts[at])
            shows(path("quire", name), texts[at]);
    }
    CHECK(!strncmp(show(path("quire", "hugetlb.2MB.numa_stat")), "total=0 N0=0", 12));
    shows(path("quire", "cgroup.controllers"), "hugetlb\n");
    shows(path("quire", "cgroup.subtree_control"), "");
    shows(path("quire", "cgroup.procs"), "");
    drop("quire");
    end();
}

static void limits(void)
{
    if (!begin())
        return;
    make("quire");
    const char *max = path("quire", "hugetlb.2MB.max");
    char limit[192];
    strcpy(limit, max);
    sets(limit, "2097152", "2097152\n");
    sets(limit, "2097152", "2097152\n");
    sets(limit, "4M", "4194304\n");
    sets(limit, "5M\n", "4194304\n");
    sets(limit, "1", "0\n");
    sets(limit, " 4M ", "4194304\n");
    sets(limit, "1G", "1073741824\n");
    sets(limit, "0x400000", "4194304\n");
    sets(limit, "18446744073709551615", "max\n");
    sets(limit, "0x7fffffffffe00000", "max\n");
    sets(limit, "max\n", "max\n");
    answers(limit, "-1", EINVAL);
    answers(limit, "x", EINVAL);
    answers(limit, "2097152x", EINVAL);
    shows(limit, "max\n");
    drop("quire");
    end();
}

/* What a process of the group maps and touches. */
static void use(void *unused)
{
    (void)unused;
    answers(path("quire/inner", "cgroup.procs"), "0", 0);
    CHECK(strstr(show("/proc/self/cgroup"), "0::/quire/inner\n"));
    char *memory = map(4 * HUGE, RW, ANON | MAP_HUGETLB);
    shows(path("quire", "hugetlb.2MB.rsvd.current"), "8388608\n");
    shows(path("quire/inner", "hugetlb.2MB.rsvd.current"), "8388608\n");
    shows(path("quire/inner", "hugetlb.2MB.current"), "0\n");
    FAILS(ENOMEM, mmap(NULL, HUGE, RW, ANON | MAP_HUGETLB, -1, 0));
    shows(path("quire", "hugetlb.2MB.events"), "max 1\n");
    shows(path("quire", "hugetlb.2MB.events.local"), "max 0\n");
    shows(path("quire/inner", "hugetlb.2MB.events.local"), "max 1\n");
    memory[0] = memory[HUGE] = 1;
    shows(path("quire/inner", "hugetlb.2MB.current"), "4194304\n");
    shows(path("quire", "hugetlb.2MB.current"), "4194304\n");
    CHECK(!strncmp(show(path("quire", "hugetlb.2MB.numa_stat")), "total=4194304 N0=4194304", 24));
    CHECK(signal_of(memory + 2 * HUGE, true) == SIGBUS);
    shows(path("quire/inner", "hugetlb.2MB.events"), "max 2\n");
    shows(path("quire/inner", "hugetlb.2MB.events.local"), "max 2\n");
    CHECK(rmdir(path("quire/inner", "")) == -1 && errno == EBUSY);
    OK(munmap(memory, HUGE));
    shows(path("quire", "hugetlb.2MB.current"), "2097152\n");
    shows(path("quire", "hugetlb.2MB.rsvd.current"), "6291456\n");
}

static void charges(void)
{
    if (!begin())
        return;
    answers(POOL, "6", 0);
    make("quire");
    answers(path("quire", "cgroup.subtree_control"), "+hugetlb", 0);
    make("quire/inner");
    answers(path("quire", "hugetlb.2MB.max"), "4M", 0);
    answers(path("quire/inner", "hugetlb.2MB.max"), "6M", 0);
    answers(path("quire/inner", "hugetlb.2MB.rsvd.max"), "8M", 0);
    CHECK(in_child(use, NULL) == 0);
    shows(path("quire", "hugetlb.2MB.current"), "0\n");
    shows(path("quire", "hugetlb.2MB.rsvd.current"), "0\n");
    shows(path("quire", "hugetlb.2MB.events"), "max 2\n");
    drop("quire/inner");
    drop("quire");
    answers(POOL, "0", 0);
    end();
}

static void execute(void *unused)
{
    (void)unused;
    answers(path("quire", "cgroup.procs"), "0", 0);
    OK(setenv("MOUNTED", mounted, 1));
    execl("/proc/self/exe", "cgroup", "executed", NULL);
}

/* Runs in a program that a process of the group has executed. */
static void executed(void)
{
    if (getenv("MOUNTED"))
        FAILS(ENOMEM, mmap(NULL, HUGE, RW, ANON | MAP_HUGETLB, -1, 0));
}

/* A process stays in its group when it executes a program. */
static void executions(void)
{
    if (!begin())
        return;
    answers(POOL, "2", 0);
    make("quire");
    answers(path("quire", "hugetlb.2MB.rsvd.max"), "0", 0);
    CHECK(in_child(execute, NULL) == 0);
    drop("quire");
    answers(POOL, "0", 0);
    end();
}

static void leave(void *unused)
{
    (void)unused;
    answers(path("quire", "cgroup.procs"), "0", 0);
    answers(path("quire", "cgroup.subtree_control"), "+hugetlb", EBUSY);
    answers(path("", "cgroup.procs"), "0", 0);
    answers(path("quire", "cgroup.subtree_control"), "+hugetlb", 0);
    answers(path("quire", "cgroup.procs"), "0", EBUSY);
}

static void errors(void)
{
    if (!begin())
        return;
    make("quire");
    FAILS(EEXIST, mkdir(path("quire", ""), 0755));
    CHECK(open(path("quire", "file"), O_CREAT | O_WRONLY, 0600) == -1 && (errno == EPERM || errno == EACCES));
    answers(path("quire", "cgroup.procs"), "x", EINVAL);
    answers(path("quire", "cgroup.procs"), "3999999", ESRCH);
    answers(path("quire", "cgroup.subtree_control"), "+nothing", EINVAL);
    answers(path("quire", "cgroup.subtree_control"), "hugetlb", EINVAL);
    CHECK(in_child(leave, NULL) == 0);
    make("quire/inner");
    FAILS(EBUSY, rmdir(path("quire", "")));
    drop("quire/inner");
    answers(path("quire", "cgroup.subtree_control"), "-hugetlb", 0);
    make("quire/inner");
    CHECK(access(path("quire/inner", "hugetlb.2MB.max"), F_OK) == -1 && errno == ENOENT);
    shows(path("quire/inner", "cgroup.controllers"), "");
    answers(path("quire/inner", "cgroup.subtree_control"), "+hugetlb", ENOENT);
    answers(path("quire", "cgroup.subtree_control"), "+hugetlb", 0);
    sets(path("quire/inner", "hugetlb.2MB.max"), "8M", "8388608\n");
    drop("quire/inner");
    drop("quire");
    end();
}

#define INTO_CGROUP (1UL << 33)

/* `clone3` with this word for the group. Returns -1, or the child's status after it has shown its own group. */
static int clone_into(unsigned long flags, long group, size_t words)
{
    uint64_t arguments[11] = { INTO_CGROUP | flags, [4] = flags & CLONE_THREAD ? 0 : SIGCHLD, [10] = group };
    long child;
    /* Not by a procedure: a child of CLONE_VFORK would overwrite where it returns to. */
    __asm__ volatile("syscall" : "=a"(child) : "0"(SYS_clone3), "D"(arguments), "S"(words * 8)
                     : "rcx", "r11", "memory");
    if (child < 0 && child > -4096)
        child = (errno = -child, -1);
    if (child == 0)
        _exit(strcmp(show("/proc/self/cgroup"), "0::/quire\n") != 0);
    int status;
    CHECK(child < 0 || waitpid(child, &status, 0) == child);
    return child < 0 ? -1 : status;
}

static void clone_as_user(void *group)
{
    OK(setuid(65534));
    FAILS(EACCES, clone_into(0, *(int *)group, 11));
}

/* A child that begins in another group than its parent's. */
static void cloned(void)
{
    if (!begin())
        return;
    make("quire");
    int group = open(path("quire", ""), O_RDONLY | O_DIRECTORY), other = open("/tmp", O_RDONLY | O_DIRECTORY);
    CHECK(group >= 0 && other >= 0 && clone_into(0, group, 11) == 0);
    shows(path("quire", "cgroup.procs"), "");
    CHECK(!strstr(show("/proc/self/cgroup"), "quire"));
    FAILS(EBADF, clone_into(0, other, 11));
    FAILS(EBADF, clone_into(0, 999, 11));
    FAILS(EINVAL, clone_into(0, group, 10));
    FAILS(EINVAL, clone_into(0, 1L << 31, 11));
    FAILS(EINVAL, clone_into(CLONE_PARENT, group, 11));
    FAILS(EOPNOTSUPP, clone_into(CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, group, 11));
    CHECK(in_child(clone_as_user, &group) == 0);
    /* A child that shares its parent's memory takes it into no other group. */
    answers(POOL, "1", 0);
    answers(path("quire", "hugetlb.2MB.rsvd.max"), "0", 0);
    CHECK(clone_into(CLONE_VM | CLONE_VFORK, group, 11) == 0);
    char *page = mmap(NULL, HUGE, RW, ANON | MAP_HUGETLB, -1, 0);
    CHECK(page != MAP_FAILED && munmap(page, HUGE) == 0);
    answers(POOL, "0", 0);
    answers(path("quire", "cgroup.subtree_control"), "+hugetlb", 0);
    FAILS(EBUSY, clone_into(0, group, 11));
    answers(path("quire", "cgroup.subtree_control"), "-hugetlb", 0);
    /* No child was left behind, nor in a group that is gone. */
    CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
    drop("quire");
    CHECK(clone_into(0, group, 11) == -1 && (errno == ENODEV || errno == ENOENT));
    CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD && close(group) == 0 && close(other) == 0);
    end();
}

/* Each of many groups keeps its own numbers. */
static void many(void)
{
    char name[32], limit[32];
    if (!begin())
        return;
    for (int at = 0; at < 150; at++) {
        sprintf(name, "quire%d", at);
        sprintf(limit, "%d", at * 2 << 20);
        make(name);
        answers(path(name, "hugetlb.2MB.rsvd.max"), limit, 0);
    }
    for (int at = 0; at < 150; at++) {
        sprintf(name, "quire%d", at);
        sprintf(limit, "%d\n", at * 2 << 20);
        shows(path(name, "hugetlb.2MB.rsvd.max"), limit);
    }
    DIR *all = opendir(mounted);
    CHECK(all != NULL);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(all));)
        found += entry->d_type == DT_DIR && !strncmp(entry->d_name, "quire", 5);
    closedir(all);
    CHECK(found == 150);
    for (int at = 0; at < 150; at++) {
        sprintf(name, "quire%d", at);
        drop(name);
    }
    end();
}

MAIN(CASE(files), CASE(limits), CASE(charges), CASE(executed), CASE(executions), CASE(errors), CASE(cloned),
     CASE(many))
