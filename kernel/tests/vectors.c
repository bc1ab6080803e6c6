/* The vector registers of programs, as kernel/test runs them in the kernel; it passes on Linux too.
 *
 * Threads fill all sixteen AVX registers with values of their own and read them back after page faults that clear and
 * copy memory, after signals whose handlers destroy them, and after other threads ran, also while a signal returns. A handler that writes registers
 * into its frame changes those of the program, and one that removes the frame's marks loses the upper halves.
 */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s\n", __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

#define THREADS 4
#define ROUNDS 200
#define REGISTERS 16
#define PAGE 4096
/* Places in what XSAVE stores (SDM volume 1, section 13.4). */
#define LOWER 160
#define MARKS 464
#define HEADER 512
#define UPPER 576

typedef uint8_t Values[REGISTERS][32];

#define LOAD(n) "vmovdqu " #n "*32(%1), %%ymm" #n "\n"
#define STORE(n) "vmovdqu %%ymm" #n ", " #n "*32(%2)\n"
#define ALL(each) each(0) each(1) each(2) each(3) each(4) each(5) each(6) each(7) \
    each(8) each(9) each(10) each(11) each(12) each(13) each(14) each(15)

/* Loads all registers, does a system call or a store to memory, and stores all registers. No compiler's code runs
 * between. */
static long across(const Values in, Values out, long call, long first, long second, long third, volatile char *touch)
{
    register long result __asm__("rax") = call;
    __asm__ volatile(
        ALL(LOAD)
        "movb $1, (%6)\n"
        "syscall\n"
        ALL(STORE)
        : "+r"(result)
        : "r"(in), "r"(out), "D"(first), "S"(second), "d"(third), "r"(touch)
        : "rcx", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
          "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    return result;
}

static void fill(Values values, int seed)
{
    for (int i = 0; i < REGISTERS; i++)
        for (int j = 0; j < 32; j++)
            values[i][j] = (uint8_t)(seed * 131 + i * 17 + j * 7 + 1);
}

/* Names the first register that is not as it was. */
static void compare(const Values in, const Values out, const char *after, int round)
{
    for (int i = 0; i < REGISTERS; i++)
        for (int j = 0; j < 32; j++)
            if (in[i][j] != out[i][j]) {
                printf("after %s, round %d: byte %d of ymm%d is %#x and was %#x; the register:", after, round, j, i,
                       out[i][j], in[i][j]);
                for (int k = 0; k < 32; k++)
                    printf(" %02x", out[i][k]);
                printf("\n");
                exit(1);
            }
}

static void destroy(int signal)
{
    (void)signal;
    __asm__ volatile("vpcmpeqb %%ymm0, %%ymm0, %%ymm0\nvmovdqa %%ymm0, %%ymm7\nvmovdqa %%ymm0, %%ymm15\nvzeroupper\n"
        ::: "xmm0", "xmm7", "xmm15", "memory");
}

/* The registers are this thread's (X3), and the kernel itself does not use them (X7). */
static void *keep(void *number)
{
    Values in, out;
    char *memory = mmap(NULL, PAGE * ROUNDS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int round = 0; round < ROUNDS; round++) {
        fill(in, round + (int)(intptr_t)number);
        across(in, out, SYS_sched_yield, 0, 0, 0, memory + round * PAGE);
        compare(in, out, "a page fault and a yield", round);
        across(in, out, SYS_tgkill, getpid(), gettid(), SIGUSR1, memory);
        compare(in, out, "a signal", round);
    }
    munmap(memory, PAGE * ROUNDS);
    return NULL;
}

static void upper(uint8_t *image, uint8_t value)
{
    memset(image + UPPER, value, REGISTERS * 16);
}

/* Gives all registers another value; the header says that both halves are there. */
static void change(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    ucontext_t *user = context;
    uint8_t *image = (uint8_t *)user->uc_mcontext.fpregs;
    CHECK(user->uc_flags & 1);
    CHECK(memcmp(image + MARKS, "SXPF", 4) == 0);
    uint32_t bytes;
    memcpy(&bytes, image + MARKS + 16, 4);
    CHECK(memcmp(image + bytes, "EXPF", 4) == 0);
    memset(image + LOWER, 0x5a, REGISTERS * 16);
    upper(image, 0xa5);
    image[HEADER] |= 7;
}

/* Without the first mark the image is one of FXSAVE. */
static void unmark(int signal, siginfo_t *info, void *context)
{
    ucontext_t *user = context;
    uint8_t *image = (uint8_t *)user->uc_mcontext.fpregs;
    change(signal, info, context);
    memset(image + MARKS, 0, 4);
}

/* The task alone changes its image of the registers, by a handler (X3). */
static void changed(void (*handler)(int, siginfo_t *, void *), uint8_t low, uint8_t high)
{
    Values in, out;
    char touched;
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
    sigaction(SIGUSR2, &action, NULL);
    fill(in, 3);
    across(in, out, SYS_tgkill, getpid(), gettid(), SIGUSR2, &touched);
    for (int i = 0; i < REGISTERS; i++)
        for (int j = 0; j < 32; j++)
            CHECK(out[i][j] == (j < 16 ? low : high));
}

/* Two pages: an image ends in the second one, which another thread brings in while the signal returns. */
static char *split;
static char rest[PAGE];
static int faults;

static void *bring_in(void *unused)
{
    (void)unused;
    struct uffd_msg message;
    CHECK(read(faults, &message, sizeof message) == sizeof message && message.event == UFFD_EVENT_PAGEFAULT);
    struct uffdio_copy copy = { .dst = (uintptr_t)split + PAGE, .src = (uintptr_t)rest, .len = PAGE };
    CHECK(ioctl(faults, UFFDIO_COPY, &copy) == 0);
    return NULL;
}

/* Moves the image, and destroys the registers. */
static void move(int signal, siginfo_t *info, void *context)
{
    (void)info;
    ucontext_t *user = context;
    char *image = (char *)user->uc_mcontext.fpregs;
    uint32_t bytes;
    memcpy(&bytes, image + MARKS + 4, 4);
    CHECK(bytes - HEADER <= PAGE);
    memcpy(split + PAGE - HEADER, image, HEADER);
    memcpy(rest, image + HEADER, bytes - HEADER);
    user->uc_mcontext.fpregs = (void *)(split + PAGE - HEADER);
    destroy(signal);
}

/* A signal returns to its registers though a page of their image is missing, so that the thread sleeps halfway. */
static void returns_asleep(void)
{
    split = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(split != MAP_FAILED);
    faults = syscall(SYS_userfaultfd, 0);
    CHECK(faults >= 0);
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register range = { .range = { (uintptr_t)split + PAGE, PAGE },
                                     .mode = UFFDIO_REGISTER_MODE_MISSING };
    CHECK(ioctl(faults, UFFDIO_API, &api) == 0 && ioctl(faults, UFFDIO_REGISTER, &range) == 0);
    struct sigaction action = { .sa_sigaction = move, .sa_flags = SA_SIGINFO };
    sigaction(SIGUSR2, &action, NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, bring_in, NULL) == 0);
    Values in, out;
    char touched;
    fill(in, 5);
    across(in, out, SYS_tgkill, getpid(), gettid(), SIGUSR2, &touched);
    compare(in, out, "a return that sleeps", 0);
    pthread_join(thread, NULL);
}

int main(void)
{
    if (!__builtin_cpu_supports("avx")) {
        puts("no AVX");
        return 0;
    }
    signal(SIGUSR1, destroy);
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, keep, (void *)(i * 50)) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);

    /* A child begins with its parent's registers, and copies pages that it writes. */
    Values in, out;
    char *memory = malloc(PAGE);
    memset(memory, 1, PAGE);
    fill(in, 9);
    long child = across(in, out, SYS_fork, 0, 0, 0, memory);
    CHECK(memcmp(in, out, sizeof in) == 0);
    if (child == 0) {
        across(in, out, SYS_getpid, 0, 0, 0, memory);
        _exit(memcmp(in, out, sizeof in) != 0);
    }
    int status;
    CHECK(wait(&status) == child && status == 0);

    changed(change, 0x5a, 0xa5);
    changed(unmark, 0x5a, 0);
    returns_asleep();
    puts("all registers are kept");
    return 0;
}
