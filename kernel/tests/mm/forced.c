/* /proc/PID/mem, by which a debugger reads and stores where the program itself may not. */
#include "case.h"

static int memory_file(void)
{
    int file = open("/proc/self/mem", O_RDWR);
    CHECK(file >= 0);
    return file;
}

static char peek(int file, const void *at)
{
    char byte = 0;
    CHECK(pread(file, &byte, 1, (uintptr_t)at) == 1);
    return byte;
}

static void poke(int file, void *at, char byte)
{
    CHECK(pwrite(file, &byte, 1, (uintptr_t)at) == 1);
}

/* The rights of the mapping at an address, as maps shows them. */
static void has_rights(const void *at, const char *rights)
{
    char line[512], found[5] = "";
    unsigned long start, end;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &start, &end, found) == 3 && (uintptr_t)at >= start && (uintptr_t)at < end)
            break;
    fclose(maps);
    if (strcmp(found, rights)) {
        printf("%p has the rights %s, not %s\n", at, found, rights);
        fflush(stdout);
        _exit(1);
    }
}

static void private_memory(void)
{
    int file = memory_file();
    char *memory = map(4 * PAGE, RW, ANON);
    memset(memory, 1, 4 * PAGE);
    OK(mprotect(memory, 2 * PAGE, PROT_READ));
    OK(mprotect(memory + 2 * PAGE, PAGE, PROT_NONE));
    poke(file, memory + 5, 7);
    CHECK(memory[5] == 7 && memory[4] == 1);
    poke(file, memory + 2 * PAGE + 5, 8);
    CHECK(peek(file, memory + 2 * PAGE + 5) == 8 && peek(file, memory + 2 * PAGE) == 1);
    has_rights(memory, "r--p");
    has_rights(memory + PAGE, "r--p");
    has_rights(memory + 2 * PAGE, "---p");
    has_rights(memory + 3 * PAGE, "rw-p");
    /* Over an edge, and up to what is not mapped. */
    char bytes[2 * PAGE];
    memset(bytes, 9, sizeof bytes);
    CHECK(pwrite(file, bytes, 2 * PAGE, (uintptr_t)memory + PAGE) == 2 * PAGE);
    CHECK(memory[PAGE] == 9 && memory[2 * PAGE - 1] == 9 && peek(file, memory + 2 * PAGE) == 9);
    OK(munmap(memory + 3 * PAGE, PAGE));
    CHECK(pwrite(file, bytes, 2 * PAGE, (uintptr_t)memory + 2 * PAGE) == PAGE);
    FAILS(EIO, pwrite(file, bytes, 1, (uintptr_t)memory + 3 * PAGE));
    FAILS(EIO, pread(file, bytes, 1, (uintptr_t)memory + 3 * PAGE));
}

/* A page that was never touched, and a page that a child shares. */
static void copies(void)
{
    int file = memory_file();
    char *empty = map(2 * PAGE, PROT_READ, ANON);
    CHECK(empty[PAGE] == 0);
    poke(file, empty, 1);
    poke(file, empty + PAGE, 2);
    CHECK(empty[0] == 1 && empty[PAGE] == 2);
    char *zero = map(PAGE, PROT_READ, ANON);
    CHECK(*zero == 0);

    char *memory = map(PAGE, RW, ANON);
    *memory = 3;
    OK(mprotect(memory, PAGE, PROT_READ));
    pid_t child = fork();
    if (child == 0) {
        poke(memory_file(), memory, 4);
        _exit(*memory);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 4);
    CHECK(*memory == 3);
}

/* A private mapping of a file gets a copy, a shared one is not written to. */
static void files(void)
{
    int file = memory_file();
    char name[] = "/tmp/forcedXXXXXX";
    int source = mkstemp(name);
    CHECK(source >= 0);
    char bytes[PAGE];
    memset(bytes, 5, PAGE);
    CHECK(write(source, bytes, PAGE) == PAGE);
    OK(close(source));
    source = open(name, O_RDONLY);
    char *private = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, source, 0);
    char *shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, source, 0);
    char *hidden = mmap(NULL, PAGE, PROT_NONE, MAP_SHARED, source, 0);
    CHECK(private != MAP_FAILED && shared != MAP_FAILED && hidden != MAP_FAILED);
    poke(file, private, 6);
    CHECK(private[0] == 6 && private[1] == 5 && shared[0] == 5);
    FAILS(EIO, pwrite(file, bytes, 1, (uintptr_t)shared));
    CHECK(peek(file, hidden) == 5);
    FAILS(EIO, pwrite(file, bytes, 1, (uintptr_t)hidden));
    has_rights(private, "r--p");
    has_rights(shared, "r--s");
    has_rights(hidden, "---s");
    OK(unlink(name));
    /* Also where the file could be written. */
    char *own = map(PAGE, PROT_READ, SHARED);
    FAILS(EIO, pwrite(file, bytes, 1, (uintptr_t)own));
}

/* The text of the program. */
static int answer(void)
{
    return 0x11223344;
}

static void program(void)
{
    int file = memory_file();
    int (*volatile call)(void) = answer;
    char *at = (char *)answer;
    while (memcmp(at, "\x44\x33\x22\x11", 4))
        at++;
    poke(file, at, 0x55);
    CHECK(call() == 0x11223355);
    has_rights(at, "r-xp");
}

static void large_pages(void)
{
    int file = memory_file();
    char *memory = map(6 * MIB, RW, ANON);
    char *at = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(2 * MIB));
    OK(madvise(at, 2 * MIB, MADV_HUGEPAGE));
    memset(at, 1, 2 * MIB);
    OK(mprotect(at, 2 * MIB, PROT_READ));
    poke(file, at + MIB, 2);
    CHECK(at[MIB] == 2 && at[MIB + 1] == 1 && at[MIB - 1] == 1 && at[2 * MIB - 1] == 1);
    has_rights(at, "r--p");
    has_rights(at + MIB, "r--p");
}

MAIN(CASE(private_memory), CASE(copies), CASE(files), CASE(program), CASE(large_pages))
