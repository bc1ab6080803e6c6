/* A program that wants to bring the kernel down: processes and threads that make drawn system calls with drawn
 * arguments, and read and write drawn addresses. Run it in the kernel only.
 *
 *   hostile CALLS [SEED [PROCESSES]]
 *
 * A child that is killed, or hangs, is replaced by one with the next seed. Meanwhile the parent keeps memory with known
 * contents, which no child may change. Status 0: all calls were made, and the parent's memory is as it was.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_PROCESSES 16
#define CALLS_PER_CHILD 2000
#define WITNESS_BYTES (4UL << 20)

struct progress {
    volatile uint64_t calls;
};

static struct progress *progress;
static uint64_t state;

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

static uint64_t draw_address(void)
{
    switch (draw() % 12) {
    case 0: return 0;
    case 1: return draw() % 4096;
    case 2: return 0x7ffffffff000 - draw() % 8192;
    case 3: return 0x800000000000 + draw() % 4096;
    case 4: return 0xffff800000000000 + draw() % (1UL << 32);
    case 5: return 0xffffffff80200000 + draw() % (4UL << 20);
    case 6: return draw();
    case 7: return (uint64_t)&state;
    case 8: return 0x10000000 + (draw() % 4096) * 4096;
    default: return (uint64_t)arena + draw() % ARENA_BYTES;
    }
}

static uint64_t draw_argument(void)
{
    switch (draw() % 8) {
    case 0: return draw() % 8;
    case 1: return 1UL << (draw() % 64);
    case 2: return draw() % 65536;
    case 3: return (draw() % 512) * 4096;
    case 4: return -(draw() % 4096);
    case 5: return draw();
    default: return draw_address();
    }
}

/* Calls that only end the child early, or that legitimately reach other processes. */
static int is_excluded(long number)
{
    switch (number) {
    case SYS_exit: case SYS_exit_group: case SYS_kill: case SYS_tkill: case SYS_tgkill:
    case SYS_rt_sigqueueinfo: case SYS_rt_tgsigqueueinfo: case SYS_pidfd_send_signal:
    case SYS_fork: case SYS_vfork: case SYS_clone: case SYS_clone3:
    case SYS_reboot: case SYS_process_vm_writev: case SYS_ptrace: case SYS_process_madvise:
    case SYS_rt_sigreturn: case SYS_setpgid: case SYS_setsid:
        return 1;
    }
    return 0;
}

static const long memory_calls[] = {
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_mlock, SYS_munlock, SYS_mincore,
    SYS_msync, SYS_mlockall, SYS_munlockall, SYS_futex, SYS_read, SYS_write, SYS_userfaultfd, SYS_mbind,
    SYS_memfd_create, SYS_ftruncate, SYS_shmget, SYS_shmat, SYS_rt_sigaction, SYS_sigaltstack,
};

static void access_memory(void)
{
    volatile char *at = (volatile char *)draw_address();
    if (draw() % 2)
        *at = (char)draw();
    else
        (void)*at;
}

static void *attack(void *seed)
{
    (void)seed;
    for (int i = 0; i < CALLS_PER_CHILD; i++) {
        long number = draw() % 2 ? memory_calls[draw() % (sizeof memory_calls / sizeof *memory_calls)]
                                 : (long)(draw() % 470);
        if (is_excluded(number))
            continue;
        syscall(number, draw_argument(), draw_argument(), draw_argument(), draw_argument(), draw_argument(),
                draw_argument());
        __atomic_fetch_add(&progress->calls, 1, __ATOMIC_RELAXED);
        if (draw() % 64 == 0)
            access_memory();
    }
    return NULL;
}

static void child(uint64_t seed)
{
    /* What it writes is no text. */
    for (int descriptor = 0; descriptor < 3; descriptor++)
        close(descriptor);
    state = seed * 0x2545f4914f6cdd1d + 1;
    arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED)
        _exit(0);
    /* Sometimes a second thread, and sometimes a grandchild, do the same beside it. */
    pthread_t thread;
    if (seed % 3 == 0)
        pthread_create(&thread, NULL, attack, NULL);
    if (seed % 5 == 0 && fork() == 0)
        state ^= 0xdeadbeef;
    attack(NULL);
    _exit(0);
}

static uint64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000ull + time.tv_nsec / 1000000;
}

int main(int count, char **arguments)
{
    uint64_t calls = count > 1 ? strtoull(arguments[1], NULL, 0) : 10000;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 0) : 1;
    int processes = count > 3 ? atoi(arguments[3]) : 4;
    if (processes < 1 || processes > MOST_PROCESSES)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *witness = mmap(NULL, WITNESS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED || witness == MAP_FAILED)
        return 2;
    for (size_t at = 0; at < WITNESS_BYTES / 8; at++)
        witness[at] = at * 0x9e3779b97f4a7c15;

    pid_t running[MOST_PROCESSES] = { 0 };
    uint64_t since[MOST_PROCESSES];
    uint64_t killed = 0, hung = 0, children = 0;
    while (progress->calls < calls) {
        for (int i = 0; i < processes; i++) {
            if (running[i] == 0) {
                fflush(NULL);
                pid_t pid = fork();
                if (pid == 0)
                    child(seed);
                if (pid < 0)
                    continue;
                running[i] = pid;
                since[i] = now_ms();
                seed++;
                children++;
            }
        }
        struct timespec pause = { 0, 5000000 };
        nanosleep(&pause, NULL);
        for (int i = 0; i < processes; i++) {
            int status;
            if (running[i] && waitpid(running[i], &status, WNOHANG) == running[i]) {
                killed += WIFSIGNALED(status);
                running[i] = 0;
            } else if (running[i] && now_ms() - since[i] > 2000) {
                kill(running[i], SIGKILL);
                waitpid(running[i], &status, 0);
                running[i] = 0;
                hung++;
            }
        }
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    for (int i = 0; i < processes; i++)
        if (running[i])
            kill(running[i], SIGKILL);
    for (size_t at = 0; at < WITNESS_BYTES / 8; at++)
        if (witness[at] != at * 0x9e3779b97f4a7c15) {
            printf("the parent's memory has changed at %zu\n", at * 8);
            return 1;
        }
    printf("%llu calls by %llu children: %llu killed by signals, %llu hung\n", (unsigned long long)progress->calls,
           (unsigned long long)children, (unsigned long long)killed, (unsigned long long)hung);
    return 0;
}
