/* System V shared memory. */
#include "case.h"
#include <sys/ipc.h>
#include <sys/shm.h>

static int other_key(void)
{
    return 0x51000000 + getpid();
}

static struct shmid_ds stat_of(int id)
{
    struct shmid_ds stat;
    CHECK(shmctl(id, IPC_STAT, &stat) == 0);
    return stat;
}

static void errors(void)
{
    int key = other_key();
    FAILS(ENOENT, shmget(key, PAGE, 0));
    FAILS(EINVAL, shmget(key, 0, IPC_CREAT));
    FAILS(EINVAL, shmget(key, -1UL, IPC_CREAT));
    FAILS(EINVAL, shmget(IPC_PRIVATE, 0, 0600));
    int id = shmget(key, 3 * PAGE + 1, IPC_CREAT | IPC_EXCL | 0640);
    CHECK(id >= 0);
    FAILS(EEXIST, shmget(key, PAGE, IPC_CREAT | IPC_EXCL));
    FAILS(EINVAL, shmget(key, 5 * PAGE, 0));
    CHECK(shmget(key, PAGE, 0) == id && shmget(key, 0, 0) == id);
    FAILS(EINVAL, shmat(-1, NULL, 0));
    FAILS(EINVAL, shmat(id + 1, NULL, 0));
    FAILS(EINVAL, shmat(id, (void *)(PAGE * 17 + 1), 0));
    FAILS(EINVAL, shmat(id, NULL, 040000));
    FAILS(EINVAL, shmdt((void *)PAGE));
    FAILS(EINVAL, shmdt((void *)1));
    FAILS(EINVAL, shmctl(-1, IPC_STAT, NULL));
    FAILS(EINVAL, shmctl(id, 99, NULL));
    FAILS(EFAULT, shmctl(id, IPC_STAT, (void *)8));
    struct shmid_ds stat = stat_of(id);
    CHECK(stat.shm_segsz == 3 * PAGE + 1 && stat.shm_nattch == 0 && stat.shm_cpid == getpid());
    CHECK((stat.shm_perm.mode & 0777) == 0640 && stat.shm_perm.__key == key && stat.shm_lpid == 0);
    CHECK(stat.shm_atime == 0 && stat.shm_dtime == 0 && stat.shm_ctime != 0);
    stat.shm_perm.mode = 0600;
    OK(shmctl(id, IPC_SET, &stat));
    CHECK((stat_of(id).shm_perm.mode & 0777) == 0600);
    OK(shmctl(id, IPC_RMID, NULL));
    FAILS(EINVAL, shmctl(id, IPC_RMID, NULL) == -1 && (errno == EINVAL || errno == EIDRM) ? (errno = EINVAL, -1) : 0);
    FAILS(ENOENT, shmget(key, PAGE, 0));
}

static void attach(void)
{
    int id = shmget(IPC_PRIVATE, 4 * PAGE, 0600);
    CHECK(id >= 0);
    char *one = shmat(id, NULL, 0), *two = shmat(id, NULL, SHM_RDONLY);
    CHECK(one != (char *)-1 && two != (char *)-1 && one != two);
    strcpy(one, "shared");
    CHECK(!strcmp(two, "shared") && stat_of(id).shm_nattch == 2 && stat_of(id).shm_lpid == getpid());
    CHECK(signal_of(two, true) == SIGSEGV);
    FAILS(EACCES, mprotect(two, PAGE, RW));
    FAILS(EINVAL, shmat(id, one, 0));
    CHECK(shmat(id, one + 1, SHM_RND | SHM_REMAP) == one && stat_of(id).shm_nattch == 2);
    /* Parts of an attachment. */
    OK(munmap(one + PAGE, PAGE));
    CHECK(stat_of(id).shm_nattch == 3);
    FAILS(EINVAL, shmdt(one + PAGE));
    OK(shmdt(one));
    CHECK(stat_of(id).shm_nattch == 1 && signal_of(one, false) == SIGSEGV && signal_of(one + 3 * PAGE, false) == SIGSEGV);
    FAILS(EINVAL, shmdt(one));
    OK(shmdt(two));
    CHECK(stat_of(id).shm_nattch == 0);
    one = shmat(id, NULL, 0);
    CHECK(!strcmp(one, "shared"));
    OK(shmctl(id, IPC_RMID, NULL));
    CHECK((stat_of(id).shm_perm.mode & 01000) && stat_of(id).shm_perm.__key == 0);
    two = shmat(id, NULL, 0);
    CHECK(two != (char *)-1 && !strcmp(two, "shared"));
    OK(shmdt(one));
    OK(munmap(two, 4 * PAGE));
    FAILS(EINVAL, shmat(id, NULL, 0) == (void *)-1 && (errno == EINVAL || errno == EIDRM) ? (errno = EINVAL, -1) : 0);
}

static int forked;

static void use(void *memory)
{
    CHECK(stat_of(forked).shm_nattch == 2 && !strcmp(memory, "parent"));
    strcpy(memory, "child");
}

static void forks(void)
{
    forked = shmget(IPC_PRIVATE, PAGE, 0600);
    char *memory = shmat(forked, NULL, 0);
    strcpy(memory, "parent");
    OK(shmctl(forked, IPC_RMID, NULL));
    CHECK(in_child(use, memory) == 0);
    CHECK(!strcmp(memory, "child") && stat_of(forked).shm_nattch == 1);
    OK(shmctl(forked, SHM_LOCK, NULL));
    CHECK(stat_of(forked).shm_perm.mode & 02000);
    OK(shmctl(forked, SHM_UNLOCK, NULL));
    CHECK(!(stat_of(forked).shm_perm.mode & 02000));
}

static void all(void)
{
    struct shminfo limits;
    struct shm_info before, after;
    CHECK(shmctl(0, IPC_INFO, (void *)&limits) >= 0 && limits.shmmni == 4096 && limits.shmmin == 1);
    CHECK(shmctl(0, SHM_INFO, (void *)&before) >= 0);
    int id = shmget(IPC_PRIVATE, 5 * PAGE, 0600);
    char *memory = shmat(id, NULL, 0);
    memory[0] = memory[PAGE] = 1;
    int last = shmctl(0, SHM_INFO, (void *)&after);
    CHECK(last >= 0 && after.used_ids == before.used_ids + 1 && after.shm_tot == before.shm_tot + 5);
    struct shmid_ds stat;
    int found = 0;
    for (int at = 0; at <= last; at++)
        if (shmctl(at, SHM_STAT, &stat) == id)
            found += stat.shm_segsz == 5 * PAGE;
    CHECK(found == 1);
    /* The number of a segment names its slot too. */
    CHECK(shmctl(id, SHM_STAT, &stat) == id);
    OK(shmctl(id, IPC_RMID, NULL));
}

/* A pool without pages. */
static void huge(void)
{
    FAILS(ENOMEM, shmget(IPC_PRIVATE, 2 * MIB, 0600 | 04000));
    FAILS(EINVAL, shmget(IPC_PRIVATE, 2 * MIB, 0600 | 04000 | 5 << 26));
    int id = shmget(IPC_PRIVATE, MIB, 0600 | 04000 | 010000 | 21 << 26);
    CHECK(id >= 0 && stat_of(id).shm_segsz == MIB);
    OK(shmctl(id, IPC_RMID, NULL));
}

MAIN(CASE(errors), CASE(attach), CASE(forks), CASE(all), CASE(huge))
