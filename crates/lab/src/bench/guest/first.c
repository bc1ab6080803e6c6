// The first program of a machine that is only started, and nothing else: no library is linked, so what the machine has in
// use is the kernel's. Build: gcc -O2 -static -nostdlib -ffreestanding.
//
// Arguments: mode=boot memory=MIB, as program.c has them. Output, one line each: rows as program.c prints them, and `done`.
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#define POWER_OFF 0x4321fedc

static long call(long number, long first, long second, long third, long fourth, long fifth) {
    register long at_r10 __asm__("r10") = fourth;
    register long at_r8 __asm__("r8") = fifth;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(first), "S"(second), "d"(third), "r"(at_r10), "r"(at_r8)
                     : "rcx", "r11", "memory");
    return number;
}

static uint64_t now(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

static size_t length(const char *text) {
    size_t bytes = 0;
    while (text[bytes]) bytes++;
    return bytes;
}

static void print(const char *text) {
    call(SYS_write, 1, (long)text, (long)length(text), 0, 0);
}

// Where `text` goes on behind `start`, or NULL if it does not begin with it.
static const char *behind(const char *text, const char *start) {
    while (*start && *text == *start) text++, start++;
    return *start ? NULL : text;
}

static uint64_t number(const char *text) {
    uint64_t value = 0;
    while (*text == ' ') text++;
    while (*text >= '0' && *text <= '9') value = 10 * value + (uint64_t)(*text++ - '0');
    return value;
}

static void row(const char *name, uint64_t value, const char *unit) {
    char digits[21];
    char *first = digits + sizeof digits - 1;
    *first = 0;
    do *--first = (char)('0' + value % 10);
    while (value /= 10);
    print("row "), print(name), print(" "), print(first), print(" "), print(unit), print("\n");
}

// The KiB of one line of /proc/meminfo, whose text is `meminfo`, or 0.
static uint64_t kib(const char *meminfo, const char *name) {
    for (const char *line = meminfo; *line; line++) {
        const char *value = behind(line, name);
        if (value) return number(value);
        while (*line && *line != '\n') line++;
        if (!*line) break;
    }
    return 0;
}

static void kib_row(const char *name, uint64_t whole, uint64_t part) {
    if (part) row(name, whole - part, "KiB");
    else print("row "), print(name), print(" n/a: /proc/meminfo lacks a line\n");
}

// Reads /proc/meminfo into `text`; what cannot be read is empty.
static void read_meminfo(char *text, size_t most) {
    size_t bytes = 0;
    long file = call(SYS_open, (long)"/proc/meminfo", 0, 0, 0, 0), read = 0;
    while (file >= 0 && (read = call(SYS_read, file, (long)(text + bytes), (long)(most - 1 - bytes), 0, 0)) > 0)
        bytes += (size_t)read;
    text[bytes] = 0;
}

// `words` is what the kernel puts on the stack: the number of arguments, then the arguments.
__attribute__((noreturn, used)) void first_program(long *words) {
    uint64_t at_start = now(), machine_kib = 0;
    char meminfo[3000];
    for (long at = 0; at < words[0]; at++) {
        const char *mib = behind((const char *)words[1 + at], "memory=");
        if (mib) machine_kib = number(mib) * 1024;
    }
    call(SYS_mkdir, (long)"/proc", 0755, 0, 0, 0);
    call(SYS_mount, (long)"proc", (long)"/proc", (long)"proc", 0, 0);
    row("boot", at_start, "machine");
    read_meminfo(meminfo, sizeof meminfo);
    kib_row("memory", machine_kib, kib(meminfo, "MemFree:"));
    kib_row("memory/used", kib(meminfo, "MemTotal:"), kib(meminfo, "MemAvailable:"));
    print("done\n");
    call(SYS_sync, 0, 0, 0, 0, 0);
    call(SYS_reboot, (long)0xfee1dead, 0x28121969, POWER_OFF, 0, 0);
    for (;;) call(SYS_exit_group, 0, 0, 0, 0, 0);
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call first_program\n");
