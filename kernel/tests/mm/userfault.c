/* userfaultfd. */
#include "case.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/ioctl.h>

#ifndef UFFDIO_POISON
struct uffdio_poison {
    struct uffdio_range range;
    __u64 mode;
    __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 8, struct uffdio_poison)
#endif

static int open_handler(int flags, unsigned long long features)
{
    int handler = syscall(SYS_userfaultfd, flags);
    CHECK(handler >= 0);
    struct uffdio_api api = { UFFD_API, features, 0 };
    OK(ioctl(handler, UFFDIO_API, &api));
    CHECK((api.features & features) == features && api.ioctls);
    return handler;
}

static unsigned long long add(int handler, void *start, size_t bytes, unsigned mode)
{
    struct uffdio_register add = { { (uintptr_t)start, bytes }, mode, 0 };
    OK(ioctl(handler, UFFDIO_REGISTER, &add));
    return add.ioctls;
}

static long long copy(int handler, char *to, void *from, size_t bytes, unsigned mode)
{
    struct uffdio_copy copy = { (uintptr_t)to, (uintptr_t)from, bytes, mode, 0 };
    int answer = ioctl(handler, UFFDIO_COPY, &copy);
    return answer == 0 || errno == EAGAIN ? copy.copy : -errno;
}

static void protect(int handler, void *start, size_t bytes, unsigned mode)
{
    struct uffdio_writeprotect protect = { { (uintptr_t)start, bytes }, mode };
    OK(ioctl(handler, UFFDIO_WRITEPROTECT, &protect));
}

static void errors(void)
{
    char buffer[64], page[PAGE] = "page";
    FAILS(EINVAL, syscall(SYS_userfaultfd, 0x100));
    int handler = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    CHECK(handler >= 0);
    FAILS(EINVAL, read(handler, buffer, 32));
    struct pollfd poll_one = { handler, POLLIN, 0 };
    CHECK(poll(&poll_one, 1, 0) == 1 && poll_one.revents == POLLERR);
    char *memory = map(16 * PAGE, RW, ANON);
    struct uffdio_register r = { { (uintptr_t)memory, 8 * PAGE }, 1, 0 };
    FAILS(EINVAL, ioctl(handler, UFFDIO_REGISTER, &r));
    struct uffdio_api api = { UFFD_API, 1ULL << 40, 0 };
    FAILS(EINVAL, ioctl(handler, UFFDIO_API, &api));
    CHECK(api.api == 0 && api.features == 0);
    api = (struct uffdio_api){ 1, 0, 0 };
    FAILS(EINVAL, ioctl(handler, UFFDIO_API, &api));
    FAILS(EFAULT, ioctl(handler, UFFDIO_API, (void *)8));
    api = (struct uffdio_api){ UFFD_API, 0, 0 };
    OK(ioctl(handler, UFFDIO_API, &api));
    CHECK((api.ioctls & 0x8000000000000003ULL) == 0x8000000000000003ULL);
    FAILS(EINVAL, ioctl(handler, UFFDIO_API, &api));
    FAILS(EINVAL, ioctl(handler, 0x1234, &r));
    poll_one.revents = 0;
    CHECK(poll(&poll_one, 1, 0) == 0);
    FAILS(EAGAIN, read(handler, buffer, 32));
    FAILS(EINVAL, read(handler, buffer, 16));
    r.mode = 0;
    FAILS(EINVAL, ioctl(handler, UFFDIO_REGISTER, &r));
    r.mode = 8;
    FAILS(EINVAL, ioctl(handler, UFFDIO_REGISTER, &r));
    r.mode = UFFDIO_REGISTER_MODE_MINOR;
    FAILS(EINVAL, ioctl(handler, UFFDIO_REGISTER, &r));
    r = (struct uffdio_register){ { 0x10000000, PAGE }, 1, 0 };
    FAILS(EINVAL, ioctl(handler, UFFDIO_REGISTER, &r));
    r.range.start++;
    FAILS(EINVAL, ioctl(handler, UFFDIO_REGISTER, &r));
    unsigned long long can = add(handler, memory, 8 * PAGE, 1);
    CHECK((can & 0x1c) == 0x1c && !(can & 1 << 6) && !(can & 1 << 7));
    struct uffdio_zeropage zero = { { (uintptr_t)memory + 8 * PAGE, PAGE }, 0, 0 };
    FAILS(ENOENT, ioctl(handler, UFFDIO_ZEROPAGE, &zero));
    CHECK(zero.zeropage == -ENOENT);
    zero.range.start = (uintptr_t)memory;
    OK(ioctl(handler, UFFDIO_ZEROPAGE, &zero));
    CHECK(zero.zeropage == (long long)PAGE && memory[0] == 0);
    FAILS(EEXIST, ioctl(handler, UFFDIO_ZEROPAGE, &zero));
    CHECK(zero.zeropage == -EEXIST);
    CHECK(copy(handler, memory + PAGE, page, PAGE, 8) == -EINVAL);
    CHECK(copy(handler, memory + PAGE, (void *)8, PAGE, 0) == -EFAULT);
    CHECK(copy(handler, memory + PAGE, page, PAGE, 2) == -EINVAL);
    CHECK(copy(handler, memory + 7 * PAGE, memory, 2 * PAGE, 0) == -ENOENT);
    CHECK(copy(handler, memory + PAGE + 1, page, PAGE, 0) == -EINVAL);
    CHECK(copy(handler, memory + PAGE, page, PAGE, 0) == (long long)PAGE && !strcmp(memory + PAGE, "page"));
    struct uffdio_writeprotect wp = { { (uintptr_t)memory, PAGE }, 1 };
    FAILS(ENOENT, ioctl(handler, UFFDIO_WRITEPROTECT, &wp));
    wp.mode = 3;
    FAILS(EINVAL, ioctl(handler, UFFDIO_WRITEPROTECT, &wp));
    struct uffdio_range range = { (uintptr_t)memory + 1, PAGE };
    FAILS(EINVAL, ioctl(handler, UFFDIO_WAKE, &range));
    range = (struct uffdio_range){ (uintptr_t)memory, MIB };
    OK(ioctl(handler, UFFDIO_WAKE, &range));
    struct uffdio_continue resume = { { (uintptr_t)memory + 2 * PAGE, PAGE }, 0, 0 };
    FAILS(EINVAL, ioctl(handler, UFFDIO_CONTINUE, &resume));
    range = (struct uffdio_range){ 0x20000000, PAGE };
    FAILS(EINVAL, ioctl(handler, UFFDIO_UNREGISTER, &range));
    int other = open_handler(0, 0);
    r = (struct uffdio_register){ { (uintptr_t)memory, PAGE }, 1, 0 };
    FAILS(EBUSY, ioctl(other, UFFDIO_REGISTER, &r));
    poll_one = (struct pollfd){ other, POLLIN, 0 };
    CHECK(poll(&poll_one, 1, 0) == 1 && poll_one.revents == POLLERR);
    range = (struct uffdio_range){ (uintptr_t)memory, 8 * PAGE };
    OK(ioctl(handler, UFFDIO_UNREGISTER, &range));
    CHECK(memory[5 * PAGE] == 0);
}

struct served {
    int handler, events;
    unsigned long long flags[8];
    char *memory;
};

/* Answers faults with the number of the page until one of the first page is answered. */
static void *serve(void *argument)
{
    struct served *served = argument;
    struct uffd_msg message;
    static __thread uint64_t page[PAGE / 8];
    for (;;) {
        CHECK(read(served->handler, &message, sizeof message) == sizeof message);
        CHECK(message.event == UFFD_EVENT_PAGEFAULT);
        uint64_t at = message.arg.pagefault.address - (uintptr_t)served->memory;
        CHECK(at % PAGE == 0);
        served->flags[served->events++ % 8] = message.arg.pagefault.flags;
        if (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
            protect(served->handler, served->memory + at, PAGE, 0);
        } else {
            page[0] = at / PAGE;
            CHECK(copy(served->handler, served->memory + at, page, PAGE, 0) == (long long)PAGE);
        }
        if (at == 0)
            return NULL;
    }
}

static void missing(void)
{
    struct served served = { .handler = open_handler(O_CLOEXEC, 0), .memory = map(8 * PAGE, RW, ANON) };
    add(served.handler, served.memory, 8 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, serve, &served));
    volatile uint64_t *memory = (void *)served.memory;
    for (size_t page = 7; page > 0; page--)
        CHECK(memory[page * PAGE / 8] == page);
    memory[0] = 9;
    OK(pthread_join(thread, NULL));
    CHECK(memory[0] == 9 && served.events == 8);
    CHECK(served.flags[0] == 0 && served.flags[7] == UFFD_PAGEFAULT_FLAG_WRITE);
    /* The kernel's accesses ask too. */
    OK(madvise(served.memory, 8 * PAGE, MADV_DONTNEED));
    OK(pthread_create(&thread, NULL, serve, &served));
    char *path = served.memory + 3 * PAGE;
    FAILS(ENOENT, open(path, O_RDONLY));
    CHECK(served.events == 9 && memory[0] == 0);
    OK(pthread_join(thread, NULL));
}

static void protected_memory(int kind, unsigned long long features)
{
    struct served served = { .handler = open_handler(O_CLOEXEC, features), .memory = map(4 * PAGE, RW, kind) };
    memset(served.memory, 1, 4 * PAGE);
    CHECK(add(served.handler, served.memory, 4 * PAGE, UFFDIO_REGISTER_MODE_WP) & 1 << 6);
    protect(served.handler, served.memory, 4 * PAGE, UFFDIO_WRITEPROTECT_MODE_WP);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, serve, &served));
    CHECK(served.memory[PAGE] == 1);
    *(volatile char *)(served.memory + PAGE) = 2;
    *(volatile char *)(served.memory + PAGE) = 3;
    *(volatile char *)served.memory = 4;
    OK(pthread_join(thread, NULL));
    CHECK(served.events == 2 && served.memory[PAGE] == 3);
    CHECK(served.flags[0] == (UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE));
}

static void protected(void)
{
    protected_memory(ANON, UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    protected_memory(SHARED, UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM);
}

static sigjmp_buf after_signal;

static void leave(int signal)
{
    siglongjmp(after_signal, signal);
}

/* A handler may want its faults to fail instead of being told. */
static void failing(void)
{
    char *memory = map(4 * PAGE, RW, ANON), page[PAGE] = "page";
    int handler = open_handler(O_CLOEXEC | O_NONBLOCK, UFFD_FEATURE_SIGBUS);
    add(handler, memory, 2 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    signal(SIGBUS, leave);
    volatile int got = sigsetjmp(after_signal, 1);
    if (got == 0)
        *(volatile char *)memory = 1;
    CHECK(got == SIGBUS);
    CHECK(copy(handler, memory, page, PAGE, 0) == (long long)PAGE && !strcmp(memory, "page"));
    FAILS(EAGAIN, read(handler, page, 32));
    memory[2 * PAGE] = 1;
}

/* The exact address of an access, and the thread that made it. */
static void *read_one(void *argument)
{
    struct served *served = argument;
    struct uffd_msg message;
    static uint64_t page[PAGE / 8];
    CHECK(read(served->handler, &message, sizeof message) == sizeof message);
    served->flags[0] = message.arg.pagefault.address;
    served->flags[1] = message.arg.pagefault.feat.ptid;
    CHECK(copy(served->handler, served->memory, page, PAGE, 0) == (long long)PAGE);
    return NULL;
}

static void exact(void)
{
    struct served served = { .memory = map(PAGE, RW, ANON) };
    served.handler = open_handler(O_CLOEXEC, UFFD_FEATURE_EXACT_ADDRESS | UFFD_FEATURE_THREAD_ID);
    add(served.handler, served.memory, PAGE, UFFDIO_REGISTER_MODE_MISSING);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, read_one, &served));
    *(volatile char *)(served.memory + 123) = 1;
    OK(pthread_join(thread, NULL));
    CHECK(served.flags[0] == (uintptr_t)served.memory + 123 && served.flags[1] == (unsigned long)syscall(SYS_gettid));
}

static void minor(void)
{
    char *memory = map(4 * PAGE, RW, SHARED);
    char *view = mremap(memory, 0, 4 * PAGE, MREMAP_MAYMOVE);
    CHECK(view != MAP_FAILED);
    memset(memory, 5, 2 * PAGE);
    int handler = open_handler(O_CLOEXEC | O_NONBLOCK, UFFD_FEATURE_MINOR_SHMEM);
    CHECK(add(handler, view, 4 * PAGE, UFFDIO_REGISTER_MODE_MINOR) & 1 << 7);
    struct uffdio_continue resume = { { (uintptr_t)view, PAGE }, 0, 0 };
    OK(ioctl(handler, UFFDIO_CONTINUE, &resume));
    CHECK(resume.mapped == (long long)PAGE && view[0] == 5);
    FAILS(EEXIST, ioctl(handler, UFFDIO_CONTINUE, &resume));
    resume.range.start = (uintptr_t)view + 3 * PAGE;
    FAILS(EFAULT, ioctl(handler, UFFDIO_CONTINUE, &resume));
    CHECK(resume.mapped == -EFAULT);
}

static void poisoned(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    int handler = open_handler(O_CLOEXEC | O_NONBLOCK, 0);
    add(handler, memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    struct uffdio_poison poison = { { (uintptr_t)memory + PAGE, PAGE }, 0, 0 };
    OK(ioctl(handler, UFFDIO_POISON, &poison));
    CHECK(poison.updated == (long long)PAGE);
    FAILS(EEXIST, ioctl(handler, UFFDIO_POISON, &poison));
    CHECK(signal_of(memory + PAGE, false) == SIGBUS);
    /* A closed handler asks for nothing more. */
    close(handler);
    CHECK(memory[0] == 0 && memory[2 * PAGE] == 0);
}

/* The child of a handler that does not ask for forks has none. */
static void child_without(void *memory)
{
    CHECK(((char *)memory)[PAGE] == 0);
}

static void forks(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    int handler = open_handler(O_CLOEXEC | O_NONBLOCK, 0);
    add(handler, memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    CHECK(in_child(child_without, memory) == 0);
}

struct watched {
    int handler, child;
    char *memory, *place;
    struct uffd_msg seen[8];
    int count;
};

static void *watch(void *argument)
{
    struct watched *watched = argument;
    static uint64_t page[PAGE / 8] = { 77 };
    for (;;) {
        struct uffd_msg *message = &watched->seen[watched->count];
        CHECK(read(watched->handler, message, sizeof *message) == sizeof *message);
        watched->count++;
        if (message->event == UFFD_EVENT_FORK) {
            watched->child = message->arg.fork.ufd;
            struct uffd_msg fault;
            CHECK(read(watched->child, &fault, sizeof fault) == sizeof fault);
            CHECK(fault.event == UFFD_EVENT_PAGEFAULT);
            CHECK(copy(watched->child, (char *)(uintptr_t)fault.arg.pagefault.address, page, PAGE, 0) == (long long)PAGE);
        }
        if (message->event == UFFD_EVENT_UNMAP && message->arg.remove.start == (uintptr_t)watched->place)
            return NULL;
        /* Linux tells of the old range of a move as unmapped too. */
        if (message->event == UFFD_EVENT_UNMAP)
            watched->count--;
    }
}

static void child_with(void *memory)
{
    CHECK(*(uint64_t *)((char *)memory + PAGE) == 77);
}

static void events(void)
{
    struct watched watched = { .memory = map(8 * PAGE, RW, ANON), .place = map(4 * PAGE, PROT_NONE, ANON) };
    watched.handler = open_handler(O_CLOEXEC, UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
        UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP);
    add(watched.handler, watched.memory, 8 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, watch, &watched));
    CHECK(in_child(child_with, watched.memory) == 0);
    OK(madvise(watched.memory, 2 * PAGE, MADV_DONTNEED));
    char *place = watched.place;
    CHECK(mremap(watched.memory + 4 * PAGE, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    OK(munmap(place, PAGE));
    OK(pthread_join(thread, NULL));
    CHECK(watched.count == 4);
    CHECK(watched.seen[0].event == UFFD_EVENT_FORK);
    CHECK(watched.seen[1].event == UFFD_EVENT_REMOVE && watched.seen[1].arg.remove.start == (uintptr_t)watched.memory);
    CHECK(watched.seen[1].arg.remove.end == (uintptr_t)watched.memory + 2 * PAGE);
    CHECK(watched.seen[2].event == UFFD_EVENT_REMAP && watched.seen[2].arg.remap.len == 4 * PAGE);
    CHECK(watched.seen[2].arg.remap.to == (uintptr_t)place);
    CHECK(watched.seen[3].event == UFFD_EVENT_UNMAP && watched.seen[3].arg.remove.end == (uintptr_t)place + PAGE);
}

struct narrowed {
    char *memory;
    int ends[2];
};

static void *fill(void *argument)
{
    struct narrowed *narrowed = argument;
    CHECK(write(narrowed->ends[1], narrowed->memory, 4 * PAGE) == 4 * (long)PAGE);
    return NULL;
}

static void *narrow(void *argument)
{
    struct narrowed *narrowed = argument;
    CHECK(fcntl(narrowed->ends[1], F_SETPIPE_SZ, PAGE) == (long)PAGE || errno == EBUSY);
    return NULL;
}

/* A pipe is made smaller while a writer waits for what it copies. */
static void narrowed(void)
{
    struct narrowed narrowed = { .memory = map(4 * PAGE, RW, ANON) };
    int handler = open_handler(O_CLOEXEC, 0);
    add(handler, narrowed.memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    OK(pipe2(narrowed.ends, O_NONBLOCK));
    struct uffd_msg message;
    static char page[PAGE], got[8 * PAGE];
    pthread_t writer, resizer;
    OK(pthread_create(&writer, NULL, fill, &narrowed));
    CHECK(read(handler, &message, sizeof message) == sizeof message);
    OK(pthread_create(&resizer, NULL, narrow, &narrowed));
    usleep(50000);
    for (size_t at = 0; at < 4; at++)
        CHECK(copy(handler, narrowed.memory + at * PAGE, page, PAGE, 0) == (long long)PAGE);
    OK(pthread_join(writer, NULL));
    OK(pthread_join(resizer, NULL));
    CHECK(write(narrowed.ends[1], page, PAGE) == (long)PAGE || errno == EAGAIN);
    CHECK(read(narrowed.ends[0], got, sizeof got) >= 4 * (long)PAGE);
}

/* Reads the event of a fork, closes the handler that told of it, and answers the child's faults until one of page 0. */
static void *follow(void *argument)
{
    struct served *served = argument;
    struct uffd_msg message;
    static uint64_t page[PAGE / 8] = { 77 };
    CHECK(read(served->handler, &message, sizeof message) == sizeof message && message.event == UFFD_EVENT_FORK);
    OK(close(served->handler));
    served->handler = message.arg.fork.ufd;
    for (;;) {
        CHECK(read(served->handler, &message, sizeof message) == sizeof message);
        CHECK(message.event == UFFD_EVENT_PAGEFAULT);
        char *at = (char *)(uintptr_t)message.arg.pagefault.address;
        CHECK(copy(served->handler, at, page, PAGE, 0) == (long long)PAGE);
        if (at == served->memory)
            return NULL;
    }
}

static void child_of_closed(void *memory)
{
    for (size_t at = 4; at-- > 0;)
        CHECK(*(volatile uint64_t *)((char *)memory + at * PAGE) == 77);
}

/* A handler may be closed once it has told of a fork, also before the fork is done: the child has its own. */
static void closed(void)
{
    for (int round = 0; round < 40; round++) {
        struct served served = { .memory = map(4 * PAGE, RW, ANON) };
        served.handler = open_handler(O_CLOEXEC, UFFD_FEATURE_EVENT_FORK);
        add(served.handler, served.memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
        pthread_t thread;
        OK(pthread_create(&thread, NULL, follow, &served));
        CHECK(in_child(child_of_closed, served.memory) == 0);
        OK(pthread_join(thread, NULL));
        OK(close(served.handler));
        OK(munmap(served.memory, 4 * PAGE));
    }
}

static void *close_unread(void *argument)
{
    int handler = *(int *)argument;
    struct pollfd polled = { handler, POLLIN, 0 };
    CHECK(poll(&polled, 1, -1) == 1 && polled.revents == POLLIN);
    OK(close(handler));
    return NULL;
}

/* A handler that is closed before it has read of a fork leaves the child's ranges without one. The child shares the
   descriptors: a copy of them would keep the handler open. */
static void closed_unread(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    int handler = open_handler(O_CLOEXEC | O_NONBLOCK, UFFD_FEATURE_EVENT_FORK), status;
    add(handler, memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, close_unread, &handler));
    alarm(60);
    pid_t child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) {
        child_without(memory);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(pthread_join(thread, NULL));
}

/* A task that waits for an answer can be killed. */
static void killed(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    int handler = open_handler(O_CLOEXEC, UFFD_FEATURE_EVENT_FORK);
    add(handler, memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    (void)handler;
    struct watched watched = { .handler = handler, .memory = memory };
    pthread_t thread;
    OK(pthread_create(&thread, NULL, (void *(*)(void *))watch, &watched));
    sched_yield();
    /* The process ends while its thread reads. */
}

/* A task that is killed before the event of its fork was read takes the event back: there is no child. */
static void unread(void)
{
    int ends[2];
    char answer = 0;
    OK(pipe(ends));
    pid_t forking = fork();
    CHECK(forking >= 0);
    if (forking == 0) {
        char *memory = map(4 * PAGE, RW, ANON);
        int handler = open_handler(O_CLOEXEC | O_NONBLOCK, UFFD_FEATURE_EVENT_FORK);
        forking = getpid();
        if (fork() == 0) {
            struct pollfd polled = { handler, POLLIN, 0 };
            struct uffd_msg message;
            CHECK(poll(&polled, 1, -1) == 1 && polled.revents == POLLIN);
            OK(kill(forking, SIGKILL));
            while (kill(forking, 0) == 0)
                usleep(1000);
            FAILS(EAGAIN, read(handler, &message, sizeof message));
            CHECK(write(ends[1], "y", 1) == 1);
            _exit(0);
        }
        add(handler, memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
        fork();
        _exit(1);
    }
    OK(close(ends[1]));
    int status;
    CHECK(waitpid(forking, &status, 0) == forking && WIFSIGNALED(status));
    CHECK(read(ends[0], &answer, 1) == 1 && answer == 'y');
}

static volatile bool is_done;

static void *read_on(void *handler)
{
    struct uffd_msg message;
    while (!is_done)
        FAILS(EAGAIN, read(*(int *)handler, &message, sizeof message));
    return NULL;
}

/* A fork waits for no reader of a handler that wants no events of forks, however many there are. */
static void readers(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    int handler = open_handler(O_CLOEXEC | O_NONBLOCK, 0);
    pthread_t threads[3];
    add(handler, memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    for (int i = 0; i < 3; i++)
        OK(pthread_create(&threads[i], NULL, read_on, &handler));
    alarm(60);
    for (int round = 0; round < 30; round++)
        CHECK(in_child(child_without, memory) == 0);
    is_done = true;
    for (int i = 0; i < 3; i++)
        OK(pthread_join(threads[i], NULL));
}

static void *read_fork(void *handler)
{
    struct uffd_msg message;
    ssize_t got = read(*(int *)handler, &message, sizeof message);
    if (got != sizeof message)
        CHECK(is_quire() && errno == ENFILE);
    else
        OK(close(message.arg.fork.ufd));
    return NULL;
}

/* Quire has eight handlers. Where the child cannot get one, the fork goes on without. */
static void most_handlers(void)
{
    char *memory = map(4 * PAGE, RW, ANON);
    int handler = open_handler(O_CLOEXEC, UFFD_FEATURE_EVENT_FORK);
    pthread_t thread;
    add(handler, memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    for (int others = 0; others < 7; others++)
        open_handler(O_CLOEXEC, 0);
    OK(pthread_create(&thread, NULL, read_fork, &handler));
    alarm(60);
    CHECK(in_child(child_without, memory) == 0);
    OK(pthread_join(thread, NULL));
}

struct interrupted {
    int handler, events;
    char *memory;
    pthread_t forking;
};

static void *interrupt(void *argument)
{
    struct interrupted *fork = argument;
    struct pollfd polled = { fork->handler, POLLIN, 0 };
    struct uffd_msg message;
    CHECK(poll(&polled, 1, -1) == 1);
    OK(pthread_kill(fork->forking, SIGUSR1));
    while (!is_done) {
        if (poll(&polled, 1, 10) == 0)
            continue;
        CHECK(read(fork->handler, &message, sizeof message) == sizeof message && message.event == UFFD_EVENT_FORK);
        struct uffdio_zeropage zeroes = { { (uintptr_t)fork->memory, 4 * PAGE }, 0, 0 };
        int answer;
        do
            answer = ioctl(message.arg.fork.ufd, UFFDIO_ZEROPAGE, &zeroes);
        while (answer != 0 && errno == EAGAIN);
        CHECK(answer == 0 || errno == ESRCH);
        OK(close(message.arg.fork.ufd));
        fork->events++;
    }
    return NULL;
}

static void ignore(int signal)
{
    (void)signal;
}

/* A signal comes while the event of a fork is unread. Linux goes on; Quire begins the fork again when the event was read, and
   the handler that the reader got for the first child knows that there is none. */
static void interrupted(void)
{
    struct interrupted fork = { .memory = map(4 * PAGE, RW, ANON), .forking = pthread_self() };
    fork.handler = open_handler(O_CLOEXEC | O_NONBLOCK, UFFD_FEATURE_EVENT_FORK);
    add(fork.handler, fork.memory, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    signal(SIGUSR1, ignore);
    pthread_t thread;
    OK(pthread_create(&thread, NULL, interrupt, &fork));
    alarm(60);
    CHECK(in_child(child_without, fork.memory) == 0);
    is_done = true;
    OK(pthread_join(thread, NULL));
    CHECK(fork.events == (is_quire() ? 2 : 1));
}

MAIN(CASE(errors), CASE(missing), CASE(protected), CASE(failing), CASE(exact), CASE(minor), CASE(poisoned), CASE(forks), CASE(events), CASE(narrowed),
     CASE(closed), CASE(closed_unread), CASE(killed), CASE(unread), CASE(readers), CASE(most_handlers), CASE(interrupted))
