// Compares the kernel's clock with the processor's counter on a machine whose counter makes a tick in each nanosecond
// (QEMU with `-icount`, where a tick is an instruction too).
//
// clock MOST: the program must begin before the counter has come to MOST.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t ticks(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(int count, char **words) {
    uint64_t begun = ticks(), most = count > 1 ? strtoull(words[1], NULL, 10) : UINT64_MAX;
    uint64_t ticks_before = ticks(), before = nanoseconds();
    struct timespec wait = {1, 0};
    nanosleep(&wait, NULL);
    uint64_t ticks_passed = ticks() - ticks_before, passed = nanoseconds() - before;
    double ratio = (double)passed / (double)ticks_passed;
    printf("%llu ticks to the program, %.4f ns a tick\n", (unsigned long long)begun, ratio);
    return begun > most || ratio < 0.99 || ratio > 1.01;
}
