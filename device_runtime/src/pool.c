#define _GNU_SOURCE /* CPU_EQUAL, sched_setaffinity, syscall() */
#include "pool.h"

#include "clock.h"
#include "cores.h"
#include "modes.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SPIN_NANOSECONDS = 50000, /* about what it takes a thread to fall asleep and wake up */
    STACK_BYTES = 8 << 20,     /* as the main thread has: a kernel is to fit on each or on none */
    PIECES = 4 /* per thread, so that one that the system holds up leaves its work to the others */
};

/* A helper's state, which is also the word that it, or who waits for it, sleeps on.
 *
 *     IDLE --helper--> ASLEEP     nothing came while it spun
 *     IDLE or ASLEEP --caller--> POSTED     there is a job
 *     POSTED --helper--> WORKING --helper--> IDLE
 *     POSTED --caller--> IDLE     the job was done before the helper came to it
 *     WORKING --caller--> WATCHED --helper--> IDLE     the caller sleeps until it is done */
enum { IDLE, ASLEEP, POSTED, WORKING, WATCHED };

typedef struct {
    _Alignas(64) _Atomic uint32_t state; /* on a cache line of its own */
    _Atomic uint32_t choice; /* of cores, on which it is */
    pthread_t thread;
} Helper;

static struct {
    Helper helpers[MAX_THREADS - 1];
    uint32_t count;
    Cores cores;
    cpu_set_t chosen;    /* the cores that all threads are on, and */
    uint32_t choice;     /* how often others have been chosen */
    _Atomic bool spins;  /* every thread has a core, so nobody is kept from it by spinning */
} pool;

/* Written by the caller while no helper is WORKING; read by those that are. */
static struct {
    mlc_kernel *kernel;
    const mlc_args *args;
    uint32_t tasks, piece;
    size_t stride;
    PoolTime *times; /* NULL: nobody asks */
    _Alignas(64) _Atomic uint32_t next; /* task; may pass `tasks`, by a piece per thread at most */
    _Atomic int32_t status;
} job;

/* ---- Waiting ---- */

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *state) { futex(state, FUTEX_WAKE, 1); }

static inline void breathe(void) {
#if defined(__x86_64__)
    __asm__ volatile("pause");
#else
    __asm__ volatile("yield");
#endif
}

static bool move(_Atomic uint32_t *state, uint32_t from, uint32_t to) {
    return atomic_compare_exchange_strong(state, &from, to);
}

/* Returns when the state is no longer `from`: spins first, and then sleeps with the state
 * `sleeping`, so that who changes it knows to wake. */
static void await_change(_Atomic uint32_t *state, uint32_t from, uint32_t sleeping) {
    uint64_t begin = mlc_nanoseconds();
    do {
        for (int i = 0; i < 64; i++, breathe())
            if (atomic_load(state) != from) return;
    } while (atomic_load(&pool.spins) && mlc_nanoseconds() - begin < SPIN_NANOSECONDS);
    if (!move(state, from, sleeping)) return;
    while (atomic_load(state) == sleeping) futex(state, FUTEX_WAIT, sleeping);
}

/* ---- Working ---- */

/* Takes pieces of the job until there are none. */
static void take_pieces(uint32_t thread) {
    mlc_args args = *job.args;
    if (job.stride) args.workspace = (char *)args.workspace + thread * job.stride;
    for (;;) {
        uint32_t begin = atomic_fetch_add(&job.next, job.piece);
        if (begin >= job.tasks) return;
        uint32_t left = job.tasks - begin, size = left < job.piece ? left : job.piece;
        int32_t status = job.kernel(&args, (int32_t)begin, (int32_t)(begin + size));
        modes_reset();
        if (status == MLC_OK) continue;
        atomic_store(&job.status, status);
        atomic_store(&job.next, job.tasks); /* nobody need go on */
    }
}

static void work(uint32_t thread) {
    uint64_t begin = job.times ? mlc_nanoseconds() : 0;
    take_pieces(thread);
    if (job.times) job.times[thread] = (PoolTime){begin, mlc_nanoseconds()};
}

static void *help(void *argument) {
    Helper *self = argument;
    for (;;) {
        await_change(&self->state, IDLE, ASLEEP);
        if (!move(&self->state, POSTED, WORKING)) continue;
        if (atomic_load(&self->choice) == pool.choice) {
            work((uint32_t)(self - pool.helpers) + 1);
        } else { /* a thread may say on which cores it is itself to be, and no other (box.h) */
            sched_setaffinity(0, sizeof pool.chosen, &pool.chosen);
            atomic_store(&self->choice, pool.choice);
        }
        if (atomic_exchange(&self->state, IDLE) == WATCHED) wake(&self->state);
    }
    return NULL;
}

static void post(uint32_t helpers) {
    for (uint32_t i = 0; i < helpers; i++) {
        _Atomic uint32_t *state = &pool.helpers[i].state;
        if (atomic_exchange(state, POSTED) == ASLEEP) wake(state);
    }
}

int32_t pool_run(mlc_kernel *kernel, const mlc_args *args, int32_t tasks, uint32_t threads,
                 size_t workspace_stride, PoolTime *times) {
    if (times) memset(times, 0, threads * sizeof *times);
    if (threads <= 1 || tasks <= 1) {
        if (times) times[0].begin = mlc_nanoseconds();
        int32_t status = kernel(args, 0, tasks);
        if (times) times[0].end = mlc_nanoseconds();
        modes_reset();
        return status;
    }
    uint32_t count = (uint32_t)tasks, piece = count / (PIECES * threads);
    job.kernel = kernel;
    job.args = args;
    job.tasks = count;
    job.piece = piece > 0 ? piece : 1;
    job.stride = workspace_stride;
    job.times = times;
    atomic_store(&job.next, 0);
    atomic_store(&job.status, MLC_OK);
    uint32_t helpers = (threads < count ? threads : count) - 1;
    post(helpers);
    work(0);
    for (uint32_t i = 0; i < helpers; i++) {
        _Atomic uint32_t *state = &pool.helpers[i].state;
        if (!move(state, POSTED, IDLE)) await_change(state, WORKING, WATCHED);
    }
    return atomic_load(&job.status);
}

/* ---- Preparing ---- */

/* Where nobody asked for cores and they cannot be chosen, as where the system has taken one away,
 * they are left to the system. */
static bool choose_cores(uint32_t threads, const char *cores, Failure *failure) {
    cpu_set_t wanted;
    uint32_t count = cores_named(&pool.cores, cores, &wanted, failure);
    if (count == 0) return false;
    if (!*cores && threads > count) {
        wanted = pool.cores.allowed;
        count = pool.cores.allowed_count;
    }
    atomic_store(&pool.spins, threads <= count);
    if (CPU_EQUAL(&wanted, &pool.chosen)) return true;
    if (sched_setaffinity(0, sizeof wanted, &wanted) != 0 && *cores)
        return fail(failure, REFUSED, "the system does not give it cores %s: %s", cores,
                    strerror(errno));
    pool.chosen = wanted;
    pool.choice++;
    post(pool.count);
    for (uint32_t i = 0; i < pool.count; i++)
        while (atomic_load(&pool.helpers[i].choice) != pool.choice) breathe();
    return true;
}

void pool_look(void) { cores_read(&pool.cores); }

bool pool_uses(unsigned core) { return core < CPU_SETSIZE && CPU_ISSET(core, &pool.chosen); }

bool pool_prepare(uint32_t threads, const char *cores, Failure *failure) {
    if (!choose_cores(threads, cores, failure)) return false;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    while (pool.count + 1 < threads) { /* a helper is on its maker's cores */
        Helper *helper = &pool.helpers[pool.count];
        atomic_store(&helper->choice, pool.choice);
        int error = pthread_create(&helper->thread, &attributes, help, helper);
        if (error != 0)
            return fail(failure, MEMORY, "no thread %u of %u: %s; try: fewer threads",
                        pool.count + 2, threads, strerror(error));
        pool.count++;
    }
    /* What one thread does is timed or counted with nobody spinning beside it. */
    for (uint32_t i = threads - 1; i < pool.count; i++)
        while (atomic_load(&pool.helpers[i].state) != ASLEEP) breathe();
    return true;
}
