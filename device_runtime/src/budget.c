#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "budget.h"

#include "segment.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_ACCOUNTS = 256, NAMED = 3 }; /* so many other sessions are named in a message */

typedef struct {
    _Atomic uint64_t bytes;
    char who[MAX_WHO];
} Account;

static uint64_t budget;           /* 0: not set */
static Account alone;             /* of a process that shares none */
static Account *own = &alone;
static Account *accounts;         /* [MAX_ACCOUNTS], in memory that sessions share; NULL: not shared */
static int locks = -1; /* of a file whose i-th byte is locked while the i-th account has a process */

uint64_t budget_bytes(void) {
    if (budget == 0) budget = memory_size() / 4 * 3;
    return budget;
}

bool budget_set(const char *text) {
    static const char letters[] = "KMG";
    uint64_t size = 0;
    for (; *text >= '0' && *text <= '9' && size < UINT64_MAX / 1000; text++)
        size = 10 * size + (uint64_t)(*text - '0');
    for (unsigned i = 0; *text && letters[i]; i++)
        if (*text == letters[i]) {
            unsigned shift = 10 * (i + 1);
            if (size > UINT64_MAX >> shift) return false;
            size <<= shift;
            text++;
            break;
        }
    budget = size;
    return size > 0 && !*text;
}

/* ---- Sharing ---- */

static struct flock byte_of(unsigned account) {
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)account, .l_len = 1};
}

bool budget_share(void) {
    void *memory = mmap(NULL, MAX_ACCOUNTS * sizeof *accounts, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    locks = memory_file("mlc-locks", MAX_ACCOUNTS);
    if (memory == MAP_FAILED || locks < 0) return false;
    budget_bytes(); /* the same for all */
    accounts = memory;
    return true;
}

bool budget_join(const char *who) {
    for (unsigned i = 0; i < MAX_ACCOUNTS; i++) {
        struct flock byte = byte_of(i);
        if (fcntl(locks, F_SETLK, &byte) != 0) continue;
        own = &accounts[i];
        atomic_store(&own->bytes, 0);
        snprintf(own->who, sizeof own->who, "%s", who);
        return true;
    }
    return false;
}

void budget_let_go(void) {
    if (accounts) munmap(accounts, MAX_ACCOUNTS * sizeof *accounts);
    if (locks >= 0) close(locks);
    accounts = NULL;
    own = &alone;
    locks = -1;
}

/* What the i-th account takes; an account whose process has ended takes nothing. */
static uint64_t taken(unsigned i) {
    struct flock byte = byte_of(i);
    uint64_t bytes = atomic_load(&accounts[i].bytes);
    if (bytes == 0 || &accounts[i] == own) return bytes;
    return fcntl(locks, F_GETLK, &byte) == 0 && byte.l_type == F_UNLCK ? 0 : bytes;
}

/* ---- Taking ---- */

static uint64_t taken_by_others(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; accounts && i < MAX_ACCOUNTS; i++)
        if (&accounts[i] != own) sum += taken(i);
    return sum;
}

/* ", 10.0.0.2:5123 uses 700" for the first few, and the sum of the rest. */
static void name_others(char *text, size_t size) {
    size_t used = 0;
    unsigned count = 0;
    uint64_t rest = 0;
    text[0] = 0;
    for (unsigned i = 0; accounts && i < MAX_ACCOUNTS; i++) {
        uint64_t bytes = &accounts[i] == own ? 0 : taken(i);
        if (bytes == 0) continue;
        if (count++ < NAMED && used < size)
            used += (size_t)snprintf(text + used, size - used, ", %s uses %llu", accounts[i].who,
                                     (unsigned long long)bytes);
        else
            rest += bytes;
    }
    if (count > NAMED && used < size)
        snprintf(text + used, size - used, ", %u more %llu", count - NAMED,
                 (unsigned long long)rest);
}

bool budget_take(uint64_t size, const char *what, Failure *failure) {
    uint64_t limit = budget_bytes(), mine = atomic_load(&own->bytes);
    bool fits = size <= limit && mine <= SIZE_MAX / 4 && size <= SIZE_MAX / 4 - mine;
    if (fits) { /* first taken and then looked at: two at once may both fail, but not both succeed */
        uint64_t sum = atomic_fetch_add(&own->bytes, size) + size + taken_by_others();
        if (sum <= limit) return true;
        budget_give(size);
    }
    char others[NAMED * (MAX_WHO + 32) + 48];
    name_others(others, sizeof others);
    return fail(failure, MEMORY,
                "%s of %llu bytes does not fit the board's memory budget of %llu bytes: this session "
                "uses %llu%s; try: free tensors and blobs that are not needed, %sor a smaller model",
                what, (unsigned long long)size, (unsigned long long)limit, (unsigned long long)mine,
                others, others[0] ? "end other sessions, " : "");
}

void budget_give(uint64_t size) { atomic_fetch_sub(&own->bytes, size); }
