// What programs see of memory adds up: the files of /proc about the machine and about this process agree with each
// other, and with what the process has just done. Valid on Linux too, whose counters are less exact.
//
//   observe texts      maps, smaps, smaps_rollup, status, statm, meminfo, buddyinfo
//   observe words      pagemap, kpagecount, kpageflags (as root)
//   observe settings   files that are written; changes the machine, so on Linux it does nothing
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define KIB 1024UL
#define MIB (1UL << 20)

static int on_linux;
// How far apart two sums in KiB may be: Linux counts in batches on each CPU, and other programs run.
static long slack;
static char text[1 << 20];

static void fail(const char *what, long found, long expected) {
    fprintf(stderr, "observe: %s: %ld, expected %ld\n", what, found, expected);
    exit(1);
}

static void expect(const char *what, long found, long expected, long apart) {
    if (labs(found - expected) > apart) fail(what, found, expected);
}

// Reads a file as a whole, in small pieces: it must not change between them.
static const char *slurp(const char *path) {
    int file = open(path, O_RDONLY);
    if (file < 0) {
        perror(path);
        exit(1);
    }
    size_t length = 0;
    ssize_t got;
    while ((got = read(file, text + length, 1000)) > 0) length += got;
    if (got < 0) fail(path, -errno, 0);
    text[length] = 0;
    close(file);
    return text;
}

// The number behind `name` at the start of a line.
static long row(const char *from, const char *name) {
    size_t length = strlen(name);
    for (const char *line = from; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, name, length) && line[length] == ':') return strtol(line + length + 1, NULL, 10);
    fail(name, -1, 0);
    return 0;
}

// The sum of all rows with this name.
static long sum(const char *from, const char *name) {
    size_t length = strlen(name);
    long total = 0;
    for (const char *line = from; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, name, length) && line[length] == ':') total += strtol(line + length + 1, NULL, 10);
    return total;
}

static void process_texts(void) {
    static const char *const rows[] = {"Rss", "Shared_Clean", "Shared_Dirty", "Private_Clean", "Private_Dirty",
                                       "Anonymous", "AnonHugePages", "Locked"};
    enum { ROWS = sizeof rows / sizeof *rows };
    long sums[ROWS];
    // So that reading brings in no page.
    if (mlockall(MCL_CURRENT)) fail("mlockall", -errno, 0);
    slurp("/proc/self/smaps");
    for (int at = 0; at < ROWS; at++) sums[at] = sum(text, rows[at]);
    long sizes = sum(text, "Size");
    expect("the kinds of pages in smaps", sums[1] + sums[2] + sums[3] + sums[4], sums[0], 0);
    int mappings = 0;
    for (const char *line = text; (line = strstr(line, "VmFlags:")); line++) mappings++;

    slurp("/proc/self/smaps_rollup");
    for (int at = 0; at < ROWS; at++) expect(rows[at], row(text, rows[at]), sums[at], 0);
    expect("Pss by kind", row(text, "Pss_Anon") + row(text, "Pss_File") + row(text, "Pss_Shmem"), row(text, "Pss"), 2);

    slurp("/proc/self/maps");
    int lines = 0;
    unsigned long start, end, before = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) != 3 || start < before || end <= start)
            fail("a line of maps", lines, 0);
        before = end;
        // The part above all addresses of programs is Linux's own.
        if (!strstr(line, "[vsyscall]")) sizes -= (end - start) / KIB;
        else lines--;
    }
    expect("the sizes in maps", 0, sizes, strstr(slurp("/proc/self/smaps"), "[vsyscall]") ? 4 : 0);
    expect("lines of maps", lines, mappings, 1);

    long total, resident, shared;
    if (sscanf(slurp("/proc/self/statm"), "%ld %ld %ld", &total, &resident, &shared) != 3) fail("statm", 0, 3);
    expect("Rss in statm", resident * 4, sums[0], slack);
    slurp("/proc/self/status");
    expect("VmRSS", row(text, "VmRSS"), resident * 4, slack);
    expect("VmSize", row(text, "VmSize"), total * 4, 0);
    expect("RssAnon", row(text, "RssAnon"), sums[5], slack);
    expect("VmRSS by kind", row(text, "RssAnon") + row(text, "RssFile") + row(text, "RssShmem"), row(text, "VmRSS"), 0);
    if (row(text, "VmHWM") < row(text, "VmRSS") || row(text, "VmPeak") < row(text, "VmSize")) fail("a peak", 0, 1);
}

static void machine_texts(void) {
    long bytes = 16 * MIB;
    slurp("/proc/meminfo");
    long anon = row(text, "AnonPages"), free_before = row(text, "MemFree");
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap", -errno, 0);
    memset(memory, 1, bytes);
    slurp("/proc/meminfo");
    if (!on_linux) {
        expect("AnonPages", row(text, "AnonPages") - anon, bytes / KIB, slack);
        // Page tables, and descriptors of blocks that are in pieces now. A block that another CPU clears ahead is not
        // free meanwhile.
        long cleared = 2048 * (sysconf(_SC_NPROCESSORS_ONLN) - 1);
        expect("MemFree", free_before - row(text, "MemFree"), bytes / KIB, 512 + cleared);
    }
    if (row(text, "MemFree") > row(text, "MemTotal")) fail("MemFree", row(text, "MemFree"), row(text, "MemTotal"));
    if (row(text, "MemAvailable") > row(text, "MemTotal")) fail("MemAvailable", row(text, "MemAvailable"), 0);
    process_texts();
    munmap(memory, bytes);

    // Free memory by the size of its pieces is the free memory of the zones.
    long free_pages = 0, found = 0;
    for (const char *at = slurp("/proc/zoneinfo"); (at = strstr(at, "pages free ")); at++) free_pages += strtol(at + 11, NULL, 10);
    slurp("/proc/buddyinfo");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *at = strstr(line, "zone ") + 5 + 8;
        for (int order = 0; order < 11; order++) found += strtol(at, &at, 10) << order;
    }
    // A block that another CPU clears ahead comes and goes between the two.
    long cleared = 512 * (sysconf(_SC_NPROCESSORS_ONLN) - 1);
    expect("pages in buddyinfo", found, free_pages, on_linux ? free_pages / 4 : 64 + cleared);
}

static uint64_t word(int file, uint64_t index) {
    uint64_t word = 0;
    if (pread(file, &word, sizeof word, index * sizeof word) != sizeof word) fail("a word", -errno, sizeof word);
    return word;
}

#define MMAP_FLAG (1UL << 11)
#define ANON_FLAG (1UL << 12)

static void words(void) {
    int pagemap = open("/proc/self/pagemap", O_RDONLY), counts = open("/proc/kpagecount", O_RDONLY);
    int flags = open("/proc/kpageflags", O_RDONLY);
    if (pagemap < 0 || counts < 0 || flags < 0) fail("files of words", -errno, 0);
    char *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, 4 * PAGE, MADV_NOHUGEPAGE);
    memory[PAGE] = 1;
    uint64_t first = (uintptr_t)memory / PAGE;
    if (word(pagemap, first) != 0) fail("the word of an untouched page", word(pagemap, first), 0);
    uint64_t page = word(pagemap, first + 1), frame = page & ((1UL << 55) - 1);
    if (!(page >> 63) || !frame) fail("the word of a touched page", page, 0);
    if (!(page >> 56 & 1)) fail("the page is its process's alone", page, 0);
    expect("kpagecount", word(counts, frame), 1, 0);
    uint64_t use = word(flags, frame);
    if (!(use & MMAP_FLAG) || !(use & ANON_FLAG)) fail("kpageflags", use, MMAP_FLAG | ANON_FLAG);

    int up[2], down[2];
    if (pipe(up) || pipe(down)) fail("pipe", -errno, 0);
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        _exit(write(up[1], &byte, 1) == 1 && read(down[0], &byte, 1) == 1 ? 0 : 1);
    }
    char byte;
    if (read(up[0], &byte, 1) != 1) fail("read", -errno, 1);
    expect("kpagecount after a fork", word(counts, frame), 2, 0);
    if (word(pagemap, first + 1) >> 56 & 1) fail("the page is shared", 1, 0);
    if (write(down[1], &byte, 1) != 1) fail("write", -errno, 1);
    waitpid(child, NULL, 0);
    expect("kpagecount after the child's end", word(counts, frame), 1, 0);

    int bytes = open("/proc/self/mem", O_RDONLY);
    char seen = 0;
    if (pread(bytes, &seen, 1, (uintptr_t)memory + PAGE) != 1 || seen != 1) fail("the byte in mem", seen, 1);
    if (pread(bytes, &seen, 1, 0) != -1 || errno != EIO) fail("mem where nothing is mapped", errno, EIO);

    uint64_t two[2];
    if (pread(pagemap, two, 16, 4) != -1 || errno != EINVAL) fail("an unaligned offset", errno, EINVAL);
    if (pread(pagemap, two, 15, 0) != -1 || errno != EINVAL) fail("an unaligned length", errno, EINVAL);
    if (pread(counts, two, 16, 1L << 50) != 0) fail("a read behind the end", errno, 0);
    munmap(memory, 4 * PAGE);
}

static int put(const char *path, const char *value) {
    int file = open(path, O_WRONLY);
    if (file < 0) fail(path, -errno, 0);
    int done = write(file, value, strlen(value)) == (ssize_t)strlen(value) ? 0 : errno;
    close(file);
    return done;
}

// What all zones keep free, in pages.
static long marks(void) {
    long sum = 0;
    slurp("/proc/zoneinfo");
    for (const char *at = text; (at = strstr(at, "\n        min ")); at++) sum += atol(at + 13);
    return sum;
}

// How many pieces of 2 MiB buddyinfo shows.
static long large_pieces(void) {
    long found = 0;
    slurp("/proc/buddyinfo");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *at = strstr(line, "zone ") + 5 + 8;
        for (int order = 0; order < 11; order++) {
            long pieces = strtol(at, &at, 10);
            if (order >= 9) found += pieces << (order - 9);
        }
    }
    return found;
}

static long counter(const char *name) {
    const char *at = strstr(slurp("/proc/vmstat"), name);
    return at ? strtol(at + strlen(name), NULL, 10) : -1;
}

// Of memory of which one page in 16 is in use, most becomes free in whole pieces.
static void compacts(const char *path) {
    size_t bytes = 32 * MIB, step = 16 * PAGE;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    memset(memory, 1, bytes);
    for (size_t at = 0; at < bytes; at += step) {
        memory[at] = (char)(at / step);
        madvise(memory + at + PAGE, step - PAGE, MADV_DONTNEED);
    }
    long before = large_pieces(), isolated = counter("\ncompact_isolated "), moved = counter("\npgmigrate_success ");
    expect(path, put(path, "1"), 0, 0);
    long gained = large_pieces() - before;
    if (gained < 12) fail("pieces of 2 MiB after compaction", gained, 16);
    if (counter("\ncompact_isolated ") - isolated < 300) fail("compact_isolated", counter("\ncompact_isolated "), isolated + 300);
    if (counter("\npgmigrate_success ") - moved < 300) fail("pgmigrate_success", counter("\npgmigrate_success "), moved + 300);
    for (size_t at = 0; at < bytes; at += step)
        if (memory[at] != (char)(at / step) || memory[at + PAGE]) fail("a byte that moved", memory[at], (char)(at / step));
    munmap(memory, bytes);
}

static void settings(void) {
    if (on_linux) return;
    compacts("/proc/sys/vm/compact_memory");
    compacts("/sys/devices/system/node/node0/compact");
    expect("oom_score_adj", put("/proc/self/oom_score_adj", "500\n"), 0, 0);
    expect("oom_score_adj", atol(slurp("/proc/self/oom_score_adj")), 500, 0);
    expect("oom_score_adj too large", put("/proc/self/oom_score_adj", "1001"), EINVAL, 0);

    expect("nr_hugepages", put("/proc/sys/vm/nr_hugepages", "4"), 0, 0);
    slurp("/proc/meminfo");
    expect("HugePages_Total", row(text, "HugePages_Total"), 4, 0);
    expect("HugePages_Free", row(text, "HugePages_Free"), 4, 0);
    expect("Hugetlb", row(text, "Hugetlb"), 8192, 0);
    expect("its file in /sys", atol(slurp("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")), 4, 0);
    expect("nr_hugepages", put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"), 0, 0);
    expect("no number", put("/proc/sys/vm/nr_hugepages", "many"), EINVAL, 0);

    // No background collapser runs, so there is nothing to set.
    expect("khugepaged", access("/sys/kernel/mm/transparent_hugepage/khugepaged", F_OK) ? errno : 0, ENOENT, 0);
    const char *enabled = "/sys/kernel/mm/transparent_hugepage/enabled";
    expect("enabled", put(enabled, "always"), 0, 0);
    if (!strstr(slurp(enabled), "[always]")) fail("enabled", 0, 1);
    char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 8 * MIB);
    slurp("/proc/self/smaps_rollup");
    if (row(text, "AnonHugePages") < 4096) fail("AnonHugePages", row(text, "AnonHugePages"), 4096);
    expect("AnonHugePages of the machine", row(slurp("/proc/meminfo"), "AnonHugePages"), sum(slurp("/proc/self/smaps"), "AnonHugePages"), 0);
    munmap(memory, 8 * MIB);
    expect("enabled", put(enabled, "madvise"), 0, 0);
    expect("enabled", put(enabled, "perhaps"), EINVAL, 0);

    expect("overcommit_memory", put("/proc/sys/vm/overcommit_memory", "2"), 0, 0);
    if (mmap(NULL, 1UL << 32, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED || errno != ENOMEM)
        fail("a mapping beyond the limit", errno, ENOMEM);
    char *grown = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mremap(grown, PAGE, 1UL << 32, MREMAP_MAYMOVE) != MAP_FAILED || errno != ENOMEM)
        fail("growth beyond the limit", errno, ENOMEM);
    grown = mmap(NULL, 1UL << 32, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (grown == MAP_FAILED) fail("memory that is not charged", errno, 0);
    if (mprotect(grown, 1UL << 32, PROT_READ | PROT_WRITE) != -1 || errno != ENOMEM)
        fail("a right to store beyond the limit", errno, ENOMEM);
    expect("a right to store", mprotect(grown + PAGE, PAGE, PROT_READ | PROT_WRITE), 0, 0);
    munmap(grown, 1UL << 32);
    if (shmget(IPC_PRIVATE, 1UL << 32, 0600 | SHM_NORESERVE) != -1 || errno != ENOMEM)
        fail("a segment beyond the limit", errno, ENOMEM);
    expect("overcommit_memory", put("/proc/sys/vm/overcommit_memory", "0"), 0, 0);
    if (mremap(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE, 1UL << 40, MREMAP_MAYMOVE)
        != MAP_FAILED || errno != ENOMEM)
        fail("growth beyond the machine", errno, ENOMEM);
    expect("overcommit_memory", put("/proc/sys/vm/overcommit_memory", "3"), EINVAL, 0);
    const char *min_free = "/proc/sys/vm/min_free_kbytes";
    long kept = atol(slurp(min_free));
    slurp("/proc/zoneinfo");
    expect("min_free_kbytes", put(min_free, "8193"), 0, 0);
    expect("min_free_kbytes", atol(slurp(min_free)), 8193, 0);
    expect("marks of the zones", marks() * 4, 8192, 16);
    // The kernel's own reserve is the lower half: of 16 frames for each CPU, two at least.
    expect("min_free_kbytes", put(min_free, "0"), 0, 0);
    expect("min_free_kbytes", atol(slurp(min_free)), 0, 0);
    if (marks() < 2 * 2 * 16) fail("marks of the zones, without a reserve", marks(), 2 * 2 * 16);
    expect("min_free_kbytes", put(min_free, "-1"), EINVAL, 0);
    char old[32];
    snprintf(old, sizeof old, "%ld", kept);
    expect("min_free_kbytes", put(min_free, old), 0, 0);
    expect("drop_caches", put("/proc/sys/vm/drop_caches", "3"), 0, 0);

    memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *memory = 1;
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    expect("clear_refs", put("/proc/self/clear_refs", "4"), 0, 0);
    if (word(pagemap, (uintptr_t)memory / PAGE) >> 55 & 1) fail("soft-dirty after the marks were cleared", 1, 0);
    *memory = 2;
    if (!(word(pagemap, (uintptr_t)memory / PAGE) >> 55 & 1)) fail("soft-dirty after a store", 0, 1);
    expect("clear_refs", put("/proc/self/clear_refs", "9"), EINVAL, 0);
}

int main(int count, char **arguments) {
    struct utsname name;
    uname(&name);
    on_linux = !strstr(name.version, "quire");
    slack = on_linux ? 1024 : 0;
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "texts")) machine_texts();
    else if (!strcmp(what, "words")) words();
    else if (!strcmp(what, "settings")) settings();
    else return 2;
    return 0;
}
