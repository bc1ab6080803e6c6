/* Restartable sequences and the CPUs on which a task may run, as kernel/test runs them in the kernel; it passes on Linux
 * too.
 *
 *   sequences all | CASE
 */
#define _GNU_SOURCE
#include <linux/membarrier.h>
#include <linux/rseq.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#include "child.h"

#define SIGNATURE 0x53053053
#define BYTES 32
#define NODE 20
#define THREADS_PER_CPU 3
#define ADDITIONS 2000

/* The registration that libc makes for each thread. */
static char *registered(void)
{
    return (char *)__builtin_thread_pointer() + __rseq_offset;
}

static uint32_t word(const char *area, int at)
{
    return *(volatile uint32_t *)(area + at);
}

static uint64_t *sequence(char *area)
{
    return (uint64_t *)(area + 8);
}

static long rseq(void *area, uint32_t bytes, int flags, uint32_t signature)
{
    return syscall(SYS_rseq, area, bytes, flags, signature);
}

static void fails(int error, long result)
{
    CHECK(result == -1 && errno == error);
}

static int cpus(void)
{
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    return CPU_COUNT(&set);
}

/* The CPU with this place among those that the process may use, and a set of it alone. */
static int cpu_at(int place, cpu_set_t *one)
{
    cpu_set_t all;
    CHECK(sched_getaffinity(getpid(), sizeof all, &all) == 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all) || place-- > 0)
        cpu++;
    CPU_ZERO(one);
    CPU_SET(cpu, one);
    return cpu;
}

/* Binds a task to that CPU. Returns the CPU. */
static int bind_to(pid_t task, int place)
{
    cpu_set_t one;
    int cpu = cpu_at(place, &one);
    CHECK(sched_setaffinity(task, sizeof one, &one) == 0);
    return cpu;
}

/* The description of a sequence, and what stands before the place at which it is aborted. */
#define DESCRIBE(start, end, abort) \
    ".pushsection .data.rseq, \"aw\"\n .balign 32\n 99: .long 0, 0\n .quad " #start ", " #end " - " #start ", " #abort "\n" \
    ".popsection\n"
#define ABORT(label, target) \
    ".pushsection .text.rseq, \"ax\"\n .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n" #label ": jmp " target "\n .popsection\n"

extern char loop_start[], loop_end[], loop_abort[];

/* Stays in a sequence until it is aborted. */
__attribute__((noinline, noclone)) static void stay(char *area)
{
    asm volatile(DESCRIBE(loop_start, loop_end, loop_abort)
                 "leaq 99b(%%rip), %%rax\n"
                 "movq %%rax, 8(%[area])\n"
                 "loop_start: pause\n"
                 "jmp loop_start\n"
                 "loop_end:\n"
                 ABORT(loop_abort, "98f")
                 "98:\n"
                 : : [area] "r"(area) : "rax", "memory");
}

/* Adds one to the counter of the CPU on which it runs, without an atomic instruction, and slowly. */
__attribute__((noinline, noclone)) static int add(char *area, volatile long *counters)
{
    int done;
    asm volatile(DESCRIBE(20f, 21f, 22f)
                 "leaq 99b(%%rip), %%rax\n"
                 "movq %%rax, 8(%[area])\n"
                 "20: movl 4(%[area]), %%eax\n"
                 "leaq (%[counters], %%rax, 8), %%rdx\n"
                 "movq (%%rdx), %%rax\n"
                 "movl $300, %%ecx\n"
                 "23: pause\n"
                 "decl %%ecx\n"
                 "jnz 23b\n"
                 "incq %%rax\n"
                 "movq %%rax, (%%rdx)\n"
                 "21: movl $1, %[done]\n"
                 "jmp 24f\n"
                 ABORT(22, "25f")
                 "25: xorl %[done], %[done]\n"
                 "24:\n"
                 : [done] "=&r"(done) : [area] "r"(area), [counters] "r"(counters)
                 : "rax", "rcx", "rdx", "memory", "cc");
    return done;
}

static void *look(void *unused)
{
    char *area = registered();
    CHECK(word(area, 4) == (uint32_t)sched_getcpu() && word(area, 0) == word(area, 4));
    return unused;
}

/* libc registers each thread at its start. */
static void fields(void)
{
    CHECK(__rseq_size > 0);
    for (int place = 0; place < cpus(); place++) {
        pthread_t thread;
        unsigned cpu, node;
        int bound = bind_to(0, place);
        CHECK(sched_getcpu() == bound);
        look(NULL);
        CHECK(syscall(SYS_getcpu, &cpu, &node, NULL) == 0 && cpu == (unsigned)bound);
        if (getauxval(AT_RSEQ_FEATURE_SIZE) >= NODE + 8)
            CHECK(word(registered(), NODE) == node && word(registered(), NODE + 4) < CPU_SETSIZE);
        CHECK(pthread_create(&thread, NULL, look, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
    pid_t child = fork();
    if (child == 0) {
        look(NULL);
        fails(EBUSY, rseq(registered(), BYTES, 0, SIGNATURE));
        _exit(0);
    }
    CHECK(exits_with(child, 0));
}

static void errors(void)
{
    static char own[2 * BYTES] __attribute__((aligned(BYTES)));
    char *area = registered();
    fails(EBUSY, rseq(area, BYTES, 0, SIGNATURE));
    fails(EPERM, rseq(area, BYTES, 0, SIGNATURE + 1));
    fails(EINVAL, rseq(own, BYTES, 0, SIGNATURE));
    fails(EINVAL, rseq(area, BYTES, 2, SIGNATURE));
    fails(EINVAL, rseq(own, BYTES, RSEQ_FLAG_UNREGISTER, SIGNATURE));
    fails(EINVAL, rseq(area, 2 * BYTES, RSEQ_FLAG_UNREGISTER, SIGNATURE));
    fails(EPERM, rseq(area, BYTES, RSEQ_FLAG_UNREGISTER, SIGNATURE + 1));
    CHECK(rseq(area, BYTES, RSEQ_FLAG_UNREGISTER, SIGNATURE) == 0);
    CHECK(word(area, 0) == 0 && word(area, 4) == (uint32_t)-1);
    fails(EINVAL, rseq(area, BYTES, RSEQ_FLAG_UNREGISTER, SIGNATURE));
    fails(EINVAL, rseq(own, BYTES - 4, 0, SIGNATURE));
    fails(EINVAL, rseq(own + 4, BYTES, 0, SIGNATURE));
    fails(EFAULT, rseq((void *)-4096L, BYTES, 0, SIGNATURE));
    CHECK(rseq(own, BYTES, 0, SIGNATURE) == 0);
    CHECK(word(own, 4) < CPU_SETSIZE && word(own, 0) == word(own, 4));
}

static volatile uintptr_t interrupted_at;

static void interrupted(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    interrupted_at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

static void handle(int signal)
{
    struct sigaction action = {.sa_sigaction = interrupted, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

/* A handler returns to the place at which the sequence is aborted. */
static void signals(void)
{
    char *area = registered();
    handle(SIGUSR1);
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        usleep(50000);
        _exit(kill(self, SIGUSR1));
    }
    /* A switch may abort the sequence before the signal comes. */
    while (!interrupted_at)
        stay(area);
    CHECK(exits_with(child, 0));
    CHECK(interrupted_at < (uintptr_t)loop_start || interrupted_at >= (uintptr_t)loop_end);
    CHECK(*sequence(area) == 0);
}

/* A task that is switched away from leaves its sequence, without any signal. */
static void preempted(void)
{
    int cpu = bind_to(0, 0);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            CHECK(sched_getcpu() == cpu);
    for (int round = 0; round < 5; round++)
        stay(registered());
    CHECK(*sequence(registered()) == 0);
    CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
}

static volatile pid_t staying;

static void *stay_and_look(void *result)
{
    staying = gettid();
    stay(registered());
    *(int *)result = word(registered(), 4);
    return NULL;
}

/* A task that must go to another CPU leaves its sequence. */
static void moved(void)
{
    cpu_set_t set;
    if (cpus() < 2)
        return;
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        int seen = -1;
        staying = 0;
        CHECK(pthread_create(&thread, NULL, stay_and_look, &seen) == 0);
        while (!staying)
            sched_yield();
        usleep(1000);
        /* It is not on one of the two, unless a switch has aborted its sequence before. */
        for (int place = 0; place < 2; place++) {
            cpu_at(place, &set);
            if (sched_setaffinity(staying, sizeof set, &set) != 0)
                CHECK(errno == ESRCH);
        }
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(seen >= 0 && seen < CPU_SETSIZE);
    }
}

static void *wait_aborted(void *result)
{
    staying = gettid();
    stay(registered());
    *(volatile int *)result = 1;
    return NULL;
}

/* A barrier ends the sequences of all other threads. */
static void barrier(void)
{
    pthread_t thread;
    volatile int ended = 0;
    long known = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    if (!(known & MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ))
        return;
    fails(EPERM, syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, 0, 0));
    CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0);
    CHECK(pthread_create(&thread, NULL, wait_aborted, (void *)&ended) == 0);
    while (!staying)
        sched_yield();
    while (!ended) {
        usleep(1000);
        CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0);
        CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, MEMBARRIER_CMD_FLAG_CPU, 0) == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    fails(EINVAL, syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, MEMBARRIER_CMD_FLAG_CPU, 0));
}

static volatile long counters[CPU_SETSIZE];
static volatile long aborted;

static void *count(void *unused)
{
    for (int done = 0; done < ADDITIONS;)
        if (add(registered(), counters))
            done++;
        else
            __atomic_fetch_add(&aborted, 1, __ATOMIC_RELAXED);
    return unused;
}

/* More threads than CPUs count without losing a step. */
static void counts(void)
{
    static pthread_t threads[CPU_SETSIZE * THREADS_PER_CPU];
    int many = THREADS_PER_CPU * cpus();
    long sum = 0;
    for (int at = 0; at < many; at++)
        CHECK(pthread_create(&threads[at], NULL, count, NULL) == 0);
    for (int at = 0; at < many; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        sum += counters[cpu];
    CHECK(sum == (long)many * ADDITIONS);
    CHECK(aborted > 0);
}

/* Descriptions that make no sense end the process. */
static void bad(void)
{
    static struct {
        uint32_t version, flags;
        uint64_t start, bytes, abort;
    } __attribute__((aligned(32))) cases[4];
    uint64_t start = (uintptr_t)loop_start, abort = (uintptr_t)loop_abort;
    for (int at = 0; at < 4; at++) {
        cases[at].start = start, cases[at].bytes = loop_end - loop_start, cases[at].abort = abort;
    }
    cases[0].version = 1;
    cases[1].abort = start + 1;
    /* Another signature stands before it. */
    cases[2].abort = abort + 8;
    cases[3].start = 1UL << 63;
    for (int at = 0; at <= 4; at++) {
        pid_t child = fork();
        if (child == 0) {
            handle(SIGSEGV);
            *sequence(registered()) = at == 4 ? 1UL << 63 : (uintptr_t)&cases[at];
            handle(SIGUSR1);
            raise(SIGUSR1);
            _exit(0);
        }
        CHECK(is_killed_by(child, SIGSEGV));
    }
}

/* The CPUs of a task are its own, and those of a new one its maker's. */
static void affinity(void)
{
    cpu_set_t set, other;
    int all = cpus();
    CPU_ZERO(&set);
    fails(EINVAL, sched_setaffinity(0, sizeof set, &set));
    fails(ESRCH, sched_setaffinity(0x3fffffff, sizeof set, &set));
    fails(ESRCH, sched_getaffinity(0x3fffffff, sizeof set, &set));
    fails(EFAULT, syscall(SYS_sched_setaffinity, 0, 8, (void *)-4096L));
    CHECK(sched_get_priority_max(SCHED_FIFO) == 99 && sched_get_priority_min(SCHED_RR) == 1);
    CHECK(sched_get_priority_max(SCHED_OTHER) == 0 && sched_get_priority_min(SCHED_IDLE) == 0);
    fails(EINVAL, sched_get_priority_max(100));
    for (int place = all - 1; place >= 0; place--) {
        pid_t child = fork();
        if (child == 0) {
            int cpu = bind_to(0, place);
            pid_t grandchild = fork();
            for (int round = 0; round < 100; round++) {
                CHECK(sched_getcpu() == cpu);
                sched_yield();
                if (round % 10 == 0)
                    usleep(1000);
            }
            CHECK(sched_getaffinity(0, sizeof other, &other) == 0);
            CHECK(CPU_COUNT(&other) == 1 && CPU_ISSET(cpu, &other));
            if (grandchild == 0)
                _exit(3);
            CHECK(exits_with(grandchild, 3));
            _exit(3);
        }
        CHECK(exits_with(child, 3));
    }
    /* One that sleeps, and one that runs. */
    for (int runs = 0; runs < 2; runs++) {
        int *seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(seen != MAP_FAILED);
        pid_t child = fork();
        if (child == 0)
            for (;;) {
                *(volatile int *)seen = sched_getcpu() + 1;
                if (!runs)
                    usleep(1000);
            }
        for (int round = 0; round < 2 * all; round++) {
            int cpu = cpu_at(round % all, &set);
            CHECK(sched_setaffinity(child, sizeof set, &set) == 0);
            usleep(20000);
            for (int wait = 0; wait < 1000 && *(volatile int *)seen != cpu + 1; wait++)
                usleep(1000);
            CHECK(*(volatile int *)seen == cpu + 1);
        }
        CHECK(kill(child, SIGKILL) == 0 && is_killed_by(child, SIGKILL));
    }
}

static const struct test_case cases[] = {
    {"fields", fields},       {"errors", errors},   {"signals", signals}, {"preempted", preempted},
    {"moved", moved},         {"barrier", barrier}, {"counts", counts},   {"bad", bad},
    {"affinity", affinity},
};

int main(int count, char **arguments)
{
    return run_cases(cases, sizeof cases / sizeof *cases, count > 1 ? arguments[1] : "all", 60);
}
