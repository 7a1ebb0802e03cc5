#define _GNU_SOURCE /* O_DIRECTORY and its like */
#include "cache.h"

#include "clock.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAME_BYTES = 5 + 2 * HASH_BYTES + 1 }; /* of a whole blob; a part's begins like it */

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

int cache_folder(void) { return folder; }

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

/* Whether that is still the name of the file: others may have removed it, or put one of theirs in
 * its place. */
static bool is_named(int fd, const char *name) {
    struct stat there, own;
    return fstatat(folder, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &own) == 0 &&
           there.st_ino == own.st_ino && there.st_dev == own.st_dev;
}

/* A lock over the whole file, which goes with the session that has it; it is of the open file, so a
 * worker's end does not end it. */
static struct flock whole_file(int kind) {
    return (struct flock){.l_type = (short)kind, .l_whence = SEEK_SET};
}

static bool lock(int fd) {
    struct flock own = whole_file(F_WRLCK);
    return fcntl(fd, F_OFD_SETLK, &own) == 0;
}

/* Whether a session is at work on it. */
static bool is_locked(int fd) {
    struct flock other = whole_file(F_RDLCK);
    return fcntl(fd, F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK;
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
    else if (is_named(fd, name))
        unlinkat(folder, name, 0);
}

/* ---- The files ---- */

/* An entry of a folder as the kernel gives it: the C library's readdir brings an allocator, 2 KB. */
typedef struct {
    uint64_t inode;
    int64_t offset;
    uint16_t size; /* of the whole entry */
    uint8_t kind;
    char name[];
} Entry;

static void each_file(void (*visit)(void *context, const char *name), void *context) {
    _Alignas(Entry) uint8_t entries[2048];
    int again = folder < 0 ? -1 : openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0) return;
    for (long got; (got = syscall(SYS_getdents64, again, entries, sizeof entries)) > 0;)
        for (long at = 0; at < got;) {
            const Entry *entry = (const void *)(entries + at);
            visit(context, entry->name);
            at += entry->size;
        }
    close(again);
}

/* ---- Room ---- */

/* What files take together, and which was not used for the longest. */
typedef struct {
    uint64_t bytes;
    struct timespec when;
    char oldest[256];
} Use;

static bool is_being_written(const char *name) {
    uint64_t size;
    if (strncmp(name, "part-", 5) != 0) return false;
    int fd = open_own(name, O_RDONLY, &size);
    bool locked = fd >= 0 && is_locked(fd);
    if (fd >= 0) close(fd);
    return locked;
}

static void add_file(void *context, const char *name) {
    Use *use = context;
    struct stat about;
    if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode)) return;
    use->bytes += (uint64_t)about.st_size;
    bool older = !use->oldest[0] || about.st_mtim.tv_sec < use->when.tv_sec ||
                 (about.st_mtim.tv_sec == use->when.tv_sec &&
                  about.st_mtim.tv_nsec < use->when.tv_nsec);
    if (!older || is_being_written(name)) return;
    snprintf(use->oldest, sizeof use->oldest, "%.255s", name);
    use->when = about.st_mtim;
}

/* Removes what was not used for the longest until the rest takes `most` bytes or less. */
static void trim(uint64_t most) {
    for (;;) {
        Use use = {0};
        each_file(add_file, &use);
        if (use.bytes <= most || !use.oldest[0]) return;
        if (unlinkat(folder, use.oldest, 0) != 0 && errno != ENOENT) return; /* or another did */
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

/* A search among what has arrived of one blob, leaving out what a session is at work on. */
typedef struct {
    char prefix[NAME_BYTES];
    uint64_t size;   /* of the largest, */
    uint64_t wanted; /* or the one of that size, which is then `found` and locked, */
    Part found;
    bool remove;     /* or all are removed */
} Search;

static void add_part(void *context, const char *name) {
    Search *search = context;
    Part part;
    uint64_t size;
    if (strncmp(name, search->prefix, NAME_BYTES - 1) != 0 || search->found.fd >= 0) return;
    snprintf(part.name, sizeof part.name, "%s", name);
    part.fd = open_own(part.name, O_RDWR, &size);
    if (part.fd < 0) return;
    if (search->wanted > 0 || search->remove) {
        struct stat about; /* it may have been whole, or longer, before it was locked */
        bool ours = lock(part.fd) && is_named(part.fd, part.name) && fstat(part.fd, &about) == 0;
        if (ours && search->remove) unlinkat(folder, part.name, 0);
        if (ours && !search->remove && (uint64_t)about.st_size == search->wanted) {
            search->found = part;
            return;
        }
    } else if (size > search->size && !is_locked(part.fd)) {
        search->size = size;
    }
    close(part.fd);
}

static Search search_parts(const uint8_t hash[HASH_BYTES], uint64_t wanted, bool remove) {
    Search search = {.wanted = wanted, .remove = remove, .found = {.fd = -1}};
    name_of(search.prefix, "part", hash);
    each_file(add_part, &search);
    return search;
}

uint64_t cache_part_size(const uint8_t hash[HASH_BYTES]) {
    return search_parts(hash, 0, false).size;
}

/* A file of the session's own, whose name no other has. */
static bool begin_part(Part *part, const uint8_t hash[HASH_BYTES]) {
    uint64_t own = mlc_nanoseconds(), size;
    syscall(SYS_getrandom, &own, sizeof own, 0U);
    name_of(part->name, "part", hash);
    snprintf(part->name + NAME_BYTES - 1, sizeof part->name - NAME_BYTES + 1, "-%016llx",
             (unsigned long long)own);
    part->fd = open_own(part->name, O_RDWR | O_CREAT | O_EXCL, &size);
    if (part->fd >= 0 && lock(part->fd)) return true;
    if (part->fd >= 0) close(part->fd);
    return false;
}

bool cache_part_open(Part *part, const uint8_t hash[HASH_BYTES], uint64_t have, uint64_t total) {
    if (folder < 0) return false;
    if (have == 0) return make_room(total) && begin_part(part, hash);
    *part = search_parts(hash, have, false).found;
    return part->fd >= 0;
}

bool cache_part_write(const Part *part, const uint8_t hash[HASH_BYTES], uint64_t offset,
                      const void *data, size_t size) {
    const uint8_t *at = data;
    while (size > 0) {
        ssize_t written = pwrite(part->fd, at, size, (off_t)offset);
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

void cache_part_end(const Part *part, const uint8_t hash[HASH_BYTES], bool right) {
    char whole[NAME_BYTES];
    name_of(whole, "blob", hash);
    if (is_named(part->fd, part->name)) {
        fchmod(part->fd, S_IRUSR); /* what is whole is only read */
        if (!right || renameat(folder, part->name, folder, whole) != 0)
            unlinkat(folder, part->name, 0);
    }
    if (right) search_parts(hash, 0, true); /* nobody needs what else there is of it */
    close(part->fd);
}
