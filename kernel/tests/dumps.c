/* Core dumps, as kernel/test runs them in the kernel. It changes settings of the machine, so not for Linux; as root in a
 * machine of its own it passes there too.
 *
 *   dumps all | CASE
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/procfs.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "child.h"

#define PAGE 4096UL
#define NAME "/tmp/dumps/core"
#define MARK 0x1122334455667788UL
#define THREADS 3

static char *core;
static size_t core_bytes;

static void put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY);
    CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
}

static void limit(rlim_t bytes)
{
    struct rlimit limit = {bytes, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_CORE, &limit) == 0);
}

static void prepare(void)
{
    mkdir("/tmp/dumps", 0700);
    unlink(NAME);
    put("/proc/sys/kernel/core_pattern", NAME "\n");
    put("/proc/sys/kernel/core_uses_pid", "0\n");
    limit(RLIM_INFINITY);
}

static void load(const char *path)
{
    struct stat found;
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && fstat(file, &found) == 0);
    CHECK((found.st_mode & 07777) == 0600);
    core_bytes = found.st_size;
    core = mmap(NULL, core_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(core != MAP_FAILED && close(file) == 0);
    const Elf64_Ehdr *header = (void *)core;
    CHECK(!memcmp(header->e_ident, ELFMAG, SELFMAG) && header->e_type == ET_CORE && header->e_machine == EM_X86_64);
    CHECK(header->e_phentsize == sizeof(Elf64_Phdr) && header->e_phnum > 3);
}

static const Elf64_Phdr *segments(void)
{
    return (void *)(core + ((Elf64_Ehdr *)core)->e_phoff);
}

/* The segment with an address. */
static const Elf64_Phdr *segment_of(uintptr_t at)
{
    for (int index = 0; index < ((Elf64_Ehdr *)core)->e_phnum; index++) {
        const Elf64_Phdr *found = segments() + index;
        if (found->p_type == PT_LOAD && at >= found->p_vaddr && at < found->p_vaddr + found->p_memsz)
            return found;
    }
    return NULL;
}

/* The dumped bytes at an address; NULL where there are none. */
static const char *at(const void *address)
{
    const Elf64_Phdr *found = segment_of((uintptr_t)address);
    if (!found || (uintptr_t)address - found->p_vaddr >= found->p_filesz)
        return NULL;
    CHECK(found->p_offset + found->p_filesz <= core_bytes);
    return core + found->p_offset + ((uintptr_t)address - found->p_vaddr);
}

/* The contents of the note with this place among those of its kind. */
static const void *note(unsigned kind, int index, size_t bytes)
{
    CHECK(segments()->p_type == PT_NOTE);
    const char *at = core + segments()->p_offset, *end = at + segments()->p_filesz;
    while (at < end) {
        const Elf64_Nhdr *header = (void *)at;
        const char *contents = at + sizeof *header + (header->n_namesz + 3 & ~3U);
        if (header->n_type == kind && index-- == 0) {
            CHECK(header->n_descsz >= bytes && contents + bytes <= end);
            return contents;
        }
        at = contents + (header->n_descsz + 3 & ~3U);
    }
    return NULL;
}

static int status_of_child(pid_t child)
{
    siginfo_t info;
    memset(&info, 0, sizeof info);
    CHECK(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
    int status = status_of(child);
    CHECK(WIFSIGNALED(status) && info.si_status == WTERMSIG(status));
    CHECK(info.si_code == (WCOREDUMP(status) ? CLD_DUMPED : CLD_KILLED));
    return status;
}

/* Memory of all kinds, which stands at the same places in the child that ends. */
static char *written, *hidden, *left_out, *shared, *empty, *of_file, *sparse;

static void make_memory(void)
{
    int rights = PROT_READ | PROT_WRITE, own = MAP_PRIVATE | MAP_ANONYMOUS;
    written = mmap(NULL, 4 * PAGE, rights, own, -1, 0);
    hidden = mmap(NULL, PAGE, rights, own | MAP_STACK, -1, 0);
    left_out = mmap(NULL, PAGE, rights, own, -1, 0);
    shared = mmap(NULL, PAGE, rights, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    empty = mmap(NULL, PAGE, PROT_READ, own, -1, 0);
    sparse = mmap(NULL, 64 << 20, rights, own, -1, 0);
    int file = open("/proc/self/exe", O_RDONLY);
    of_file = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(of_file != MAP_FAILED && close(file) == 0);
    memset(written + PAGE, 1, PAGE);
    memset(hidden, 2, PAGE);
    memset(left_out, 3, PAGE);
    memset(shared, 4, PAGE);
    sparse[32 << 20] = 5;
    CHECK(mprotect(hidden, PAGE, PROT_NONE) == 0 && madvise(left_out, PAGE, MADV_DONTDUMP) == 0);
}

__attribute__((noinline)) static void crash(void)
{
    asm volatile("movq %0, %%rbx\n movq %%rbx, %%xmm5\n movl $0, 0\n" : : "r"(MARK) : "rbx", "xmm5", "memory");
}

static void memory(void)
{
    prepare();
    make_memory();
    pid_t child = fork();
    if (child == 0)
        crash();
    int status = status_of_child(child);
    CHECK(WTERMSIG(status) == SIGSEGV && WCOREDUMP(status));
    load(NAME);
    CHECK(at(written)[PAGE] == 1 && at(written)[2 * PAGE - 1] == 1 && at(written)[0] == 0 && at(written)[3 * PAGE] == 0);
    CHECK(at(hidden)[0] == 2 && segment_of((uintptr_t)hidden)->p_flags == 0);
    CHECK(!at(left_out) && segment_of((uintptr_t)left_out)->p_memsz == PAGE);
    CHECK(at(shared)[PAGE - 1] == 4 && at(sparse)[32 << 20] == 5);
    CHECK(!memcmp(at(of_file), ELFMAG, SELFMAG) && !at(of_file + PAGE));
    CHECK(segment_of((uintptr_t)written)->p_flags == (PF_R | PF_W));
    CHECK(segment_of((uintptr_t)crash)->p_flags == (PF_R | PF_X));
    /* Holes take no room. */
    struct stat found;
    CHECK(stat(NAME, &found) == 0 && found.st_size > 64 << 20 && found.st_blocks * 512 < 32 << 20);

    const struct elf_prstatus *thread = note(NT_PRSTATUS, 0, sizeof *thread);
    const struct user_regs_struct *registers = (void *)&thread->pr_reg;
    CHECK(thread->pr_pid == child && thread->pr_cursig == SIGSEGV && thread->pr_ppid == getpid());
    CHECK(registers->rbx == MARK && (registers->cs & 3) == 3 && at((void *)registers->rsp));
    CHECK(registers->rip > (uintptr_t)crash && registers->rip < (uintptr_t)crash + 64);
    CHECK(!note(NT_PRSTATUS, 1, 0));
    const struct elf_prpsinfo *process = note(NT_PRPSINFO, 0, sizeof *process);
    CHECK(process->pr_pid == child && !strcmp(process->pr_fname, "dumps") && strstr(process->pr_psargs, "dumps all"));
    const siginfo_t *info = note(NT_SIGINFO, 0, sizeof *info);
    CHECK(info->si_signo == SIGSEGV && info->si_code == SEGV_MAPERR && info->si_addr == NULL);
    const uint64_t *vector = note(NT_AUXV, 0, 64);
    while (vector[0] != AT_PAGESZ)
        vector += 2;
    CHECK(vector[1] == PAGE);
    const char *vectors = note(NT_PRFPREG, 0, 512);
    uint64_t xmm5;
    memcpy(&xmm5, vectors + 160 + 5 * 16, sizeof xmm5);
    CHECK(xmm5 == MARK && note(NT_X86_XSTATE, 0, 576));
    const uint64_t *files = note(NT_FILE, 0, 16);
    CHECK(files[0] > 0 && files[1] == PAGE);
    const char *name = (const char *)(files + 2 + 3 * files[0]);
    int has_mapping = 0;
    for (uint64_t file = 0; file < files[0]; file++, name += strlen(name) + 1)
        has_mapping |= files[2 + 3 * file] == (uintptr_t)of_file && strstr(name, "dumps") && files[4 + 3 * file] == 0;
    CHECK(has_mapping);
}

/* What coredump_filter asks for. */
static void filter(void)
{
    char text[16];
    prepare();
    make_memory();
    int file = open("/proc/self/coredump_filter", O_RDONLY);
    CHECK(read(file, text, sizeof text) == 9 && !strncmp(text, "00000033\n", 9));
    for (int bits = 0; bits < 32; bits += 5) {
        unlink(NAME);
        snprintf(text, sizeof text, "0x%x", bits);
        put("/proc/self/coredump_filter", text);
        pid_t child = fork();
        if (child == 0)
            abort();
        CHECK(WCOREDUMP(status_of_child(child)));
        load(NAME);
        CHECK(!!at(written) == (bits & 1) && !!at(shared) == !!(bits & 2));
        CHECK(!!at(of_file + PAGE) == !!(bits & 4) && !!at(of_file) == !!(bits & 0x14));
        CHECK(munmap(core, core_bytes) == 0);
    }
}

static pthread_barrier_t ready;

static void *wait_with_mark(void *index)
{
    pthread_barrier_wait(&ready);
    if ((long)index % 2)
        asm volatile("movq %0, %%rbx\n 1: jmp 1b" : : "r"(MARK + (long)index) : "rbx");
    pause();
    return NULL;
}

/* Each thread has its registers in the dump, whether it runs or sleeps. */
static void threads(void)
{
    prepare();
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        pthread_barrier_init(&ready, NULL, THREADS + 1);
        for (long at = 1; at <= THREADS; at++)
            CHECK(pthread_create(&thread, NULL, wait_with_mark, (void *)at) == 0);
        pthread_barrier_wait(&ready);
        usleep(100000);
        raise(SIGQUIT);
    }
    int status = status_of_child(child);
    CHECK(WTERMSIG(status) == SIGQUIT && WCOREDUMP(status));
    load(NAME);
    int marks = 0;
    for (int at = 0; at <= THREADS; at++) {
        const struct elf_prstatus *thread = note(NT_PRSTATUS, at, sizeof *thread);
        const struct user_regs_struct *registers = (void *)&thread->pr_reg;
        CHECK(thread && (at == 0) == (thread->pr_pid == child) && registers->fs_base);
        marks |= registers->rbx - MARK <= THREADS ? 1 << (registers->rbx - MARK) : 0;
    }
    CHECK(marks == 0xa && !note(NT_PRSTATUS, THREADS + 1, 0));
}

static int dumps_with(int signal)
{
    pid_t child = fork();
    if (child == 0) {
        raise(signal);
        _exit(0);
    }
    int status = status_of_child(child);
    CHECK(WTERMSIG(status) == signal);
    return !!WCOREDUMP(status);
}

/* Which signals dump, and what forbids it. */
static void signals(void)
{
    static const int dumping[] = {SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGFPE, SIGSEGV, SIGBUS, SIGSYS, SIGXCPU, SIGXFSZ};
    static const int others[] = {SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGPIPE, SIGALRM, SIGVTALRM, 40};
    prepare();
    for (size_t at = 0; at < sizeof dumping / sizeof *dumping; at++)
        CHECK(dumps_with(dumping[at]));
    CHECK(unlink(NAME) == 0);
    for (size_t at = 0; at < sizeof others / sizeof *others; at++)
        CHECK(!dumps_with(others[at]));
    limit(0);
    CHECK(!dumps_with(SIGQUIT) && access(NAME, F_OK) != 0);
    limit(PAGE - 1);
    CHECK(!dumps_with(SIGQUIT) && access(NAME, F_OK) != 0);
    /* A short one is as long as its limit. */
    struct stat found;
    limit(3 * PAGE);
    CHECK(dumps_with(SIGQUIT) && stat(NAME, &found) == 0 && found.st_size <= 3 * (long)PAGE && found.st_size > 0);
    limit(RLIM_INFINITY);
    CHECK(dumps_with(SIGQUIT) && stat(NAME, &found) == 0 && found.st_size > 3 * (long)PAGE);
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0 && unlink(NAME) == 0);
    CHECK(!dumps_with(SIGQUIT) && access(NAME, F_OK) != 0);
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0 && dumps_with(SIGQUIT) && access(NAME, F_OK) == 0);
}

/* Where a dump goes, and where it does not. */
static void names(void)
{
    char expected[128];
    prepare();
    CHECK(chdir("/tmp/dumps") == 0);
    put("/proc/sys/kernel/core_pattern", "a.%p.%s.%e.%u.%g.%h.%%.%z%");
    pid_t child = fork();
    if (child == 0)
        abort();
    CHECK(WCOREDUMP(status_of_child(child)));
    snprintf(expected, sizeof expected, "/tmp/dumps/a.%d.6.dumps.0.0.%s.%%.", child, "quire");
    CHECK(unlink(expected) == 0);
    put("/proc/sys/kernel/core_pattern", "core");
    put("/proc/sys/kernel/core_uses_pid", "1");
    child = fork();
    if (child == 0)
        abort();
    CHECK(WCOREDUMP(status_of_child(child)));
    snprintf(expected, sizeof expected, "core.%d", child);
    CHECK(unlink(expected) == 0);
    put("/proc/sys/kernel/core_uses_pid", "0");
    put("/proc/sys/kernel/core_pattern", "missing/core");
    CHECK(!dumps_with(SIGQUIT));
    put("/proc/sys/kernel/core_pattern", NAME);
    /* Neither to a folder, nor through links, nor to a file that others can read. */
    CHECK(mkdir(NAME, 0700) == 0 && !dumps_with(SIGQUIT) && rmdir(NAME) == 0);
    CHECK(symlink("target", NAME) == 0 && !dumps_with(SIGQUIT) && access("target", F_OK) != 0 && unlink(NAME) == 0);
    int file = open(NAME, O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && write(file, "old", 3) == 3 && dumps_with(SIGQUIT));
    char start[4];
    CHECK(pread(file, start, 4, 0) == 4 && !memcmp(start, ELFMAG, SELFMAG));
    CHECK(fchmod(file, 0644) == 0 && ftruncate(file, 0) == 0 && !dumps_with(SIGQUIT));
    CHECK(fchmod(file, 0600) == 0 && link(NAME, "other") == 0 && !dumps_with(SIGQUIT) && unlink("other") == 0);
    CHECK(dumps_with(SIGQUIT));
}

static const struct test_case cases[] = {
    {"memory", memory}, {"filter", filter}, {"threads", threads}, {"signals", signals}, {"names", names},
};

int main(int count, char **arguments)
{
    return run_cases(cases, sizeof cases / sizeof *cases, count > 1 ? arguments[1] : "all", 60);
}
