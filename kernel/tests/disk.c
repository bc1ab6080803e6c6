// Files on a disk, and the disk itself: what programs see. Each case runs in the directory /mnt, where an ext2 file
// system is mounted, but for `device`, which has /dev/vda to itself.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/fs.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s: errno %d\n", __LINE__, #condition, errno); \
            exit(1); \
        } \
    } while (0)
#define FAILS(call, error) CHECK((call) == -1 && errno == (error))

enum { PAGE = 4096, MIB = 1 << 20 };

static char page[PAGE];

static int make(const char *name, size_t bytes, int byte) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    memset(page, byte, PAGE);
    for (size_t at = 0; at < bytes; at += PAGE) {
        size_t part = bytes - at < PAGE ? bytes - at : PAGE;
        CHECK(write(fd, page, part) == (ssize_t)part);
    }
    return fd;
}

static void expect_byte(int fd, off_t at, int byte) {
    unsigned char found;
    CHECK(pread(fd, &found, 1, at) == 1);
    CHECK(found == byte);
}

static unsigned long free_blocks(void) {
    struct statfs fs;
    CHECK(statfs("/mnt", &fs) == 0);
    CHECK(fs.f_type == 0xef53);
    return fs.f_bfree;
}

// Shared stores reach the disk by msync and show in read; private ones do not. The host looks at the file later.
// Pages that the device has filled are whole (Q1).
static void mapped(void) {
    int fd = make("/mnt/mapped", 3 * PAGE + 100, 'a');
    char *shared = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *private = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(shared != MAP_FAILED && private != MAP_FAILED);
    private[PAGE] = 'p';
    shared[0] = 's';
    shared[2 * PAGE] = 't';
    // Bytes behind the end are not part of the file, whatever is stored there.
    shared[3 * PAGE + 200] = 'x';
    expect_byte(fd, 0, 's');
    expect_byte(fd, PAGE, 'a');
    CHECK(msync(shared, 4 * PAGE, MS_SYNC) == 0);
    // A store after that marks the page again.
    shared[1] = 'u';
    CHECK(fsync(fd) == 0);
    CHECK(ftruncate(fd, 3 * PAGE + 300) == 0);
    expect_byte(fd, 3 * PAGE + 99, 'a');
    // A hole that a mapping stores to gets a block.
    CHECK(ftruncate(fd, 100 * PAGE) == 0);
    char *far = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 90 * PAGE);
    CHECK(far != MAP_FAILED && far[0] == 0);
    far[7] = 'h';
    CHECK(msync(far, PAGE, MS_SYNC) == 0);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_size == 100 * PAGE && stat.st_blocks < 100 * 8);
}

// What is cut off reads as zeroes when the file grows again, also after its pages were dropped.
static void truncated(void) {
    int fd = make("/mnt/cut", 200 * PAGE, 'c');
    CHECK(fsync(fd) == 0);
    CHECK(ftruncate(fd, 1000) == 0 && ftruncate(fd, 150 * PAGE) == 0);
    expect_byte(fd, 999, 'c');
    expect_byte(fd, 1000, 0);
    expect_byte(fd, 100 * PAGE, 0);
    CHECK(lseek(fd, 0, SEEK_END) == 150 * PAGE);
    CHECK(pwrite(fd, "end", 3, 149 * PAGE) == 3);
}

// A full disk is an error of write, not of fsync, and what was removed is free again.
static void full(void) {
    unsigned long before = free_blocks();
    int fd = open("/mnt/full", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0);
    static char chunk[64 * 1024];
    ssize_t count;
    while ((count = write(fd, chunk, sizeof chunk)) > 0) {
    }
    CHECK(count == -1 && errno == ENOSPC);
    CHECK(fsync(fd) == 0);
    FAILS(mkdir("/mnt/none", 0755), ENOSPC);
    CHECK(unlink("/mnt/full") == 0);
    CHECK(free_blocks() < before);
    CHECK(close(fd) == 0);
    CHECK(free_blocks() == before);
}

// A file without a name lives as long as it is open or mapped.
static void nameless(void) {
    unsigned long before = free_blocks();
    int fd = make("/mnt/gone", 20 * PAGE, 'g');
    char *map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 10 * PAGE);
    CHECK(unlink("/mnt/gone") == 0 && access("/mnt/gone", F_OK) == -1);
    expect_byte(fd, 5 * PAGE, 'g');
    CHECK(close(fd) == 0);
    make("/mnt/other", 20 * PAGE, 'o');
    CHECK(map[0] == 'g');
    CHECK(munmap(map, PAGE) == 0 && unlink("/mnt/other") == 0);
    close(3);
    CHECK(free_blocks() >= before - 1);
}

// While a removed file is mapped, other removed ones still give way, and a full disk is a full one.
static void held(void) {
    int fd = make("/mnt/held", PAGE, 'h'), full = open("/mnt/full", O_RDWR | O_CREAT, 0644);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    CHECK(close(fd) == 0 && unlink("/mnt/held") == 0 && close(make("/mnt/gone", 20 * PAGE, 'g')) == 0);
    for (int round = 0; round < 2; round++) {
        ssize_t count;
        while ((count = write(full, page, PAGE)) == PAGE) {
        }
        CHECK(count == -1 && errno == ENOSPC);
        if (round == 0) {
            CHECK(unlink("/mnt/gone") == 0 && write(full, page, PAGE) == PAGE);
        }
    }
    CHECK(unlink("/mnt/full") == 0 && close(full) == 0);
}

static long flushes(void) {
    long count = -1;
    FILE *file = fopen("/proc/diskstats", "r");
    CHECK(file && fscanf(file, "%*d %*d vda %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %ld", &count) == 1);
    CHECK(fclose(file) == 0);
    return count;
}

// What says that something is on the disk has written it, and told the disk to keep it.
static void durable(void) {
    int directory = open("/mnt", O_RDONLY | O_DIRECTORY), fd = make("/mnt/durable", 0, 0);
    long before = flushes();
    CHECK(rename("/mnt/durable", "/mnt/kept") == 0 && fsync(directory) == 0 && flushes() > before);
    before = flushes();
    CHECK(write(fd, "x", 1) == 1 && flushes() == before);
    struct iovec part = { "x", 1 };
    CHECK(pwritev2(fd, &part, 1, 0, RWF_DSYNC) == 1 && flushes() > before);
    CHECK(close(fd) == 0 && (fd = open("/mnt/kept", O_RDWR | O_DSYNC)) >= 0);
    before = flushes();
    CHECK(pwrite(fd, "x", 1, 5) == 1 && flushes() > before);
    before = flushes();
    CHECK(write(fd, "x", 1) == 1 && flushes() > before && ftruncate(fd, 10 * PAGE) == 0);
    char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 9 * PAGE);
    CHECK(map != MAP_FAILED);
    map[0] = 'm';
    before = flushes();
    CHECK(msync(map, PAGE, MS_SYNC) == 0 && flushes() > before);
    before = flushes();
    CHECK(msync(page - (size_t)page % PAGE, PAGE, MS_SYNC) == 0 && flushes() == before);
    CHECK(munmap(map, PAGE) == 0 && close(fd) == 0 && close(directory) == 0 && unlink("/mnt/kept") == 0);
}

// A file that is cut to the size it has counts as written.
static void stamped(void) {
    struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
    struct stat stat;
    int fd = make("/mnt/stamp", 0, 0);
    CHECK(close(fd) == 0 && utimensat(AT_FDCWD, "/mnt/stamp", times, 0) == 0);
    CHECK((fd = open("/mnt/stamp", O_WRONLY | O_TRUNC)) >= 0 && fstat(fd, &stat) == 0 && stat.st_mtime > 1000);
    CHECK(futimens(fd, times) == 0 && ftruncate(fd, 0) == 0 && fstat(fd, &stat) == 0 && stat.st_mtime > 1000);
    CHECK(close(fd) == 0 && unlink("/mnt/stamp") == 0);
}

// Leaves a page behind that cannot be written: it was stored to a hole, and the disk is full.
static void unwritable(void) {
    int fd = make("/mnt/hole", 0, 0), full = open("/mnt/full", O_RDWR | O_CREAT, 0644);
    CHECK(ftruncate(fd, 100 * PAGE) == 0);
    while (write(full, page, PAGE) == PAGE) {
    }
    char *map = mmap(NULL, 100 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int at = 0; at < 100; at++) {
        map[at * PAGE] = 'x';
    }
    FAILS(msync(map, 100 * PAGE, MS_SYNC), EIO);
}

static volatile int is_done;

static void *make_often(void *unused) {
    while (!is_done) {
        CHECK(mkdir("/mnt/often", 0755) == 0 && rmdir("/mnt/often") == 0);
    }
    return unused;
}

// Locks are kept by node. What a node is, a file system may have to wait for.
static void locks(void) {
    pthread_t thread;
    int fd = make("/mnt/locked", 100, 'l');
    CHECK(pthread_create(&thread, NULL, make_often, NULL) == 0);
    for (int round = 0; round < 2000; round++) {
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10 };
        CHECK(fcntl(fd, F_SETLK, &lock) == 0);
        lock.l_type = F_RDLCK;
        CHECK(fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_pid == getpid());
        lock = (struct flock){ .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_len = 5 };
        CHECK(fcntl(fd, F_SETLK, &lock) == 0 && close(dup(fd)) == 0);
    }
    is_done = 1;
    CHECK(pthread_join(thread, NULL) == 0 && close(fd) == 0 && unlink("/mnt/locked") == 0);
}

// Files that are gone give way to those that grow, and to new names.
static void deleted(void) {
    int full = open("/mnt/full", O_RDWR | O_CREAT, 0644), fd = make("/mnt/grows", 0, 0), count = 0;
    static char chunk[64 * 1024];
    CHECK(full >= 0 && mkdir("/mnt/names", 0755) == 0);
    for (int round = 0; round < 2; round++) {
        while (write(full, chunk, sizeof chunk) > 0) {
        }
        FAILS(write(fd, chunk, sizeof chunk), ENOSPC);
        CHECK(unlink("/mnt/full") == 0 && close(full) == 0);
        if (round == 0) {
            CHECK(write(fd, chunk, sizeof chunk) == sizeof chunk);
            full = open("/mnt/full", O_RDWR | O_CREAT, 0644);
            continue;
        }
        // More names than the directory's block has room for.
        for (char path[300]; count < 40; count++) {
            snprintf(path, sizeof path, "/mnt/names/%0200d", count);
            CHECK(link("/mnt/grows", path) == 0);
        }
    }
    CHECK(unlink("/mnt/grows") == 0);
}

// A link that finds no room leaves nothing behind, whatever block its path would be the number of.
static void crowded(void) {
    int fd = open("/mnt/full", O_RDWR | O_CREAT, 0644), count[2] = { 0, 0 };
    static char chunk[64 * 1024];
    CHECK(fd >= 0 && mkdir("/mnt/crowded", 0755) == 0 && chdir("/mnt/crowded") == 0);
    while (write(fd, chunk, sizeof chunk) > 0) {
    }
    char name[300];
    for (int kind = 0; kind < 2; kind++) {
        for (errno = 0; errno == 0; count[kind] += errno == 0) {
            snprintf(name, sizeof name, "%d%0200d", kind, count[kind]);
            symlink(kind ? "a longer target" : "a", name);
        }
        CHECK(errno == ENOSPC && access(name, F_OK) == -1 && errno == ENOENT);
    }
    CHECK(chdir("/") == 0 && unlink("/mnt/full") == 0 && close(fd) == 0);
}

// A size that no file can have.
static void large(void) {
    int fd = make("/mnt/large", 10, 'l');
    FAILS(ftruncate(fd, 1L << 45), EFBIG);
    FAILS(truncate("/mnt/large", 1L << 45), EFBIG);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_size == 10 && close(fd) == 0 && unlink("/mnt/large") == 0);
}

static int owned_by(const char *path, unsigned user, unsigned group) {
    struct stat stat;
    CHECK(lstat(path, &stat) == 0);
    return stat.st_uid == user && stat.st_gid == group;
}

// What a user makes is the user's. A directory with set-group-ID passes on its group, and the bit to directories.
static void owners(void) {
    CHECK(mkdir("/mnt/user", 0777) == 0 && chmod("/mnt/user", 0777) == 0);
    CHECK(setresgid(-1, 70002, -1) == 0 && setresuid(-1, 70001, -1) == 0);
    CHECK(close(make("/mnt/user/file", 0, 0)) == 0 && owned_by("/mnt/user/file", 70001, 70002));
    CHECK(mkdir("/mnt/user/group", 0755) == 0 && owned_by("/mnt/user/group", 70001, 70002));
    CHECK(setresuid(-1, 0, -1) == 0 && chown("/mnt/user/group", 0, 70003) == 0 && chmod("/mnt/user/group", 02777) == 0);
    CHECK(setresuid(-1, 70001, -1) == 0);
    CHECK(symlink("x", "/mnt/user/group/link") == 0 && owned_by("/mnt/user/group/link", 70001, 70003));
    struct stat stat;
    CHECK(mkdir("/mnt/user/group/below", 0755) == 0 && lstat("/mnt/user/group/below", &stat) == 0);
    CHECK(stat.st_gid == 70003 && stat.st_mode == (S_IFDIR | 02755));
    CHECK(setresuid(-1, 0, -1) == 0 && setresgid(-1, 0, -1) == 0);
}

static volatile int is_renamed;

static void *rename_often(void *unused) {
    for (int i = 0; i < 3000; i++) {
        CHECK(rename("/mnt/raced/a", "/mnt/raced/b") == 0);
        while (renameat2(AT_FDCWD, "/mnt/raced/b", AT_FDCWD, "/mnt/raced/a", RENAME_NOREPLACE) != 0) {
            CHECK(errno == EEXIST);
        }
    }
    is_renamed = 1;
    return unused;
}

// A name that became free while a file got another one leads to what is made there, not to that file.
static void raced(void) {
    pthread_t thread;
    CHECK(mkdir("/mnt/raced", 0755) == 0 && close(make("/mnt/raced/a", 10, 'a')) == 0);
    CHECK(pthread_create(&thread, NULL, rename_often, NULL) == 0);
    while (!is_renamed) {
        int fd = open("/mnt/raced/a", O_RDWR | O_CREAT | O_EXCL, 0644);
        if (fd < 0) {
            CHECK(errno == EEXIST);
            continue;
        }
        struct stat made, found;
        CHECK(fstat(fd, &made) == 0 && made.st_size == 0);
        CHECK(lstat("/mnt/raced/a", &found) == 0 && found.st_ino == made.st_ino);
        CHECK(close(fd) == 0 && unlink("/mnt/raced/a") == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
}

static pthread_barrier_t barrier;

static void *open_often(void *unused) {
    while (!is_done) {
        int fd = open("/mnt/existing", O_RDONLY);
        CHECK(fd >= 0 && close(fd) == 0);
    }
    return unused;
}

// A file system that is busy stays where it is, also for a moment.
static void busy(void) {
    pthread_t thread;
    int fd = make("/mnt/busy", 2 * MIB, 'b');
    char *map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0 && close(make("/mnt/existing", 1, 'e')) == 0);
    CHECK(pthread_create(&thread, NULL, open_often, NULL) == 0);
    for (int round = 0; round < 20; round++) {
        FAILS(umount("/mnt"), EBUSY);
        usleep(1000);
    }
    CHECK(chdir("/mnt") == 0);
    FAILS(umount("/mnt"), EBUSY);
    is_done = 1;
    CHECK(pthread_join(thread, NULL) == 0 && chdir("/") == 0 && munmap(map, PAGE) == 0);
    CHECK(unlink("/mnt/busy") == 0 && unlink("/mnt/existing") == 0);
}

static void *make_inodes_known(void *unused) {
    char name[40];
    for (int round = 0; !is_done; round++) {
        for (int at = 0; at < 300; at++) {
            snprintf(name, sizeof name, "/mnt/known/%d", at);
            if (at % 16 == 0) {
                CHECK(close(make(name, PAGE, round)) == 0);
            }
            CHECK(access(name, F_OK) == 0);
        }
        CHECK(close(make("/mnt/known/new", 0, 0)) == 0 && unlink("/mnt/known/new") == 0);
    }
    return unused;
}

// A file that is written keeps the blocks that the write has allocated, while unused inodes are forgotten.
static void prepared(void) {
    pthread_t thread;
    static char chunk[64 * 1024];
    char name[40];
    CHECK(mkdir("/mnt/known", 0755) == 0);
    for (int at = 0; at < 300; at++) {
        snprintf(name, sizeof name, "/mnt/known/%d", at);
        CHECK(close(make(name, 0, 0)) == 0);
    }
    CHECK(close(make("/mnt/prepared", 0, 0)) == 0 && pthread_create(&thread, NULL, make_inodes_known, NULL) == 0);
    for (int round = 0; round < 200; round++) {
        struct stat stat;
        int fd = open("/mnt/prepared", O_RDWR);
        CHECK(fd >= 0 && write(fd, chunk, sizeof chunk) == sizeof chunk && fstat(fd, &stat) == 0);
        CHECK(stat.st_blocks >= (long)sizeof chunk / 512 && ftruncate(fd, 0) == 0 && close(fd) == 0);
    }
    is_done = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

static void *mount_disk(void *unused) {
    CHECK(mount("/dev/vda", "/mnt", "ext2", 0, "") == 0);
    return unused;
}

// Of two file systems that are mounted over a directory at once, the later one covers the other.
static void mounts(void) {
    pthread_t thread;
    CHECK(umount("/mnt") == 0);
    for (int round = 0; round < 20; round++) {
        CHECK(pthread_create(&thread, NULL, mount_disk, NULL) == 0);
        CHECK(mount("none", "/mnt", "tmpfs", 0, "") == 0 && pthread_join(thread, NULL) == 0);
        CHECK(umount("/mnt") == 0 && umount("/mnt") == 0);
    }
    // A directory that is gone is not covered.
    CHECK(mkdir("/tmp/gone", 0755) == 0);
    int gone = open("/tmp/gone", O_RDONLY | O_DIRECTORY);
    CHECK(gone >= 0 && rmdir("/tmp/gone") == 0 && fchdir(gone) == 0);
    FAILS(mount("none", ".", "tmpfs", 0, ""), ENOENT);
    CHECK(chdir("/") == 0 && close(gone) == 0 && mount("/dev/vda", "/mnt", "ext2", 0, "") == 0);
}

// A program that runs cannot be written, and one that is written cannot be run.
static void running(void) {
    static char program[4 * MIB];
    char *const words[] = { "disk", "wait", NULL }, *const none[] = { NULL };
    int from = open("/bin/disk", O_RDONLY), fd = open("/mnt/disk", O_WRONLY | O_CREAT, 0755), status;
    ssize_t bytes = read(from, program, sizeof program);
    CHECK(bytes > 0 && write(fd, program, bytes) == bytes);
    FAILS(execve("/mnt/disk", words, none), ETXTBSY);
    CHECK(close(fd) == 0 && close(from) == 0);
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ready[1], 1);
        exit(execve("/mnt/disk", words, none));
    }
    CHECK(read(ready[0], program, 1) == 1);
    FAILS(open("/mnt/disk", O_WRONLY), ETXTBSY);
    FAILS(truncate("/mnt/disk", 0), ETXTBSY);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK((fd = open("/mnt/disk", O_WRONLY)) >= 0 && close(fd) == 0 && unlink("/mnt/disk") == 0);
}

static void *read_once(void *at) {
    char byte;
    int fd = open("/dev/vda", O_RDONLY);
    pthread_barrier_wait(&barrier);
    CHECK(pread(fd, &byte, 1, (off_t)(size_t)at * 37 * PAGE) == 1 && close(fd) == 0);
    return at;
}

// More tasks than the queue of the disk has slots: each gets one, also when no other request follows.
static void slots(void) {
    enum { COUNT = 40 };
    pthread_t threads[COUNT];
    CHECK(pthread_barrier_init(&barrier, NULL, COUNT) == 0);
    for (int round = 0; round < 30; round++) {
        for (size_t at = 0; at < COUNT; at++) {
            CHECK(pthread_create(&threads[at], NULL, read_once, (void *)at) == 0);
        }
        for (int at = 0; at < COUNT; at++) {
            CHECK(pthread_join(threads[at], NULL) == 0);
        }
    }
}


static int results[2];

// Renames `job` to a name of its own.
static void *claim(void *name) {
    for (int round = 0; round < 1000; round++) {
        pthread_barrier_wait(&barrier);
        int *result = &results[((char *)name)[4] - '0'];
        *result = rename("job", name);
        CHECK(*result == 0 || errno == ENOENT);
        pthread_barrier_wait(&barrier);
    }
    return name;
}

static void *remove_job(void *unused) {
    for (int round = 0; round < 1000; round++) {
        pthread_barrier_wait(&barrier);
        results[1] = unlink("job");
        CHECK(results[1] == 0 || errno == ENOENT);
        pthread_barrier_wait(&barrier);
    }
    return unused;
}

// Of two tasks that rename a name, or remove it, at once, one finds it. The other one does not get its new name.
static void claimed(void) {
    const char *const directories[] = { "/tmp/claimed", "/mnt/claimed" };
    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    for (int at = 0; at < 4; at++) {
        pthread_t thread;
        mkdir(directories[at / 2], 0755);
        CHECK(chdir(directories[at / 2]) == 0);
        CHECK(pthread_create(&thread, NULL, at % 2 ? remove_job : claim, "job.1") == 0);
        for (int round = 0; round < 1000; round++) {
            CHECK(close(make("job", 0, 0)) == 0);
            pthread_barrier_wait(&barrier);
            results[0] = rename("job", "job.0");
            CHECK(results[0] == 0 || errno == ENOENT);
            pthread_barrier_wait(&barrier);
            CHECK((results[0] == 0) + (results[1] == 0) == 1);
            CHECK(unlink("job.0") == results[0]);
            CHECK(at % 2 || unlink("job.1") == results[1]);
        }
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(chdir("/") == 0);
}

static void names(void) {
    CHECK(mkdir("/mnt/a", 0755) == 0 && mkdir("/mnt/a/b", 0700) == 0 && mkdir("/mnt/c", 0755) == 0);
    close(make("/mnt/a/file", 10, 'n'));
    struct stat stat;
    CHECK(link("/mnt/a/file", "/mnt/c/link") == 0 && lstat("/mnt/c/link", &stat) == 0 && stat.st_nlink == 2);
    FAILS(link("/mnt/a/file", "/mnt/c/link"), EEXIST);
    FAILS(link("/mnt/a/file", "/tmp/link"), EXDEV);
    FAILS(rmdir("/mnt/a"), ENOTEMPTY);
    FAILS(unlink("/mnt/a/b"), EISDIR);
    FAILS(rmdir("/mnt/a/file"), ENOTDIR);
    FAILS(rename("/mnt/a", "/mnt/a/b/a"), EINVAL);
    CHECK(chdir("/mnt/a/b") == 0);
    // Directories change their parent.
    CHECK(rename("/mnt/a/b", "/mnt/c/d") == 0);
    char path[100];
    CHECK(strcmp(getcwd(path, sizeof path), "/mnt/c/d") == 0);
    CHECK(lstat("..", &stat) == 0 && stat.st_nlink == 3);
    CHECK(lstat("/mnt/a", &stat) == 0 && stat.st_nlink == 2);
    FAILS(rename("/mnt/a/file", "/mnt/c/d"), EISDIR);
    CHECK(rename("/mnt/a/file", "/mnt/c/link") == 0);
    CHECK(rename("/mnt/a/file", "/mnt/c/other") == 0);
    CHECK(mkdir("/mnt/e", 0755) == 0 && rename("/mnt/e", "/mnt/c/d") == 0);
    CHECK(lstat("/mnt/c", &stat) == 0 && stat.st_nlink == 3);
    char target[300];
    memset(target, 't', sizeof target - 1);
    target[sizeof target - 1] = 0;
    char found[400];
    CHECK(symlink(target, "/mnt/c/long") == 0 && readlink("/mnt/c/long", found, sizeof found) == 299);
    CHECK(symlink("other", "/mnt/c/short") == 0 && open("/mnt/c/short", O_RDONLY) >= 0);
    CHECK(chdir("/") == 0 && chmod("/mnt/c/other", 0600) == 0 && chown("/mnt/c/other", 70000, 5) == 0);
    CHECK(lstat("/mnt/c/other", &stat) == 0 && stat.st_uid == 70000 && (stat.st_mode & 0777) == 0600);
    // Enough names for several blocks, of which every third goes.
    CHECK(mkdir("/mnt/many", 0755) == 0);
    for (int i = 0; i < 600; i++) {
        snprintf(path, sizeof path, "/mnt/many/a name of some length %d", i);
        close(make(path, i, 'm'));
    }
    for (int i = 0; i < 600; i += 3) {
        snprintf(path, sizeof path, "/mnt/many/a name of some length %d", i);
        CHECK(unlink(path) == 0);
    }
    FAILS(umount("/mnt/many"), EINVAL);
}

static long written(void) {
    long sectors = -1;
    FILE *file = fopen("/proc/diskstats", "r");
    CHECK(file && fscanf(file, "%*d %*d vda %*d %*d %*d %*d %*d %*d %ld", &sectors) == 1 && fclose(file) == 0);
    return sectors;
}

// What the driver of the disk did for one descriptor, the others see (X6).
static void device(void) {
    int fd = open("/dev/vda", O_RDWR);
    CHECK(fd >= 0);
    unsigned long long bytes;
    CHECK(ioctl(fd, BLKGETSIZE64, &bytes) == 0);
    CHECK((unsigned long long)lseek(fd, 0, SEEK_END) == bytes);
    CHECK(pwrite(fd, "written", 7, 5000) == 7);
    char *map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && memcmp(map + 5000, "written", 7) == 0);
    memcpy(map + 100, "mapped", 6);
    CHECK(msync(map, 2 * PAGE, MS_SYNC) == 0);
    CHECK(pwrite(fd, page, PAGE, bytes - 512) == 512);
    FAILS(pwrite(fd, page, PAGE, bytes), ENOSPC);
    CHECK(pread(fd, page, PAGE, bytes) == 0);
    CHECK(pwrite(fd, "closed", 6, 20000) == 6);
    // The mount is refused while the disk is open, and opening to write while it is mounted.
    mkdir("/mnt", 0755);
    FAILS(mount("/dev/vda", "/mnt", "ext2", 0, ""), EBUSY);
    // Also while a mapping shows it that outlives its descriptor, and can be stored to.
    CHECK(close(fd) == 0);
    FAILS(mount("/dev/vda", "/mnt", "ext2", 0, ""), EBUSY);
    long before = written();
    memcpy(map + 200, "stored", 6);
    sync();
    CHECK(written() > before && munmap(map, 2 * PAGE) == 0);
    FAILS(mount("/dev/vda", "/mnt", "ext2", 0, ""), EINVAL);
    FAILS(mount("/dev/vda", "/mnt", "xfs", 0, ""), ENODEV);
    FAILS(mount("/dev/null", "/mnt", "ext2", 0, ""), ENOTBLK);
}

// The disk fails at sectors that the test names to QEMU.
static void broken(void) {
    int fd = open("/dev/vda", O_RDWR);
    CHECK(fd >= 0);
    FAILS(pread(fd, page, PAGE, 40 * 512), EIO);
    CHECK(pread(fd, page, PAGE, 0) == PAGE);
    char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 10 * PAGE);
    CHECK(map != MAP_FAILED);
    map[0] = 'w';
    FAILS(msync(map, PAGE, MS_SYNC), EIO);
    FAILS(fsync(fd), EIO);
}

// Stores to more pages than there is memory: they are written back and dropped, and come back.
static void pressure(void) {
    enum { PAGES = 120 * MIB / PAGE };
    int fd = open("/mnt/pressure", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)PAGES * PAGE) == 0);
    unsigned *map = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (unsigned i = 0; i < PAGES; i++) {
        map[i * (PAGE / 4) + i % 1024] = i + 1;
    }
    for (unsigned i = 0; i < PAGES; i++) {
        CHECK(map[i * (PAGE / 4) + i % 1024] == i + 1 && map[i * (PAGE / 4) + (i + 1) % 1024] == 0);
    }
}

static long requests(void) {
    long reads = -1;
    FILE *file = fopen("/proc/diskstats", "r");
    CHECK(file && fscanf(file, "%*d %*d vda %ld", &reads) == 1);
    fclose(file);
    return reads;
}

// A disk that is read from its start to its end is read ahead, also the second time. No page is read before
// the device has filled it (Q1).
static void ahead(void) {
    static char chunk[64 * 1024];
    for (int round = 0; round < 3; round++) {
        long before = requests(), chunks = 0;
        int fd = open("/dev/vda", O_RDONLY);
        while (read(fd, chunk, sizeof chunk) == sizeof chunk) {
            chunks++;
        }
        CHECK(close(fd) == 0 && chunks >= 64);
        CHECK(requests() - before < chunks);
    }
}

static void *touch(void *unused) {
    while (!is_done) {
        char *map = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(map != MAP_FAILED);
        madvise(map, 2 * MIB, MADV_NOHUGEPAGE);
        for (int at = 0; at < 2 * MIB; at += PAGE) {
            map[at] = 1;
        }
        CHECK(munmap(map, 2 * MIB) == 0);
    }
    return unused;
}

static long nested(void) {
    FILE *file = fopen("/proc/vmstat", "r");
    char name[100];
    long value;
    while (fscanf(file, "%99s %ld", name, &value) == 2) {
        if (strcmp(name, "pcp_nested") == 0) {
            fclose(file);
            return value;
        }
    }
    return -1;
}

// The handler allocates read-ahead while threads allocate on its CPU: sooner or later it comes while one of them uses
// the CPU's list, and takes from the list of its own level. The handler is the one that the driver stored (X8).
static void interrupts(void) {
    CHECK(nested() >= 0);
    int fd = open("/dev/vda", O_RDONLY);
    CHECK(fd >= 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, touch, NULL) == 0);
    }
    static char chunk[64 * 1024];
    for (int round = 0; round < 100 && nested() == 0; round++) {
        CHECK(lseek(fd, 0, SEEK_SET) == 0);
        for (int i = 0; i < 64; i++) {
            CHECK(read(fd, chunk, sizeof chunk) == sizeof chunk);
        }
        // The last close drops the pages, so that the disk is read again.
        CHECK(close(fd) == 0);
        fd = open("/dev/vda", O_RDONLY);
    }
    is_done = 1;
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(nested() > 0);
}

// What a file system that is mounted to be read says of itself.
static void readonly(void) {
    struct statfs fs;
    CHECK(statfs("/mnt", &fs) == 0 && fs.f_flags & MS_RDONLY && fs.f_ffree > 0 && fs.f_ffree < fs.f_files);
    FAILS(access("/mnt", W_OK), EROFS);
    CHECK(access("/mnt", R_OK | X_OK) == 0 && statfs("/tmp", &fs) == 0 && !(fs.f_flags & MS_RDONLY));
}

// Says that it runs, and does not end soon.
static void wait_for_signal(void) {
    CHECK(write(1, "r", 1) == 1);
    alarm(60);
    pause();
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        { "mapped", mapped }, { "truncated", truncated }, { "full", full },     { "nameless", nameless },
        { "names", names },   { "device", device },       { "broken", broken }, { "interrupts", interrupts },
        { "pressure", pressure }, { "ahead", ahead },     { "locks", locks },   { "deleted", deleted },
        { "large", large },   { "owners", owners },       { "raced", raced },
        { "crowded", crowded }, { "claimed", claimed }, { "held", held },       { "durable", durable },
        { "stamped", stamped }, { "unwritable", unwritable },
        { "busy", busy },       { "prepared", prepared }, { "mounts", mounts },   { "running", running },
        { "slots", slots },     { "wait", wait_for_signal }, { "readonly", readonly },
    };
    for (int word = 1; word < count; word++) {
        int found = 0;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (strcmp(cases[i].name, words[word]) == 0) {
                cases[i].run();
                found = 1;
            }
        }
        if (!found) {
            printf("no case %s\n", words[word]);
            return 2;
        }
    }
    return 0;
}
