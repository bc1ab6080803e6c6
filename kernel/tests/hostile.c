/* A program that wants to bring the kernel down: processes and threads that make drawn system calls with drawn
 * arguments, and read and write drawn addresses. Run it in the kernel only.
 *
 *   hostile CALLS [SEED [PROCESSES]]
 *
 * A child that is killed, or makes no calls for a while, is replaced by one with the next seed. Meanwhile the parent
 * keeps memory with known contents, which no child may change. Status 0: all calls were made, and the parent's memory
 * is as it was.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_PROCESSES 16
#define CALLS_PER_CHILD 4000
#define WITNESS_BYTES (4UL << 20)
#define NUMBERS 470
#define PATIENCE_MS 400

/* What the parent and the children share, at an address that is not drawn. */
struct progress {
    volatile uint64_t calls, succeeded;
    volatile uint64_t of_child[MOST_PROCESSES];
    volatile uint8_t made[NUMBERS];
};
#define PROGRESS ((struct progress *)0x500000000000)

static __thread uint64_t state;
static __thread sigjmp_buf recovery;
static volatile uint64_t *own_calls;

static uint64_t draw(void)
{
    state += 0x9e3779b97f4a7c15;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static char *arena;
#define ARENA_BYTES (1UL << 20)
#define NAME_BYTES 64

/* Files for calls that take a path: each at a known place of the arena. None is a setting of the whole machine. */
static const char *const names[] = {
    "/bin/busybox", "/dev/zero", "/dev/null", "/dev/full", "/dev/random", "/dev/tty", "/proc/self/maps",
    "/proc/self/mem", "/proc/self/pagemap", "/proc/self/smaps", "/proc/self/clear_refs", "/proc/self/fd",
    "/proc/self/exe", "/proc/meminfo", "/proc/kpagecount", "/proc/vmstat", "/tmp", "/tmp/a", "/tmp/b", "/tmp/a/c", ".",
    "..", "", "/proc/self/status", "/proc/zoneinfo",
};
#define NAMES (sizeof names / sizeof *names)

static uint64_t draw_address(void)
{
    switch (draw() % 14) {
    case 0: return 0;
    case 1: return draw() % 4096;
    case 2: return 0x7ffffffff000 - draw() % 8192;
    case 3: return 0x800000000000 + draw() % 4096;
    case 4: return 0xffff800000000000 + draw() % (1UL << 32);
    case 5: return 0xffffffff80200000 + draw() % (4UL << 20);
    case 6: return draw();
    case 7: return (uint64_t)&state;
    case 8: return 0x10000000 + (draw() % 4096) * 4096;
    case 9: case 10: return (uint64_t)arena + draw() % NAMES * NAME_BYTES;
    default: return (uint64_t)arena + (draw() % ARENA_BYTES & (draw() % 2 ? -4096ul : -1ul));
    }
}

static uint64_t draw_argument(void)
{
    switch (draw() % 9) {
    case 0: return draw() % 8;
    case 1: return 1UL << (draw() % 64);
    case 2: return draw() % 65536;
    case 3: return (draw() % 512) * 4096;
    case 4: return -(draw() % 4096);
    case 5: return draw();
    case 6: return draw() % 32;
    default: return draw_address();
    }
}

/* Ends the machine, or takes the process out of the group by which the parent ends it. */
static int is_excluded(long number)
{
    return number == SYS_reboot || number == SYS_setpgid || number == SYS_setsid;
}

/* Calls whose first argument is a process: they go to the caller. */
static int is_of_process(long number)
{
    switch (number) {
    case SYS_kill: case SYS_tkill: case SYS_tgkill: case SYS_rt_sigqueueinfo: case SYS_rt_tgsigqueueinfo:
    case SYS_prlimit64: case SYS_process_vm_writev: case SYS_process_vm_readv: case SYS_migrate_pages:
    case SYS_move_pages: case SYS_sched_setaffinity: case SYS_ptrace: case SYS_process_madvise:
        return 1;
    }
    return 0;
}

/* Calls that mostly end their caller, or make more of them: less often than others. */
static int is_rare(long number)
{
    switch (number) {
    case SYS_exit: case SYS_exit_group: case SYS_kill: case SYS_tkill: case SYS_tgkill: case SYS_rt_sigreturn:
    case SYS_fork: case SYS_vfork: case SYS_clone: case SYS_clone3: case SYS_execve: case SYS_execveat:
    case SYS_pause: case SYS_rt_sigsuspend: case SYS_rt_sigtimedwait:
        return 1;
    }
    return 0;
}

static int makes_task(long number)
{
    return number == SYS_fork || number == SYS_vfork || number == SYS_clone || number == SYS_clone3;
}

static const long memory_calls[] = {
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_mlock, SYS_munlock, SYS_mincore,
    SYS_msync, SYS_mlockall, SYS_munlockall, SYS_futex, SYS_read, SYS_write, SYS_userfaultfd, SYS_mbind,
    SYS_memfd_create, SYS_ftruncate, SYS_shmget, SYS_shmat, SYS_shmdt, SYS_rt_sigaction, SYS_sigaltstack, SYS_open,
    SYS_fallocate, SYS_ioctl, SYS_fork,
};

static void access_memory(void)
{
    if (sigsetjmp(recovery, 0))
        return;
    volatile char *at = (volatile char *)draw_address();
    if (draw() % 2)
        *at = (char)draw();
    else
        (void)*at;
}

/* A fault of `access_memory` goes on there. One of anything else repeats itself, and is ended by the parent. */
static void recover(int signal)
{
    (void)signal;
    siglongjmp(recovery, 1);
}

static void interrupt(int signal) { (void)signal; }

/* Such calls that wait come back, as long as the timer and the handler are as they were. */
static void install_handlers(void)
{
    struct sigaction action = { .sa_handler = recover, .sa_flags = SA_NODEFER };
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    action.sa_handler = interrupt;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 20000 }, { 0, 20000 } };
    setitimer(ITIMER_REAL, &often, NULL);
}

/* Drawn addresses include the kernel's, whose mappings stay as they are (X5). */
static void attack(int calls)
{
    for (int i = 0; i < calls; i++) {
        long number = draw() % 2 ? memory_calls[draw() % (sizeof memory_calls / sizeof *memory_calls)]
                                 : (long)(draw() % NUMBERS);
        uint64_t first = draw_argument();
        if (is_excluded(number) || (is_rare(number) && draw() % 32))
            continue;
        if (is_of_process(number))
            first = number == SYS_tkill ? gettid() : getpid();
        if (number == SYS_clone)
            first &= ~(uint64_t)CLONE_PARENT;
        PROGRESS->made[number] = 1;
        long result = syscall(number, first, draw_argument(), draw_argument(), draw_argument(), draw_argument(),
                              draw_argument());
        if (result == 0 && makes_task(number)) {
            state ^= 0x5bd1e995;
            calls = i + 20;
        }
        __atomic_fetch_add(&PROGRESS->calls, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&PROGRESS->succeeded, result >= 0 || result < -4095, __ATOMIC_RELAXED);
        __atomic_fetch_add(own_calls, 1, __ATOMIC_RELAXED);
        if (draw() % 32 == 0)
            access_memory();
        if (i % 256 == 0)
            install_handlers();
    }
}

static void *thread(void *seed)
{
    state = (uint64_t)seed;
    attack(CALLS_PER_CHILD);
    return NULL;
}

static void set_oom_score_adj(const char *text)
{
    int file = open("/proc/self/oom_score_adj", O_WRONLY);
    if (write(file, text, strlen(text)) < 0)
        printf("oom_score_adj: %s\n", strerror(errno));
    close(file);
}

static void child(uint64_t seed)
{
    setpgid(0, 0);
    set_oom_score_adj("0");
    /* What it writes is no text. */
    for (int descriptor = 0; descriptor < 3; descriptor++)
        close(descriptor);
    state = seed * 0x2545f4914f6cdd1d + 1;
    arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED)
        _exit(0);
    for (size_t i = 0; i < NAMES; i++)
        strcpy(arena + i * NAME_BYTES, names[i]);
    /* Sometimes more threads, and sometimes a grandchild, do the same beside it. */
    for (uint64_t i = 0; i < seed % 3; i++) {
        pthread_t other;
        pthread_create(&other, NULL, thread, (void *)(state + i + 1));
    }
    if (seed % 5 == 0 && fork() == 0)
        state ^= 0xdeadbeef;
    attack(CALLS_PER_CHILD);
    _exit(0);
}

static uint64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000ull + time.tv_nsec / 1000000;
}

/* A child as the parent sees it. */
struct running {
    pid_t pid;
    uint64_t calls, since;
};

static uint64_t seed = 1, children, killed, hung;

/* The calls so far. A child may have zeroed the count, which is memory of its own too. */
static uint64_t made_calls(void)
{
    static uint64_t sum, last;
    uint64_t now = PROGRESS->calls;
    sum += now < last ? now : now - last;
    last = now;
    return sum;
}

static void start(struct running *slot, int number)
{
    own_calls = &PROGRESS->of_child[number];
    pid_t pid = fork();
    if (pid == 0)
        child(seed);
    if (pid < 0)
        return;
    *slot = (struct running){ pid, *own_calls, now_ms() };
    seed++;
    children++;
}

/* Ends a child that makes no calls. */
static void watch(struct running *slot, int number)
{
    uint64_t calls = PROGRESS->of_child[number];
    if (calls != slot->calls)
        *slot = (struct running){ slot->pid, calls, now_ms() };
    if (now_ms() - slot->since > PATIENCE_MS) {
        kill(slot->pid, SIGKILL);
        hung++;
        slot->since = now_ms();
    }
}

/* Waits for what has ended: children, whose descendants are ended too, and descendants without a parent. */
static void reap(struct running *running, int processes)
{
    pid_t pid;
    int status;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int i = 0; i < processes; i++)
            if (running[i].pid == pid) {
                kill(-pid, SIGKILL);
                killed += WIFSIGNALED(status);
                running[i].pid = 0;
            }
}

int main(int count, char **arguments)
{
    uint64_t calls = count > 1 ? strtoull(arguments[1], NULL, 0) : 10000;
    seed = count > 2 ? strtoull(arguments[2], NULL, 0) : 1;
    int processes = count > 3 ? atoi(arguments[3]) : 4;
    if (processes < 1 || processes > MOST_PROCESSES)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    set_oom_score_adj("-1000");
    uint64_t *witness = mmap(NULL, WITNESS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* `MADV_REMOVE` of a range that begins before it fails at private memory. */
    char *guard = (char *)PROGRESS - ARENA_BYTES;
    mmap(guard, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (witness == MAP_FAILED || mmap(PROGRESS, sizeof *PROGRESS, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != PROGRESS)
        return 2;
    for (size_t at = 0; at < WITNESS_BYTES / 8; at++)
        witness[at] = at * 0x9e3779b97f4a7c15;

    struct running running[MOST_PROCESSES] = { { 0 } };
    uint64_t begin = now_ms();
    while (made_calls() < calls) {
        for (int i = 0; i < processes; i++)
            if (running[i].pid == 0)
                start(&running[i], i);
        struct timespec pause = { 0, 5000000 };
        nanosleep(&pause, NULL);
        for (int i = 0; i < processes; i++)
            if (running[i].pid)
                watch(&running[i], i);
        reap(running, processes);
    }
    for (int i = 0; i < processes; i++)
        if (running[i].pid)
            kill(-running[i].pid, SIGKILL);
    for (size_t at = 0; at < WITNESS_BYTES / 8; at++)
        if (witness[at] != at * 0x9e3779b97f4a7c15) {
            printf("the parent's memory has changed at %zu\n", at * 8);
            return 1;
        }
    int made = 0;
    for (int number = 0; number < NUMBERS; number++)
        made += PROGRESS->made[number];
    uint64_t ms = now_ms() - begin;
    printf("%lu calls of %d numbers by %lu children in %lu s: %lu%% succeeded, %lu killed by signals, %lu hung\n",
           made_calls(), made, children, ms / 1000, PROGRESS->succeeded * 100 / (PROGRESS->calls + 1), killed, hung);
    return 0;
}
