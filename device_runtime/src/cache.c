#define _GNU_SOURCE /* O_DIRECTORY and its like */
#include "cache.h"

#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAME_BYTES = 5 + 2 * HASH_BYTES + 1 };

#define MAX_CACHE (UINT64_C(2) << 30)
#define TMPFS 0x01021994
#define RAMFS 0x858458f6

static int folder = -1;

void cache_use(const char *path) {
    struct stat about;
    const char *why = NULL;
    folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        why = strerror(errno);
    else if (fstat(folder, &about) != 0 || about.st_uid != geteuid())
        why = "it is another user's";
    else if (about.st_mode & (S_IRWXG | S_IRWXO))
        why = "others may use it";
    if (!why) return;
    fprintf(stderr, "mlc-runtime: no cache in %s: %s\n", path, why);
    if (folder >= 0) close(folder);
    folder = -1;
}

static void name_of(char name[NAME_BYTES], const char *kind, const uint8_t hash[HASH_BYTES]) {
    size_t at = (size_t)snprintf(name, NAME_BYTES, "%s-", kind);
    for (unsigned i = 0; i < HASH_BYTES; i++, at += 2)
        snprintf(name + at, NAME_BYTES - at, "%02x", hash[i]);
}

/* A file of the user's own, or -1. */
static int open_own(const char *name, int flags, uint64_t *size) {
    struct stat about;
    int fd = folder < 0 ? -1 : openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                                      S_IRUSR | S_IWUSR);
    if (fd < 0) return -1;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid()) {
        *size = (uint64_t)about.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

/* ---- Whole blobs ---- */

int cache_open(const uint8_t hash[HASH_BYTES], size_t *size) {
    char name[NAME_BYTES];
    uint64_t bytes;
    name_of(name, "blob", hash);
    int fd = open_own(name, O_RDONLY, &bytes);
    if (fd >= 0 && bytes > SIZE_MAX / 4) {
        close(fd);
        return -1;
    }
    *size = fd < 0 ? 0 : (size_t)bytes;
    return fd;
}

void cache_judge(int fd, const uint8_t hash[HASH_BYTES], bool right) {
    char name[NAME_BYTES];
    name_of(name, "blob", hash);
    if (right)
        futimens(fd, NULL); /* what was not used for the longest makes room first */
    else
        unlinkat(folder, name, 0);
}

/* ---- Room ---- */

/* An entry of a folder as the kernel gives it: the C library's readdir brings an allocator, 2 KB. */
typedef struct {
    uint64_t inode;
    int64_t offset;
    uint16_t size; /* of the whole entry */
    uint8_t kind;
    char name[];
} Entry;

/* What files take together, and which was not used for the longest. */
typedef struct {
    uint64_t bytes;
    struct timespec when;
    char oldest[256];
} Use;

static void add_file(Use *use, const char *name) {
    struct stat about;
    if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode)) return;
    use->bytes += (uint64_t)about.st_size;
    if (!use->oldest[0] || about.st_mtim.tv_sec < use->when.tv_sec ||
        (about.st_mtim.tv_sec == use->when.tv_sec && about.st_mtim.tv_nsec < use->when.tv_nsec)) {
        snprintf(use->oldest, sizeof use->oldest, "%.255s", name);
        use->when = about.st_mtim;
    }
}

static void add_files(Use *use) {
    _Alignas(Entry) uint8_t entries[2048];
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0) return;
    for (long got; (got = syscall(SYS_getdents64, again, entries, sizeof entries)) > 0;)
        for (long at = 0; at < got;) {
            const Entry *entry = (const void *)(entries + at);
            add_file(use, entry->name);
            at += entry->size;
        }
    close(again);
}

/* Removes what was not used for the longest until the rest takes `most` bytes or less. */
static void trim(uint64_t most) {
    for (;;) {
        Use use = {0};
        add_files(&use);
        if (use.bytes <= most || !use.oldest[0] || unlinkat(folder, use.oldest, 0) != 0) return;
    }
}

/* The most that the cache may hold: a quarter of the disk; and where the disk is memory, which the
 * blob takes a second time, an eighth of that. */
static uint64_t capacity(const struct statfs *disk) {
    bool memory = disk->f_type == TMPFS || (uint64_t)disk->f_type == RAMFS;
    uint64_t most = (uint64_t)disk->f_blocks * (uint64_t)disk->f_bsize / 4;
    if (memory) most = memory_size() / 8;
    return most < MAX_CACHE ? most : MAX_CACHE;
}

static bool make_room(uint64_t size) {
    struct statfs disk;
    if (fstatfs(folder, &disk) != 0) return false;
    uint64_t most = capacity(&disk);
    if (size > most) return false;
    trim(most - size);
    if (fstatfs(folder, &disk) != 0) return false;
    bool counts = disk.f_blocks > 0; /* a ramfs says nothing of its room */
    return !counts || size <= (uint64_t)disk.f_bavail * (uint64_t)disk.f_bsize;
}

/* ---- Parts ---- */

uint64_t cache_part_size(const uint8_t hash[HASH_BYTES]) {
    char name[NAME_BYTES];
    uint64_t size;
    name_of(name, "part", hash);
    int fd = open_own(name, O_RDONLY, &size);
    if (fd < 0) return 0;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) size = 0; /* a session is at work on it */
    close(fd);
    return size;
}

int cache_part_open(const uint8_t hash[HASH_BYTES], uint64_t have, uint64_t total) {
    char name[NAME_BYTES];
    uint64_t size;
    name_of(name, "part", hash);
    if (folder < 0 || (have == 0 && !make_room(total))) return -1;
    int fd = open_own(name, O_RDWR | O_CREAT, &size);
    if (fd < 0) return -1;
    /* The lock ends with the session that has it. */
    struct stat about;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &about) == 0 &&
        (uint64_t)about.st_size == have)
        return fd;
    close(fd);
    return -1;
}

bool cache_part_write(int part, const uint8_t hash[HASH_BYTES], uint64_t offset, const void *data,
                      size_t size) {
    const uint8_t *at = data;
    while (size > 0) {
        ssize_t written = pwrite(part, at, size, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            cache_part_end(part, hash, false);
            return false;
        }
        at += written;
        offset += (uint64_t)written;
        size -= (size_t)written;
    }
    return true;
}

void cache_part_end(int part, const uint8_t hash[HASH_BYTES], bool right) {
    char name[NAME_BYTES], whole[NAME_BYTES];
    name_of(name, "part", hash);
    name_of(whole, "blob", hash);
    if (!right || renameat(folder, name, folder, whole) != 0) unlinkat(folder, name, 0);
    close(part);
}
