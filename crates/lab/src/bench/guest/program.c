// The program of `quire bench guest`: it runs as the only program of a machine, measures memory calls, and ends the
// machine. Build: gcc -O2 -static -pthread.
//
// Output, one line each:
//   begin NAME               a group of rows starts
//   row NAME VALUE UNIT      the least of five trials
//   row NAME n/a: REASON     this kernel cannot do it
//   done                     all groups have run
// Time is the time-stamp counter. With `-icount shift=0` it counts instructions.
//
// Arguments: KEY=VALUE, each optional.
//   mode=counts|wall|boot    one CPU and instructions; four CPUs and time; only what the machine has in use
//   settle=SECONDS           sleep before the first row, so that the kernel's background work is done
//   dirty=MIB                memory to write once before the first row, so that the kernel cannot know it to be zero
//   groups=,NAME,NAME,       only these groups, each between commas
//   memory=MIB               the machine's memory
//   group=memory             charge a memory cgroup for this program
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define HUGE (2 * MIB)
#define TRIALS 5
#define MOST_ROWS 6
#define THREADS 4
#define MADV_COLLAPSE_ 25

// Why a row cannot be measured, or NULL.
typedef const char *Reason;

static uint64_t now(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

static Reason failed(const char *what) {
    static char text[160];
    snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    return text;
}

// Writes one setting of the kernel; 0 if there is no such setting.
static int set(const char *path, const char *value) {
    int file = open(path, O_WRONLY);
    if (file < 0) return 0;
    ssize_t written = write(file, value, strlen(value));
    close(file);
    return written == (ssize_t)strlen(value);
}

static char *map_at(void *where, size_t bytes, int protection, int flags) {
    return mmap(where, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

// Private memory of 4 KiB pages, at a multiple of 2 MiB plus `past`. `unmap` takes the same arguments.
static char *map(size_t bytes, size_t past) {
    char *all = map_at(NULL, bytes + 2 * HUGE, PROT_NONE, MAP_NORESERVE);
    if (all == MAP_FAILED) return all;
    char *start = (char *)(((uintptr_t)all + HUGE - 1) / HUGE * HUGE + past);
    munmap(all, bytes + 2 * HUGE);
    start = map_at(start, bytes, PROT_READ | PROT_WRITE, MAP_FIXED);
    // Fails where the kernel has no huge pages, which is as good.
    if (start != MAP_FAILED) madvise(start, bytes, MADV_NOHUGEPAGE);
    return start;
}

// Writes one byte in each page.
static void touch(char *start, size_t bytes, size_t step) {
    for (size_t at = 0; at < bytes; at += step) *(volatile char *)(start + at) = 1;
}

// Writes one byte in each page; returns how many of the writes trapped: a write by itself is a few instructions.
static size_t touch_and_count(char *start, size_t bytes) {
    size_t faults = 0;
    for (size_t at = 0; at < bytes; at += PAGE) {
        uint64_t before = now();
        *(volatile char *)(start + at) = 1;
        faults += now() - before > 100;
    }
    return faults;
}

static void end_machine(void) {
    printf("done\n");
    fflush(stdout);
    sync();
    reboot(RB_POWER_OFF);
    exit(0);
}

// --- rows -----------------------------------------------------------------------------------------------------------

#define AREA (64 * MIB)
#define PAGES (AREA / PAGE)

// Touches 64 MiB and unmaps them in one call.
static Reason trial_touch(double *out) {
    char *area = map(AREA, 0);
    if (area == MAP_FAILED) return failed("mmap");
    uint64_t start = now();
    touch(area, AREA, PAGE);
    uint64_t touched = now();
    if (munmap(area, AREA)) return failed("munmap");
    out[0] = (double)(touched - start) / PAGES;
    out[1] = (double)(now() - touched) / PAGES;
    return NULL;
}

// The same after the machine was idle, when a kernel may have cleared memory ahead.
static Reason trial_cleared_ahead(double *out) {
    struct timespec while_idle = {2, 0};
    if (nanosleep(&while_idle, NULL)) return failed("nanosleep");
    char *area = map(AREA, 0);
    if (area == MAP_FAILED) return failed("mmap");
    uint64_t start = now();
    touch(area, AREA, PAGE);
    out[0] = (double)(now() - start) / PAGES;
    munmap(area, AREA);
    return NULL;
}

// Folios of a larger size: the touch must have trapped once for each of them.
static Reason large_folios(double *out, size_t folio) {
    char *area = map(AREA, 0);
    if (area == MAP_FAILED) return failed("mmap");
    if (madvise(area, AREA, MADV_HUGEPAGE)) return failed("MADV_HUGEPAGE");
    uint64_t start = now();
    size_t faults = touch_and_count(area, AREA);
    uint64_t touched = now();
    if (munmap(area, AREA)) return failed("munmap");
    out[0] = (double)(touched - start) / PAGES;
    out[1] = (double)(now() - touched) / PAGES;
    size_t folios = AREA / folio;
    // A timer interrupt during a write looks like a trap.
    return faults < folios || faults > folios + folios / 4 + 16 ? "the kernel chose another folio size" : NULL;
}

#define THP "/sys/kernel/mm/transparent_hugepage/"

static Reason trial_64k(double *out) {
    if (!set(THP "hugepages-64kB/enabled", "madvise")) return "this kernel has no folios of 64 KiB to ask for";
    set(THP "hugepages-2048kB/enabled", "never");
    Reason reason = large_folios(out, 16 * PAGE);
    set(THP "hugepages-64kB/enabled", "never");
    set(THP "hugepages-2048kB/enabled", "inherit");
    return reason;
}

static Reason trial_2m(double *out) {
    return large_folios(out, HUGE);
}

// One page: mapped, touched and unmapped, a call each. A read-only neighbour keeps the page table, as other memory
// of a program does.
static Reason trial_single(double *out) {
    enum { ROUNDS = 2000 };
    char *neighbour = map_at(NULL, PAGE, PROT_READ, 0);
    if (neighbour == MAP_FAILED) return failed("mmap");
    (void)*(volatile char *)neighbour;
    uint64_t start = now();
    for (int round = 0; round < ROUNDS; round++) {
        char *page = map_at(NULL, PAGE, PROT_READ | PROT_WRITE, 0);
        touch(page, PAGE, PAGE);
        munmap(page, PAGE);
    }
    out[0] = (double)(now() - start) / ROUNDS;
    uint64_t parts[3] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = now();
        char *page = map_at(NULL, PAGE, PROT_READ | PROT_WRITE, 0);
        uint64_t mapped = now();
        touch(page, PAGE, PAGE);
        uint64_t touched = now();
        munmap(page, PAGE);
        uint64_t unmapped = now();
        parts[0] += mapped - begin, parts[1] += touched - mapped, parts[2] += unmapped - touched;
    }
    for (int part = 0; part < 3; part++) out[1 + part] = (double)parts[part] / ROUNDS;
    munmap(neighbour, PAGE);
    return NULL;
}

static Reason trial_null(double *out) {
    enum { ROUNDS = 10000 };
    uint64_t start = now();
    for (int round = 0; round < ROUNDS; round++) syscall(SYS_getpid);
    out[0] = (double)(now() - start) / ROUNDS;
    return NULL;
}

// A range of 64 MiB, and one page in the middle of a mapping.
static Reason trial_mprotect(double *out) {
    enum { ROUNDS = 1000 };
    char *area = map(AREA, 0);
    if (area == MAP_FAILED) return failed("mmap");
    touch(area, AREA, PAGE);
    uint64_t start = now();
    if (mprotect(area, AREA, PROT_READ)) return failed("mprotect");
    out[0] = (double)(now() - start) / PAGES;
    mprotect(area, AREA, PROT_READ | PROT_WRITE);
    start = now();
    for (int round = 0; round < ROUNDS; round++) {
        mprotect(area + AREA / 2, PAGE, PROT_READ);
        mprotect(area + AREA / 2, PAGE, PROT_READ | PROT_WRITE);
    }
    out[1] = (double)(now() - start) / (2 * ROUNDS);
    munmap(area, AREA);
    return NULL;
}

// Moves 64 MiB; `past` shifts the target against the borders of page tables.
static Reason move(double *out, size_t past) {
    char *area = map(AREA, 0);
    char *target = map(AREA, past);
    if (area == MAP_FAILED || target == MAP_FAILED) return failed("mmap");
    touch(area, AREA, PAGE);
    uint64_t start = now();
    if (mremap(area, AREA, AREA, MREMAP_MAYMOVE | MREMAP_FIXED, target) != target) return failed("mremap");
    *out = (double)(now() - start) / PAGES;
    munmap(target, AREA);
    return NULL;
}

static Reason trial_mremap(double *out) {
    Reason reason = move(&out[0], 0);
    return reason ? reason : move(&out[1], PAGE);
}

static Reason trial_dontneed(double *out) {
    enum { ROUNDS = 1000 };
    char *area = map(AREA, 0);
    if (area == MAP_FAILED) return failed("mmap");
    touch(area, AREA, PAGE);
    uint64_t start = now();
    if (madvise(area, AREA, MADV_DONTNEED)) return failed("MADV_DONTNEED");
    out[0] = (double)(now() - start) / PAGES;
    uint64_t sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        touch(area, PAGE, PAGE);
        start = now();
        madvise(area, PAGE, MADV_DONTNEED);
        sum += now() - start;
    }
    out[1] = (double)sum / ROUNDS;
    munmap(area, AREA);
    return NULL;
}

static Reason trial_collapse(double *out) {
    char *area = map(AREA, 0);
    if (area == MAP_FAILED) return failed("mmap");
    touch(area, AREA, PAGE);
    madvise(area, AREA, MADV_HUGEPAGE);
    uint64_t start = now();
    int refused = madvise(area, AREA, MADV_COLLAPSE_);
    out[0] = (double)(now() - start) / PAGES;
    Reason reason = refused ? failed("MADV_COLLAPSE") : NULL;
    munmap(area, AREA);
    return reason;
}

static Reason trial_hugetlb(double *out) {
    if (!set("/proc/sys/vm/nr_hugepages", "40")) return "this kernel has no pool of huge pages";
    char *area = map_at(NULL, AREA, PROT_READ | PROT_WRITE, MAP_HUGETLB);
    if (area == MAP_FAILED) return failed("mmap with MAP_HUGETLB");
    uint64_t start = now();
    touch(area, AREA, HUGE);
    out[0] = (double)(now() - start) / (AREA / HUGE);
    munmap(area, AREA);
    return NULL;
}

// fork with 1 GiB touched: the call, first writes of the child, its exit until the parent knows; and the whole of it
// for a child that writes one page of a hundred.
static Reason trial_fork(double *out) {
    enum { BIG_PAGES = (1 << 30) / PAGE };
    static char *big;
    static volatile uint64_t *child; // what the child tells: when it began, had written, and exits
    if (!big) {
        char *area = map(1ul << 30, 0);
        child = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (area == MAP_FAILED || child == MAP_FAILED) return failed("mmap");
        child[0] = 0;
        touch(area, 1ul << 30, PAGE);
        big = area;
    }
    for (int all = 0; all < 2; all++) {
        uint64_t start = now();
        pid_t id = fork();
        if (id < 0) return failed("fork");
        if (id == 0) {
            child[0] = now();
            touch(big, 1ul << 30, all ? PAGE : 100 * PAGE);
            child[1] = now();
            _exit(0);
        }
        uint64_t forked = now();
        int status;
        if (waitpid(id, &status, 0) != id) return failed("waitpid");
        uint64_t end = now();
        if (status) return "the child failed";
        if (all) {
            out[0] = (double)(forked - start) / BIG_PAGES;
            out[1] = (double)(child[1] - child[0]) / BIG_PAGES;
            out[2] = (double)(end - child[1]) / BIG_PAGES;
        } else {
            out[3] = (double)(child[1] - child[0]) / (BIG_PAGES / 100);
            out[4] = (double)(end - start) / BIG_PAGES;
        }
    }
    return NULL;
}

// A shell that starts 200 programs.
static Reason trial_shell(double *out) {
    char *words[] = {"sh", "-c", "i=0; while [ $i -lt 200 ]; do /bin/true || exit 1; i=$((i+1)); done", NULL};
    char *environment[] = {"PATH=/bin", NULL};
    uint64_t start = now();
    pid_t id = vfork();
    if (id < 0) return failed("vfork");
    if (id == 0) {
        execve("/bin/busybox", words, environment);
        _exit(127);
    }
    int status;
    if (waitpid(id, &status, 0) != id) return failed("waitpid");
    out[0] = (double)(now() - start) / 200;
    return status ? "the shell failed" : NULL;
}

// --- four threads ---------------------------------------------------------------------------------------------------

enum { ROUNDS = 300, SHARE = 256 * PAGE };
static pthread_barrier_t barrier;

static void *thread(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < ROUNDS; round++) {
        char *share = map_at(NULL, SHARE, PROT_READ | PROT_WRITE, 0);
        if (share == MAP_FAILED) return "mmap failed";
        madvise(share, SHARE, MADV_NOHUGEPAGE);
        touch(share, SHARE, PAGE);
        munmap(share, SHARE);
    }
    pthread_barrier_wait(&barrier);
    return NULL;
}

// The interrupts for flushes that all CPUs have had, or -1.
static long flush_interrupts(void) {
    FILE *file = fopen("/proc/interrupts", "r");
    if (!file) return -1;
    char line[512];
    long sum = -1;
    while (fgets(line, sizeof line, file)) {
        char *at = strstr(line, "TLB:");
        if (!at) continue;
        sum = 0;
        char *next = at + 4;
        for (;;) {
            long count = strtol(next, &at, 10);
            if (at == next) break;
            sum += count, next = at;
        }
    }
    fclose(file);
    return sum;
}

static Reason trial_threads(double *out) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int at = 0; at < THREADS; at++) {
        int error = pthread_create(&threads[at], NULL, thread, NULL);
        if (error) {
            errno = error;
            if (at == 0) return failed("pthread_create");
            // The threads before wait at the barrier for ever.
            printf("row threads n/a: only %d threads: %s\n", at, strerror(error));
            end_machine();
        }
    }
    long interrupts = flush_interrupts();
    pthread_barrier_wait(&barrier);
    uint64_t start = now();
    pthread_barrier_wait(&barrier);
    uint64_t end = now();
    long after = flush_interrupts();
    Reason reason = NULL;
    for (int at = 0; at < THREADS; at++) {
        void *result;
        pthread_join(threads[at], &result);
        if (result) reason = result;
    }
    out[0] = (double)(end - start) / (THREADS * ROUNDS * (SHARE / PAGE));
    out[1] = interrupts < 0 ? -1 : (double)(after - interrupts) / (THREADS * ROUNDS) / (THREADS - 1);
    return reason;
}

// --- the list of rows -----------------------------------------------------------------------------------------------

static const struct Group {
    const char *name;
    Reason (*trial)(double *out);
    const char *rows[MOST_ROWS]; // the order of `out`
    const char *unit;
} COUNTS[] = {
    {"null", trial_null, {"null-call"}, "call"},
    {"touch", trial_touch, {"touch", "munmap/4KiB"}, "page"},
    {"cleared-ahead", trial_cleared_ahead, {"touch/cleared-ahead"}, "page"},
    {"64KiB", trial_64k, {"touch/64KiB", "munmap/64KiB"}, "page"},
    {"2MiB", trial_2m, {"touch/2MiB", "munmap/2MiB"}, "page"},
    {"single", trial_single, {"single", "single/mmap", "single/touch", "single/munmap"}, "call"},
    {"mprotect", trial_mprotect, {"mprotect/64MiB", "mprotect/page"}, "page"},
    {"mremap", trial_mremap, {"mremap/aligned", "mremap/unaligned"}, "page"},
    {"dontneed", trial_dontneed, {"dontneed/64MiB", "dontneed/page"}, "page"},
    {"collapse", trial_collapse, {"collapse"}, "page"},
    {"hugetlb", trial_hugetlb, {"hugetlb-fault"}, "call"},
    {"fork", trial_fork, {"fork", "fork/write-all", "fork/exit", "fork/write-1%", "fork/whole-1%"}, "page"},
    {"shell", trial_shell, {"shell/true"}, "call"},
}, WALL[] = {
    {"threads", trial_threads, {"threads", "threads/ipis"}, "page"},
};

static void run_group(const struct Group *group) {
    double least[MOST_ROWS], out[MOST_ROWS];
    Reason reason = NULL;
    printf("begin %s\n", group->name);
    for (int trial = 0; trial < TRIALS && !reason; trial++) {
        reason = group->trial(out);
        for (int row = 0; row < MOST_ROWS && group->rows[row]; row++)
            if (trial == 0 || out[row] < least[row]) least[row] = out[row];
    }
    for (int row = 0; row < MOST_ROWS && group->rows[row]; row++) {
        if (reason)
            printf("row %s n/a: %s\n", group->rows[row], reason);
        else if (least[row] < 0)
            printf("row %s n/a: this kernel does not count it\n", group->rows[row]);
        else
            printf("row %s %.2f %s\n", group->rows[row], least[row], group->unit);
    }
}

// What a machine has in use that has started this program. What the start itself took is in first.c.
static void report_boot(unsigned long long machine_kib) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long free = 0;
    while (file && !free && fgets(line, sizeof line, file)) sscanf(line, "MemFree: %llu", &free);
    if (file) fclose(file);
    if (free) printf("row memory/libc %llu KiB\n", machine_kib - free);
    else printf("row memory/libc n/a: no MemFree in /proc/meminfo\n");
}

// Moves this program into a memory cgroup below the root, since the root's memory is not charged.
static void enter_memory_cgroup(void) {
    mkdir("/cgroup", 0755);
    int entered = !mount("cgroup", "/cgroup", "cgroup2", 0, NULL) && set("/cgroup/cgroup.subtree_control", "+memory") &&
                  !mkdir("/cgroup/guest", 0755) && set("/cgroup/guest/cgroup.procs", "1");
    if (!entered) printf("note: no memory cgroup: %s\n", strerror(errno));
}

static void write_once(size_t bytes) {
    char *area = map_at(NULL, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE);
    if (area == MAP_FAILED) return;
    madvise(area, bytes, MADV_HUGEPAGE);
    touch(area, bytes, PAGE);
    munmap(area, bytes);
}

static const char *option(int count, char **words, const char *name) {
    for (int at = 1; at < count; at++) {
        size_t length = strlen(name);
        if (!strncmp(words[at], name, length) && words[at][length] == '=') return words[at] + length + 1;
    }
    return "";
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    // Each of these fails where the kernel does without.
    mkdir("/proc", 0755), mkdir("/sys", 0755);
    mount("proc", "/proc", "proc", 0, NULL), mount("sys", "/sys", "sysfs", 0, NULL);
    const char *mode = option(count, words, "mode");
    if (!strcmp(mode, "boot")) {
        report_boot(strtoull(option(count, words, "memory"), NULL, 10) * 1024);
        end_machine();
    }
    set(THP "enabled", "madvise");
    if (!strcmp(option(count, words, "group"), "memory")) enter_memory_cgroup();
    // A child that has just been made must not interrupt its parent.
    struct sched_param none = {0};
    sched_setscheduler(0, SCHED_BATCH, &none);
    struct timespec settle = {atoi(option(count, words, "settle")), 0};
    if (settle.tv_sec) nanosleep(&settle, NULL);
    write_once(strtoul(option(count, words, "dirty"), NULL, 10) * MIB);
    int wall = !strcmp(mode, "wall");
    const struct Group *group = wall ? WALL : COUNTS;
    const struct Group *end = group + (wall ? sizeof WALL : sizeof COUNTS) / sizeof *group;
    const char *chosen = option(count, words, "groups");
    for (; group < end; group++) {
        char name[40];
        snprintf(name, sizeof name, ",%s,", group->name);
        if (!*chosen || strstr(chosen, name)) run_group(group);
    }
    end_machine();
}
