/* What kernel/test runs in the kernel: files used as programs use them. Each case runs on Linux too, in a directory
 * that may be written, so that a wrong expectation shows there.
 *
 * The first argument chooses the case, or all of them. Status 0 is success, 1 a wrong answer, 2 an unknown case.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/falloc.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            return 1; \
        } \
    } while (0)
/* The call fails with this error. */
#define FAILS(call, error) CHECK((errno = 0, (long)(call) == -1 && errno == (error)))

static int fresh(const char *path, int flags)
{
    unlink(path);
    return open(path, O_CREAT | O_EXCL | flags, 0644);
}

/* Whether a private mapping of /dev/zero between two anonymous ones is a mapping of its own in /proc/self/maps. */
static int stays_apart(int zero)
{
    char *around = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *between = around + PAGE;
    if (around == MAP_FAILED || mmap(between, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, zero, 0) != between)
        return 0;
    char line[300], wanted[40];
    int found = 0;
    sprintf(wanted, "%lx-%lx ", (unsigned long)between, (unsigned long)between + PAGE);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= !strncmp(line, wanted, strlen(wanted));
    return maps && fclose(maps) == 0 && munmap(around, 3 * PAGE) == 0 && found;
}

/* Calls and mappings, shared and private, see the same bytes. */
static int mapped(void)
{
    int fd = fresh("mapped", O_RDWR);
    CHECK(fd >= 0 && ftruncate(fd, 3 * PAGE) == 0);
    char *shared = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *private = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    char got[16] = "";
    CHECK(shared != MAP_FAILED && private != MAP_FAILED);
    CHECK(pwrite(fd, "hello", 5, PAGE - 2) == 5 && !memcmp(shared + PAGE - 2, "hello", 5));
    CHECK(!memcmp(private + PAGE - 2, "hello", 5));
    memcpy(shared + 2 * PAGE, "store", 5);
    CHECK(pread(fd, got, 5, 2 * PAGE) == 5 && !memcmp(got, "store", 5));
    memcpy(private, "own", 3);
    CHECK(pread(fd, got, 3, 0) == 3 && !memcmp(got, "\0\0\0", 3) && shared[0] == 0);
    /* A buffer that is a mapping of the very file. */
    CHECK(pwrite(fd, shared + 2 * PAGE, 5, 0) == 5 && !memcmp(shared, "store", 5));
    CHECK(pread(fd, shared + PAGE, 5, 0) == 5 && !memcmp(shared + PAGE, "store", 5));
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, shared + 2 * PAGE + 8, PAGE - 8) == PAGE - 8);
    CHECK(msync(shared, 3 * PAGE, MS_SYNC) == 0 && fsync(fd) == 0);
    /* The mapping outlives the name and the descriptor. */
    CHECK(unlink("mapped") == 0 && close(fd) == 0 && !memcmp(shared, "store", 5));
    CHECK(munmap(shared, 3 * PAGE) == 0 && munmap(private, 3 * PAGE) == 0);
    /* What is open for reading alone cannot be stored to. */
    fd = fresh("mapped", O_RDONLY);
    CHECK(fd >= 0);
    FAILS(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0), EACCES);
    shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED);
    FAILS(mprotect(shared, PAGE, PROT_WRITE), EACCES);
    CHECK(munmap(shared, PAGE) == 0 && close(fd) == 0);
    fd = open("mapped", O_WRONLY);
    FAILS(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0), EACCES);
    close(fd);
    fd = open("/dev/zero", O_RDWR);
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(shared != MAP_FAILED && (shared[1] = 1) && munmap(shared, PAGE) == 0);
    CHECK(stays_apart(fd) && close(fd) == 0);
    fd = open("/dev/null", O_RDWR);
    FAILS(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0), ENODEV);
    return close(fd) || unlink("mapped");
}

/* File systems are mounted over a directory, hide what is in it, and go again. Needs root. */
static int mounts(void)
{
    struct statfs fs;
    struct stat before, after;
    if (geteuid() != 0)
        return 0;
    CHECK(mkdir("mounted", 0755) == 0 && close(fresh("mounted/hidden", O_RDWR)) == 0);
    CHECK(stat("mounted", &before) == 0);
    if (mount("none", "mounted", "tmpfs", 0, "mode=700") == -1) {
        /* Root in a container may not mount. */
        CHECK(errno == EPERM && unlink("mounted/hidden") == 0 && rmdir("mounted") == 0);
        return 0;
    }
    /* What a mount says of its files holds, and shows. */
    CHECK(umount("mounted") == 0 && mount("none", "mounted", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=750,uid=7,gid=8") == 0);
    CHECK(stat("mounted", &after) == 0 && after.st_uid == 7 && after.st_gid == 8 && (after.st_mode & 0777) == 0750);
    CHECK(statfs("mounted", &fs) == 0 && (fs.f_flags & 15) == (MS_NOSUID | MS_NODEV | MS_NOEXEC));
    char *const words[] = {"program", NULL};
    int program = fresh("mounted/program", O_RDWR);
    CHECK(program >= 0 && fchmod(program, 0755) == 0 && ftruncate(program, PAGE) == 0);
    FAILS(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, program, 0), EPERM);
    void *data = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, program, 0);
    CHECK(data != MAP_FAILED);
    FAILS(mprotect(data, PAGE, PROT_READ | PROT_EXEC), EACCES);
    CHECK(munmap(data, PAGE) == 0 && close(program) == 0);
    FAILS(execve("mounted/program", words, words + 1), EACCES);
    CHECK(mknod("mounted/null", S_IFCHR | 0666, makedev(1, 3)) == 0);
    FAILS(open("mounted/null", O_RDWR), EACCES);
    CHECK(umount("mounted") == 0 && mount("none", "mounted", "tmpfs", 0, "mode=700") == 0);
    CHECK(stat("mounted", &after) == 0 && after.st_dev != before.st_dev && (after.st_mode & 0777) == 0700);
    FAILS(access("mounted/hidden", F_OK), ENOENT);
    int fd = fresh("mounted/own", O_RDWR);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    FAILS(rename("mounted/own", "own"), EXDEV);
    FAILS(umount("mounted"), EBUSY);
    CHECK(close(fd) == 0 && umount("mounted") == 0 && access("mounted/hidden", F_OK) == 0);
    FAILS(umount("mounted"), EINVAL);
    FAILS(mount("none", "mounted", "nothing", 0, NULL), ENODEV);
    FAILS(mount("none", "mounted", "tmpfs", 0, "nothing=1"), EINVAL);
    FAILS(mount("none", "mounted/hidden", "tmpfs", 0, NULL), ENOTDIR);
    /* Huge pages, without any in the pool. */
    CHECK(mount("none", "mounted", "hugetlbfs", 0, "pagesize=2M") == 0);
    CHECK(statfs("mounted", &fs) == 0 && fs.f_type == 0x958458f6 && fs.f_bsize == 2 << 20);
    fd = fresh("mounted/own", O_RDWR);
    CHECK(fd >= 0 && fstat(fd, &after) == 0 && after.st_blksize == 2 << 20);
    FAILS(write(fd, "x", 1), EINVAL);
    FAILS(ftruncate(fd, PAGE), EINVAL);
    CHECK(ftruncate(fd, 4 << 20) == 0);
    FAILS(mmap(NULL, 2 << 20, PROT_READ, MAP_SHARED, fd, PAGE), EINVAL);
    CHECK(close(fd) == 0 && umount("mounted") == 0);
    CHECK(unlink("mounted/hidden") == 0 && rmdir("mounted") == 0);
    /* The list of mounts has a line for each, whatever is in a name. */
    static const char name[] = "a b\t\\\303\274'";
    char path[4200], folder[4096];
    CHECK(mkdir(name, 0755) == 0 && mount("x y\n", name, "tmpfs", 0, NULL) == 0 && getcwd(folder, sizeof folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *list = setmntent("/proc/mounts", "r");
    struct mntent *entry, last = {0};
    CHECK(list);
    while ((entry = getmntent(list)))
        last = *entry;
    CHECK(!strcmp(last.mnt_fsname, "x y\n") && !strcmp(last.mnt_dir, path) && !strcmp(last.mnt_type, "tmpfs"));
    endmntent(list);
    CHECK(umount(name) == 0 && rmdir(name) == 0);
    return 0;
}

/* The nodes of a folder have the numbers that its list says, and each node in /proc has its own. */
static int numbers(void)
{
    static const char *const folders[] = {"/proc/self", "/proc/thread-self", "/proc/self/task", "/proc/self/fd"};
    struct stat stat, task;
    char path[600];
    for (int at = 0; at < 4; at++) {
        DIR *folder = opendir(folders[at]);
        struct dirent *entry;
        CHECK(folder);
        while ((entry = readdir(folder))) {
            if (entry->d_name[0] == '.' || (at == 3 && atoi(entry->d_name) == dirfd(folder)))
                continue;
            snprintf(path, sizeof path, "%s/%s", folders[at], entry->d_name);
            CHECK(lstat(path, &stat) == 0 && stat.st_ino == entry->d_ino);
        }
        CHECK(closedir(folder) == 0);
    }
    CHECK(lstat("/proc/self/", &stat) == 0 && lstat("/proc/thread-self/", &task) == 0 && stat.st_ino != task.st_ino);
    CHECK(lstat("/proc/self/fd", &stat) == 0 && lstat("/proc/thread-self/fd", &task) == 0 && stat.st_ino != task.st_ino);
    return 0;
}

/* What users may do with files. Needs root. */
static int users(void)
{
    struct stat st;
    if (geteuid() != 0)
        return 0;
    CHECK(mkdir("common", 0777) == 0 && chmod("common", 01777) == 0 && mkdir("private", 0700) == 0);
    CHECK(close(fresh("common/root", O_RDWR)) == 0 && close(fresh("private/file", O_RDWR)) == 0);
    CHECK(chmod("common/root", 0600) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
#define EXPECT(what) do { if (!(what)) { printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)
        EXPECT(setgroups(0, NULL) == 0 && setgid(65534) == 0 && seteuid(65534) == 0);
        EXPECT(getuid() == 0 && geteuid() == 65534 && getegid() == 65534);
        /* A file whose owner is the very process. */
        EXPECT(close(open("/proc/self/status", O_RDONLY)) == 0 && access("/proc/1/mem", W_OK) == 0);
        EXPECT(open("common/root", O_RDONLY) == -1 && errno == EACCES);
        EXPECT(open("private/file", O_RDONLY) == -1 && errno == EACCES);
        EXPECT(unlink("common/root") == -1 && errno == EPERM);
        EXPECT(close(fresh("common/own", O_RDWR)) == 0 && stat("common/own", &st) == 0 && st.st_uid == 65534);
        EXPECT(chown("common/own", 0, 0) == -1 && errno == EPERM);
        EXPECT(chmod("common/root", 0644) == -1 && errno == EPERM);
        EXPECT(mkdir("private/new", 0755) == -1 && errno == EACCES);
        EXPECT(seteuid(0) == 0 && unlink("common/own") == 0);
        EXPECT(setuid(65534) == 0 && setuid(0) == -1 && errno == EPERM);
        EXPECT(kill(1, 0) == -1 && errno == EPERM);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(unlink("common/root") == 0 && unlink("private/file") == 0);
    return rmdir("common") || rmdir("private");
}

/* A file of the initial RAM disk is written and cut short: mappings see that, and nothing comes back. */
static int rewritten(void)
{
    const char *path = "/proc/self/exe";
    char copy[64], got[64], name[64];
    int fd = open(path, O_RDONLY), other;
    CHECK(fd >= 0 && pread(fd, copy, 64, 64) == 64 && close(fd) == 0);
    snprintf(name, sizeof name, "%s", access("/bin/text", F_OK) == 0 ? "/bin/text" : "rewritten");
    if (!strcmp(name, "rewritten")) {
        fd = fresh(name, O_RDWR);
        CHECK(fd >= 0 && write(fd, "no program\n", 11) == 11 && close(fd) == 0);
    }
    fd = open(name, O_RDWR);
    CHECK(fd >= 0);
    char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED && !memcmp(shared, "no program\n", 12));
    CHECK(pwrite(fd, "my", 2, 0) == 2 && !memcmp(shared, "my program\n", 12));
    memcpy(shared + 3, "pr", 2);
    other = open(name, O_RDONLY);
    CHECK(read(other, got, 64) == 11 && !memcmp(got, "my program\n", 11));
    CHECK(ftruncate(fd, 4) == 0 && ftruncate(fd, PAGE) == 0);
    CHECK(pread(other, got, 16, 0) == 16 && !memcmp(got, "my p\0\0\0\0\0\0\0\0", 12) && shared[5] == 0);
    CHECK(pwrite(fd, "end", 3, 3 * PAGE) == 3 && pread(other, got, 3, 3 * PAGE) == 3 && !memcmp(got, "end", 3));
    struct stat stat;
    CHECK(fstat(other, &stat) == 0 && stat.st_size == 3 * PAGE + 3);
    CHECK(munmap(shared, PAGE) == 0 && close(fd) == 0 && close(other) == 0);
    fd = open(name, O_RDWR | O_TRUNC);
    CHECK(fd >= 0 && read(fd, got, 1) == 0 && write(fd, "no program\n", 11) == 11);
    return close(fd);
}

static int positions(void)
{
    int fd = fresh("positions", O_RDWR);
    char got[32];
    struct iovec parts[3] = {{"ab", 2}, {"", 0}, {"cdef", 4}};
    CHECK(writev(fd, parts, 3) == 6 && lseek(fd, 0, SEEK_CUR) == 6);
    int copy = dup(fd);
    CHECK(copy >= 0 && lseek(copy, 1, SEEK_SET) == 1 && read(fd, got, 2) == 2 && !memcmp(got, "bc", 2));
    CHECK(pread(fd, got, 32, 4) == 2 && pread(fd, got, 32, 6) == 0 && lseek(fd, 0, SEEK_CUR) == 3);
    struct iovec into[2] = {{got, 1}, {got + 8, 8}};
    CHECK(preadv(fd, into, 2, 2) == 4 && got[0] == 'c' && !memcmp(got + 8, "def", 3));
    CHECK(lseek(fd, -1, SEEK_END) == 5 && lseek(fd, 10, SEEK_CUR) == 15 && write(fd, "x", 1) == 1);
    CHECK(pread(fd, got, 32, 0) == 16 && !memcmp(got + 6, "\0\0\0\0\0\0\0\0\0x", 10));
    FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
    FAILS(lseek(fd, 0, 77), EINVAL);
    FAILS(pread(fd, got, 1, -1), EINVAL);
    FAILS((lseek(fd, 0, SEEK_SET), read(fd, (void *)8, 1)), EFAULT);
    return close(fd) || close(copy) || unlink("positions");
}

static int append(void)
{
    int one = fresh("append", O_WRONLY | O_APPEND), two = open("append", O_RDWR);
    char got[8];
    CHECK(write(one, "aa", 2) == 2 && write(two, "b", 1) == 1 && write(one, "cc", 2) == 2);
    CHECK(lseek(two, 0, SEEK_SET) == 0 && read(two, got, 8) == 4 && !memcmp(got, "bacc", 4));
    FAILS(read(one, got, 1), EBADF);
    CHECK(fcntl(two, F_SETFL, O_APPEND) == 0 && lseek(two, 0, SEEK_SET) == 0 && write(two, "d", 1) == 1);
    CHECK(lseek(two, 0, SEEK_CUR) == 5 && (fcntl(two, F_GETFL) & (O_APPEND | O_ACCMODE)) == (O_APPEND | O_RDWR));
    return close(one) || close(two) || unlink("append");
}

static int holes(void)
{
    int fd = fresh("holes", O_RDWR);
    char got[8];
    struct stat stat;
    CHECK(ftruncate(fd, 8 * PAGE) == 0 && pwrite(fd, "x", 1, 5 * PAGE + 9) == 1);
    CHECK(lseek(fd, 0, SEEK_DATA) == 5 * PAGE && lseek(fd, 5 * PAGE, SEEK_HOLE) == 6 * PAGE);
    FAILS(lseek(fd, 6 * PAGE, SEEK_DATA), ENXIO);
    FAILS(lseek(fd, 8 * PAGE, SEEK_HOLE), ENXIO);
    CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 9 * PAGE) == 0 && fstat(fd, &stat) == 0);
    CHECK(stat.st_size == 8 * PAGE && stat.st_blocks >= 8 * 8);
    CHECK(fallocate(fd, 0, 8 * PAGE, PAGE) == 0 && fstat(fd, &stat) == 0 && stat.st_size == 9 * PAGE);
    CHECK(pwrite(fd, "abcdefgh", 8, 3 * PAGE - 4) == 8 && pwrite(fd, "x", 1, 0) == 1);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, 2 * PAGE) == 0);
    CHECK(pread(fd, got, 8, 3 * PAGE - 4) == 8 && !memcmp(got, "\0\0\0\0efgh", 8));
    CHECK(lseek(fd, 0, SEEK_HOLE) == PAGE && lseek(fd, PAGE, SEEK_DATA) == 3 * PAGE);
    FAILS(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, PAGE), EOPNOTSUPP);
    FAILS(fallocate(fd, 0, 0, 0), EINVAL);
    return close(fd) || unlink("holes");
}

static int names(void)
{
    char path[PATH_MAX + 8], got[PATH_MAX];
    struct stat stat, other;
    CHECK(mkdir("names", 0755) == 0 && chdir("names") == 0);
    int fd = fresh("file", O_WRONLY);
    CHECK(fd >= 0 && write(fd, "1234", 4) == 4 && close(fd) == 0);
    FAILS(open("missing", O_RDONLY), ENOENT);
    FAILS(open("file/", O_RDONLY), ENOTDIR);
    FAILS(open("file/below", O_RDONLY), ENOTDIR);
    FAILS(open("file/../file", O_RDONLY), ENOTDIR);
    FAILS(open("file", O_CREAT | O_EXCL, 0644), EEXIST);
    FAILS(open(".", O_WRONLY), EISDIR);
    FAILS(open("new/", O_CREAT | O_WRONLY, 0644), EISDIR);
    FAILS(open("", O_RDONLY), ENOENT);
    FAILS(open("file", O_DIRECTORY), ENOTDIR);
    FAILS(mkdir("file", 0755), EEXIST);
    FAILS(mkdir(".", 0755), EEXIST);
    FAILS(rmdir("."), EINVAL);
    FAILS(rmdir("file"), ENOTDIR);
    FAILS(rmdir(".."), ENOTEMPTY);
    memset(path, 'n', sizeof path);
    path[256] = 0;
    FAILS(open(path, O_CREAT, 0644), ENAMETOOLONG);
    path[256] = 'n', path[PATH_MAX + 1] = 0;
    FAILS(open(path, O_RDONLY), ENAMETOOLONG);
    CHECK(symlink("loop", "loop") == 0 && symlink("file", "link") == 0 && symlink("dir/", "todir") == 0);
    FAILS(open("loop", O_RDONLY), ELOOP);
    FAILS(open("link", O_RDONLY | O_NOFOLLOW), ELOOP);
    FAILS(open("loop", O_CREAT | O_EXCL, 0644), EEXIST);
    CHECK(mkdir("dir", 0755) == 0 && mkdir("dir/below/", 0700) == 0);
    CHECK(lstat("todir", &stat) == 0 && S_ISLNK(stat.st_mode) && stat.st_size == 4);
    CHECK(lstat("todir/", &stat) == 0 && S_ISDIR(stat.st_mode) && stat.st_nlink == 3);
    CHECK(readlink("todir", got, 2) == 2 && !memcmp(got, "di", 2));
    FAILS(readlink("file", got, 9), EINVAL);
    CHECK(symlink("made", "dangling") == 0 && (fd = open("dangling", O_CREAT | O_WRONLY, 0600)) >= 0 && close(fd) == 0);
    CHECK(access("made", R_OK) == 0 && unlink("made") == 0 && unlink("dangling") == 0);
    FAILS(access("file", X_OK), EACCES);
    FAILS(access("file", 8), EINVAL);
    FAILS(unlink("dir"), EISDIR);
    FAILS(rmdir("dir"), ENOTEMPTY);
    /* What makes, removes or moves a name does not follow a link there, also before a slash. */
    CHECK(mkdir("plain", 0755) == 0 && symlink("plain/", "toplain") == 0 && symlink("made", "dangling") == 0);
    FAILS(rmdir("toplain/"), ENOTDIR);
    FAILS(unlink("toplain/"), ENOTDIR);
    FAILS(rename("toplain/", "moved"), ENOTDIR);
    FAILS(rename("dir", "toplain/"), ENOTDIR);
    FAILS(mkdir("dangling/", 0755), EEXIST);
    CHECK(rmdir("plain") == 0 && unlink("toplain") == 0 && unlink("dangling") == 0);
    /* Hard links. */
    CHECK(link("file", "second") == 0 && lstat("second", &stat) == 0 && stat.st_nlink == 2);
    CHECK(lstat("file", &other) == 0 && stat.st_ino == other.st_ino);
    FAILS(link("dir", "dir2"), EPERM);
    FAILS(link("file", "second"), EEXIST);
    CHECK(link("link", "linked") == 0 && lstat("linked", &stat) == 0 && S_ISLNK(stat.st_mode));
    /* Renames. */
    CHECK(rename("file", "second") == 0 && access("file", F_OK) == 0);
    CHECK(rename("second", "third") == 0 && access("second", F_OK) == -1);
    FAILS(rename("dir", "dir/below/x"), EINVAL);
    FAILS(rename("dir", "third"), ENOTDIR);
    FAILS(rename("third", "dir"), EISDIR);
    FAILS(rename("dir/below", "."), EBUSY);
    CHECK(mkdir("empty", 0755) == 0 && rename("dir/below", "empty") == 0);
    CHECK(lstat("dir", &stat) == 0 && stat.st_nlink == 2);
    FAILS(syscall(SYS_renameat2, AT_FDCWD, "third", AT_FDCWD, "empty", RENAME_NOREPLACE), EEXIST);
    CHECK(syscall(SYS_renameat2, AT_FDCWD, "third", AT_FDCWD, "dir", RENAME_EXCHANGE) == 0);
    CHECK(lstat("third", &stat) == 0 && S_ISDIR(stat.st_mode) && lstat("dir", &stat) == 0 && S_ISREG(stat.st_mode));
    CHECK(syscall(SYS_renameat2, AT_FDCWD, "dir", AT_FDCWD, "third", RENAME_EXCHANGE) == 0);
    /* A directory that is gone stays the working directory. */
    CHECK(chdir("empty") == 0 && rmdir("../empty") == 0);
    FAILS(syscall(SYS_getcwd, got, sizeof got), ENOENT);
    FAILS(open("x", O_CREAT | O_WRONLY, 0600), ENOENT);
    CHECK(chdir("..") == 0);
    /* A file that is gone can be used as long as it is open. */
    fd = open("third", O_RDWR);
    CHECK(unlink("third") == 0 && unlink("file") == 0 && fstat(fd, &stat) == 0 && stat.st_nlink == 0);
    CHECK(pread(fd, got, 4, 0) == 4 && !memcmp(got, "1234", 4) && close(fd) == 0);
    CHECK(rmdir("dir") == 0 && unlink("loop") == 0 && unlink("link") == 0 && unlink("linked") == 0);
    CHECK(unlink("todir") == 0 && chdir("..") == 0 && rmdir("names") == 0);
    return 0;
}

static int unnamed(void)
{
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    char path[64];
    struct stat stat;
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && fstat(fd, &stat) == 0 && stat.st_nlink == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0);
    CHECK(close(fd) == 0 && lstat("named", &stat) == 0 && stat.st_size == 1 && unlink("named") == 0);
    /* A link that fails leaves the file the name that it may get. */
    fd = open(".", O_TMPFILE | O_RDWR, 0600);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(mkdir("gone", 0755) == 0);
    int gone = open("gone", O_RDONLY | O_DIRECTORY);
    CHECK(gone >= 0 && rmdir("gone") == 0);
    FAILS(linkat(AT_FDCWD, path, gone, "named", AT_SYMLINK_FOLLOW), ENOENT);
    CHECK(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0);
    CHECK(close(gone) == 0 && close(fd) == 0 && unlink("named") == 0);
    FAILS(open(".", O_TMPFILE | O_RDONLY, 0600), EINVAL);
    fd = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FAILS(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW), ENOENT);
    close(fd);
    /* Sealed memory. */
    fd = memfd_create("sealed", MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FAILS(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
    CHECK(munmap(memory, PAGE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK) == 0);
    FAILS(write(fd, "x", 1), EPERM);
    FAILS(ftruncate(fd, 1), EPERM);
    FAILS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), EPERM);
    CHECK(ftruncate(fd, 2 * PAGE) == 0 && fcntl(fd, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK));
    return close(fd);
}

static int directory(void)
{
    char name[32], seen[400] = "";
    CHECK(mkdir("directory", 0755) == 0);
    for (int at = 0; at < 400; at++) {
        snprintf(name, sizeof name, "directory/%d", at);
        int fd = fresh(name, O_WRONLY);
        CHECK(fd >= 0 && close(fd) == 0);
    }
    DIR *open = opendir("directory");
    struct dirent *entry;
    int dots = 0, count = 0;
    while ((entry = readdir(open))) {
        if (entry->d_name[0] == '.') {
            dots++;
            continue;
        }
        CHECK(entry->d_type == DT_REG && !seen[atoi(entry->d_name)]++);
        count++;
        /* Entries go while they are listed. */
        snprintf(name, sizeof name, "directory/%.20s", entry->d_name);
        CHECK(unlink(name) == 0);
    }
    CHECK(dots == 2 && count == 400);
    rewinddir(open);
    for (count = 0; readdir(open); count++)
        ;
    CHECK(count == 2 && closedir(open) == 0 && rmdir("directory") == 0);
    return 0;
}

static int attributes(void)
{
    struct stat stat;
    struct statx statx_;
    int fd = fresh("attributes", O_RDWR);
    mode_t mask = umask(027);
    CHECK(chmod("attributes", 04751) == 0 && lstat("attributes", &stat) == 0 && (stat.st_mode & 07777) == 04751);
    CHECK(fchown(fd, 7, -1) == 0 && fstat(fd, &stat) == 0 && stat.st_uid == 7 && stat.st_gid == 0);
    CHECK((stat.st_mode & 07777) == 0751);
    struct timespec times[2] = {{1000, 5}, {0, UTIME_OMIT}};
    struct timespec before = stat.st_mtim;
    CHECK(utimensat(AT_FDCWD, "attributes", times, 0) == 0 && fstat(fd, &stat) == 0);
    CHECK(stat.st_atim.tv_sec == 1000 && stat.st_atim.tv_nsec == 5 && stat.st_mtim.tv_sec == before.tv_sec);
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &statx_) == 0 && statx_.stx_ino == stat.st_ino);
    CHECK(statx_.stx_mode == stat.st_mode && statx_.stx_atime.tv_sec == 1000 && statx_.stx_size == 0);
    int other = open("masked", O_CREAT | O_WRONLY, 0666);
    CHECK(fstat(other, &stat) == 0 && (stat.st_mode & 07777) == 0640 && umask(mask) == 027);
    struct statfs fs;
    CHECK(fstatfs(fd, &fs) == 0 && fs.f_bsize == (long)PAGE && fs.f_namelen == 255);
    CHECK(mknod("fifo", S_IFIFO | 0600, 0) == 0 && lstat("fifo", &stat) == 0 && S_ISFIFO(stat.st_mode));
    CHECK(stat.st_nlink == 1 && unlink("fifo") == 0);
    CHECK(lstat("/dev/null", &stat) == 0 && S_ISCHR(stat.st_mode) && stat.st_rdev == 0x103);
    return close(fd) || close(other) || unlink("attributes") || unlink("masked");
}

static int descriptors(void)
{
    int fd = fresh("descriptors", O_RDWR | O_CLOEXEC);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_SETFD, 0) == 0 && fcntl(fd, F_GETFD) == 0);
    CHECK(fcntl(fd, F_DUPFD_CLOEXEC, 100) == 100 && fcntl(100, F_GETFD) == FD_CLOEXEC);
    CHECK(dup2(fd, 50) == 50 && dup2(fd, fd) == fd && dup3(fd, 51, O_CLOEXEC) == 51);
    FAILS(dup3(fd, fd, 0), EINVAL);
    FAILS(dup2(77, 78), EBADF);
    FAILS(dup2(fd, 1 << 22), EBADF);
    FAILS(dup2(fd, -1), EBADF);
    FAILS(fcntl(fd, F_DUPFD, 1 << 22), EINVAL);
    FAILS(close(77), EBADF);
    CHECK(syscall(SYS_close_range, 50, 60, 0) == 0);
    FAILS(fcntl(50, F_GETFD), EBADF);
    CHECK(close(100) == 0);
    int path = open("descriptors", O_PATH);
    FAILS(write(path, "x", 1), EBADF);
    CHECK(path >= 0 && close(path) == 0);
    int last, more = -1;
    for (last = fd; (more = dup(fd)) >= 0; last = more)
        ;
    CHECK(errno == EMFILE && last > 500 && syscall(SYS_close_range, fd + 1, last, 0) == 0);
    return close(fd) || unlink("descriptors");
}

/* A lock that changes its type gives the old one up first: two that change to exclusive get it one after the other. */
static int upgrades(void)
{
    int shared[2], go[2], status;
    char byte = 0;
    pid_t children[2];
    CHECK(close(fresh("upgrades", O_RDWR)) == 0 && pipe(shared) == 0 && pipe(go) == 0);
    for (int at = 0; at < 2; at++) {
        children[at] = fork();
        if (children[at] == 0) {
            int fd = open("upgrades", O_RDWR);
            alarm(20);
            if (flock(fd, LOCK_SH) || flock(fd, LOCK_SH) || write(shared[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1)
                _exit(1);
            _exit(flock(fd, LOCK_EX) || flock(fd, LOCK_UN) ? 2 : 0);
        }
    }
    /* Both have it before one of them goes on. */
    for (int at = 0; at < 2; at++)
        CHECK(read(shared[0], &byte, 1) == 1);
    CHECK(write(go[1], "go", 2) == 2);
    for (int at = 0; at < 2; at++)
        CHECK(waitpid(children[at], &status, 0) == children[at] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return close(shared[0]) || close(shared[1]) || close(go[0]) || close(go[1]) || unlink("upgrades");
}

/* A process keeps its locks when it asks for descriptors of its own, and has them already. */
static int unshared(void)
{
    int fd = fresh("unshared", O_RDWR), status;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    CHECK(syscall(SYS_close_range, 200, ~0U, CLOSE_RANGE_UNSHARE) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(fcntl(fd, F_GETLK, &lock) || lock.l_type != F_WRLCK);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return close(fd) || unlink("unshared");
}

static int locks(void)
{
    int fd = fresh("locks", O_RDWR), status;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && flock(fd, LOCK_EX) == 0);
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct flock mine = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 15, .l_len = 0};
        if (fcntl(fd, F_SETLK, &mine) != -1 || (errno != EAGAIN && errno != EACCES))
            _exit(1);
        if (fcntl(fd, F_GETLK, &mine) || mine.l_type != F_WRLCK || mine.l_pid != parent || mine.l_start != 10 || mine.l_len != 10)
            _exit(2);
        mine = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
        if (fcntl(fd, F_SETLK, &mine))
            _exit(3);
        int other = open("locks", O_RDWR);
        if (flock(other, LOCK_EX | LOCK_NB) != -1 || errno != EWOULDBLOCK)
            _exit(4);
        /* From here on the parent gives its locks up. */
        if (write(ready[1], &byte, 1) != 1)
            _exit(6);
        mine.l_len = 0;
        if (fcntl(other, F_SETLKW, &mine) || flock(other, LOCK_SH))
            _exit(5);
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1 && close(ready[0]) == 0 && close(ready[1]) == 0);
    usleep(20000);
    lock.l_start = 12, lock.l_len = 2, lock.l_type = F_UNLCK;
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    usleep(20000);
    lock.l_start = 0, lock.l_len = 0;
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && flock(fd, LOCK_UN) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* Closing any descriptor of the file gives a process's locks up; an open file keeps its own. */
    lock.l_type = F_WRLCK;
    CHECK(fcntl(fd, F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1}) == 0);
    int other = open("locks", O_RDWR);
    FAILS(fcntl(other, F_OFD_SETLK, &(struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET}), EAGAIN);
    return close(other) || close(fd) || unlink("locks");
}

static int pipes(void)
{
    int ends[2], count;
    char buffer[70000];
    memset(buffer, 'p', sizeof buffer);
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
    FAILS(read(ends[0], buffer, 1), EAGAIN);
    CHECK(write(ends[1], buffer, sizeof buffer) == 65536 && ioctl(ends[0], FIONREAD, &count) == 0 && count == 65536);
    FAILS(write(ends[1], buffer, 1), EAGAIN);
    struct pollfd polled[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLOUT, 0}};
    CHECK(poll(polled, 2, 0) == 1 && polled[0].revents == POLLIN && polled[1].revents == 0);
    CHECK(read(ends[0], buffer, 100) == 100);
    /* Up to PIPE_BUF bytes are written whole or not at all. */
    FAILS(write(ends[1], buffer, 101), EAGAIN);
    CHECK(read(ends[0], buffer, 8092) == 8092 && write(ends[1], buffer, 4096) == 4096);
    CHECK(fcntl(ends[1], F_GETPIPE_SZ) == 65536 && fcntl(ends[1], F_SETPIPE_SZ, 100000) == 131072);
    CHECK(close(ends[1]) == 0 && read(ends[0], buffer, sizeof buffer) == 65536 - 8192 + 4096);
    CHECK(read(ends[0], buffer, 1) == 0 && poll(polled, 1, -1) == 1 && polled[0].revents == POLLHUP);
    CHECK(close(ends[0]) == 0 && pipe(ends) == 0 && close(ends[0]) == 0);
    signal(SIGPIPE, SIG_IGN);
    FAILS(write(ends[1], "x", 1), EPIPE);
    FAILS(lseek(ends[1], 0, SEEK_CUR), ESPIPE);
    FAILS(pwrite(ends[1], "x", 1, 0), ESPIPE);
    CHECK(close(ends[1]) == 0);
    signal(SIGPIPE, SIG_DFL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pipe(ends);
        close(ends[0]);
        write(ends[1], "x", 1);
        _exit(0);
    }
    CHECK(waitpid(child, &count, 0) == child && WIFSIGNALED(count) && WTERMSIG(count) == SIGPIPE);
    /* More than fits flows through while the other end reads. */
    CHECK(pipe(ends) == 0 && (child = fork()) >= 0);
    if (child == 0) {
        close(ends[0]);
        for (int round = 0; round < 20; round++)
            if (write(ends[1], buffer, sizeof buffer) != sizeof buffer)
                _exit(1);
        _exit(0);
    }
    close(ends[1]);
    long sum = 0, got;
    while ((got = read(ends[0], buffer, 3000)) > 0)
        sum += got;
    CHECK(sum == 20 * (long)sizeof buffer && waitpid(child, &count, 0) == child && count == 0 && close(ends[0]) == 0);
    /* A named one: the ends wait for each other. */
    CHECK(mkfifo("pipes", 0600) == 0);
    FAILS(open("pipes", O_WRONLY | O_NONBLOCK), ENXIO);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        int fd = open("pipes", O_WRONLY);
        _exit(write(fd, "named", 5) != 5);
    }
    int fd = open("pipes", O_RDONLY);
    CHECK(read(fd, buffer, 9) == 5 && !memcmp(buffer, "named", 5) && read(fd, buffer, 9) == 0 && close(fd) == 0);
    CHECK(waitpid(child, &count, 0) == child && count == 0);
    /* A writer that has closed again before the reader looks was there all the same. */
    CHECK(pipe(ends) == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        for (int round = 0; round < 300; round++)
            if ((fd = open("pipes", O_WRONLY)) < 0 || write(fd, "x", 1) != 1 || close(fd) || read(ends[0], buffer, 1) != 1)
                _exit(1);
        _exit(0);
    }
    for (int round = 0; round < 300; round++) {
        usleep(100);
        fd = open("pipes", O_RDONLY);
        CHECK(read(fd, buffer, 9) == 1 && read(fd, buffer, 9) == 0 && close(fd) == 0 && write(ends[1], "x", 1) == 1);
    }
    CHECK(waitpid(child, &count, 0) == child && count == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    return unlink("pipes");
}

static int waits(void)
{
    int ends[2], counter = eventfd(3, EFD_NONBLOCK), status;
    uint64_t value;
    CHECK(read(counter, &value, 8) == 8 && value == 3);
    FAILS(read(counter, &value, 8), EAGAIN);
    value = 5;
    CHECK(write(counter, &value, 8) == 8 && write(counter, &value, 8) == 8 && read(counter, &value, 8) == 8 && value == 10);
    int one_by_one = eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK);
    CHECK(read(one_by_one, &value, 8) == 8 && value == 1 && read(one_by_one, &value, 8) == 8);
    FAILS(read(one_by_one, &value, 8), EAGAIN);
    CHECK(pipe(ends) == 0);
    struct pollfd polled[3] = {{ends[0], POLLIN, 0}, {-1, POLLIN, 9}, {99, POLLIN, 0}};
    CHECK(poll(polled, 2, 10) == 0 && polled[1].revents == 0 && poll(polled, 3, -1) == 1 && polled[2].revents == POLLNVAL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        usleep(30000);
        _exit(write(ends[1], "x", 1) != 1);
    }
    CHECK(poll(polled, 1, 10000) == 1 && polled[0].revents == POLLIN && waitpid(child, &status, 0) == child);
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(ends[0], &in);
    FD_SET(ends[1], &out);
    FD_SET(counter, &in);
    CHECK(select(64, &in, &out, NULL, NULL) == 2 && FD_ISSET(ends[0], &in) && FD_ISSET(ends[1], &out) && !FD_ISSET(counter, &in));
    FD_ZERO(&in);
    FD_SET(77, &in);
    FAILS(select(78, &in, NULL, NULL, NULL), EBADF);
    /* Sets: by level, by edge, once. */
    int set = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(0);
    struct epoll_event events[4] = {{EPOLLIN, {.u64 = 1}}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], events) == 0);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], events), EEXIST);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, set, events), EINVAL);
    FAILS(epoll_ctl(set, EPOLL_CTL_DEL, counter, events), ENOENT);
    int file = fresh("waits", O_RDWR);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, file, events), EPERM);
    CHECK(close(file) == 0 && unlink("waits") == 0);
    CHECK(epoll_wait(set, events, 4, -1) == 1 && events[0].data.u64 == 1 && epoll_wait(set, events, 4, 0) == 1);
    events[0] = (struct epoll_event){EPOLLIN, {.u64 = 9}};
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, set, events) == 0 && epoll_wait(outer, events, 4, -1) == 1 && events[0].data.u64 == 9);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, outer, events), ELOOP);
    events[0] = (struct epoll_event){EPOLLIN | EPOLLET, {.u64 = 2}};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], events) == 0);
    CHECK(epoll_wait(set, events, 4, 0) == 1 && events[0].data.u64 == 2 && epoll_wait(set, events, 4, 0) == 0);
    CHECK(write(ends[1], "y", 1) == 1 && epoll_wait(set, events, 4, 0) == 1);
    events[0] = (struct epoll_event){EPOLLIN | EPOLLONESHOT, {.u64 = 3}};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], events) == 0 && epoll_wait(set, events, 4, 0) == 1);
    CHECK(epoll_wait(set, events, 4, 0) == 0);
    events[0] = (struct epoll_event){EPOLLIN, {.u64 = 4}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, events) == 0 && epoll_wait(set, events, 4, 10) == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        usleep(30000);
        value = 1;
        _exit(write(counter, &value, 8) != 8);
    }
    CHECK(epoll_wait(set, events, 4, 10000) == 1 && events[0].data.u64 == 4 && waitpid(child, &status, 0) == child);
    /* A file that is closed leaves its sets. */
    CHECK(close(counter) == 0 && epoll_wait(set, events, 4, 0) == 0);
    /* The end of the other side is reported even if nothing was asked for. */
    int added[2], changed[2];
    CHECK(pipe(added) == 0 && pipe(changed) == 0);
    events[0] = (struct epoll_event){0, {.u64 = 5}};
    events[1] = (struct epoll_event){EPOLLOUT, {.u64 = 6}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, added[0], events) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, changed[1], events + 1) == 0);
    events[1].events = 0;
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, changed[1], events + 1) == 0);
    CHECK(write(added[1], "x", 1) == 1 && epoll_wait(set, events, 4, 0) == 0 && close(added[1]) == 0);
    CHECK(epoll_wait(set, events, 4, 0) == 1 && events[0].data.u64 == 5 && events[0].events == EPOLLHUP);
    CHECK(close(added[0]) == 0 && close(changed[0]) == 0);
    CHECK(epoll_wait(set, events, 4, 0) == 1 && events[0].data.u64 == 6 && events[0].events == EPOLLERR);
    CHECK(close(changed[1]) == 0 && epoll_wait(set, events, 4, 0) == 0);
    return close(set) || close(outer) || close(ends[0]) || close(ends[1]) || close(one_by_one);
}

static int copies(void)
{
    int from = fresh("from", O_RDWR), to = fresh("to", O_RDWR), ends[2];
    char block[1000], got[1000];
    for (int at = 0; at < 1000; at++)
        block[at] = (char)at;
    for (int round = 0; round < 50; round++)
        CHECK(write(from, block, 1000) == 1000);
    off_t offset = 1000;
    CHECK(sendfile(to, from, &offset, 30000) == 30000 && offset == 31000 && lseek(from, 0, SEEK_CUR) == 50000);
    CHECK(pread(to, got, 1000, 29000) == 1000 && !memcmp(got, block, 1000));
    off_t in = 500, out = 100;
    CHECK(copy_file_range(from, &in, to, &out, 500, 0) == 500 && in == 1000 && out == 600);
    CHECK(pread(to, got, 500, 100) == 500 && !memcmp(got, block + 500, 500));
    CHECK(lseek(from, 49500, SEEK_SET) == 49500 && copy_file_range(from, NULL, to, NULL, 9999, 0) == 500);
    CHECK(pipe(ends) == 0 && lseek(from, 0, SEEK_SET) == 0 && sendfile(ends[1], from, NULL, 1000) == 1000);
    CHECK(read(ends[0], got, 1000) == 1000 && !memcmp(got, block, 1000) && close(ends[0]) == 0 && close(ends[1]) == 0);
    return close(from) || close(to) || unlink("from") || unlink("to");
}

static int devices(void)
{
    char buffer[300], other[300];
    int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY), full = open("/dev/full", O_RDWR);
    CHECK(write(null, buffer, 300) == 300 && read(null, buffer, 300) == 0);
    memset(buffer, 1, 300);
    CHECK(read(zero, buffer, 300) == 300 && !buffer[0] && !buffer[299]);
    FAILS(write(full, buffer, 1), ENOSPC);
    int random = open("/dev/urandom", O_RDONLY);
    CHECK(read(random, buffer, 300) == 300 && read(random, other, 300) == 300 && memcmp(buffer, other, 300));
    return close(null) || close(zero) || close(full) || close(random);
}

/* Errors of bad arguments. */
static int hostile(void)
{
    char got[8];
    int fd = fresh("hostile", O_RDWR);
    FAILS(write(fd, (void *)8, 5), EFAULT);
    FAILS(write(fd, (void *)0xffff800000000000, 5), EFAULT);
    CHECK(write(fd, "abc", 3) == 3 && lseek(fd, 0, SEEK_SET) == 0);
    FAILS(read(fd, (void *)0x7fffffffffff, 3), EFAULT);
    FAILS(syscall(SYS_read, fd, got, -1L), EFAULT);
    FAILS(open((void *)8, O_RDONLY), EFAULT);
    FAILS(syscall(SYS_writev, fd, (void *)8, 1), EFAULT);
    FAILS(syscall(SYS_writev, fd, got, 1025), EINVAL);
    FAILS(syscall(SYS_pwrite64, fd, got, 1, INT64_MAX), EINVAL);
    FAILS(syscall(SYS_pwrite64, fd, got, 1, -1L), EINVAL);
    FAILS(ftruncate(fd, -1), EINVAL);
    FAILS(syscall(SYS_fcntl, fd, 9999, 0), EINVAL);
    FAILS(ioctl(fd, 0x12345678, got), ENOTTY);
    FAILS(syscall(SYS_getdents64, fd, got, 8), ENOTDIR);
    FAILS(syscall(SYS_openat, 77, "hostile", O_RDONLY), EBADF);
    FAILS(syscall(SYS_openat, fd, "hostile", O_RDONLY), ENOTDIR);
    FAILS(syscall(SYS_newfstatat, AT_FDCWD, "hostile", got, 0x40000000), EINVAL);
    FAILS(syscall(SYS_linkat, AT_FDCWD, "hostile", AT_FDCWD, "x", 1), EINVAL);
    return close(fd) || unlink("hostile");
}

/* A file that a process runs is not written, and one that is written is not run. */
static int running(void)
{
    char *const arguments[] = { "program", NULL }, *const environment[] = { NULL };
    FAILS(open("/proc/self/exe", O_WRONLY), ETXTBSY);
    FAILS(open("/proc/self/exe", O_RDONLY | O_TRUNC), ETXTBSY);
    FAILS(truncate("/proc/self/exe", 0), ETXTBSY);
    int fd = fresh("program", O_WRONLY);
    CHECK(fd >= 0 && fchmod(fd, 0755) == 0 && write(fd, "#!/missing\n", 11) == 11);
    FAILS(execve("program", arguments, environment), ETXTBSY);
    CHECK(close(fd) == 0);
    FAILS(execve("program", arguments, environment), ENOENT);
    /* What failed leaves nothing behind. */
    fd = open("program", O_WRONLY);
    CHECK(fd >= 0 && close(fd) == 0 && unlink("program") == 0);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} CASES[] = {
    {"mapped", mapped}, {"rewritten", rewritten}, {"positions", positions}, {"append", append}, {"holes", holes},
    {"names", names}, {"unnamed", unnamed}, {"directory", directory}, {"attributes", attributes},
    {"descriptors", descriptors}, {"locks", locks},
    {"upgrades", upgrades}, {"unshared", unshared}, {"pipes", pipes}, {"waits", waits}, {"copies", copies},
    {"devices", devices}, {"hostile", hostile}, {"running", running}, {"mounts", mounts}, {"numbers", numbers}, {"users", users},
};

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    int status = 2;
    if (access("/tmp", W_OK) == 0 && count < 3 && chdir("/tmp"))
        return 1;
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        if (strcmp(name, CASES[at].name) && strcmp(name, "all"))
            continue;
        int failed = CASES[at].run();
        if (failed)
            printf("%s failed\n", CASES[at].name);
        fflush(stdout);
        status = (status == 2 ? 0 : status) | !!failed;
    }
    return status;
}
