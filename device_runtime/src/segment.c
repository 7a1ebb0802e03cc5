#define _GNU_SOURCE /* syscall(), fallocate() */
#include "segment.h"

#include "budget.h"
#include "cache.h"
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

/* As <linux/fcntl.h> and <linux/memfd.h> have them, which not every C library does. */
enum { CLOSE_ON_EXEC = 1, ALLOW_SEALING = 2, ADD_SEALS = 1024 + 9 };
enum { SEAL_SEAL = 1, SEAL_SHRINK = 2, SEAL_GROW = 4, SEAL_WRITE = 8 };

uint64_t memory_size(void) {
    struct sysinfo info;
    if (sysinfo(&info) != 0) return 0;
    return (uint64_t)info.totalram * info.mem_unit;
}

size_t page_size(void) { return (size_t)getpagesize(); }

/* Bytes of whole pages that hold `size` bytes, at least one page. */
static size_t whole_pages(size_t size) {
    size_t page = page_size();
    return size == 0 ? page : (size + page - 1) / page * page;
}

/* ---- Files of memory ---- */

/* A file of `size` bytes without a name, whose room is there: else a write could fault. -1: no. */
static int file_in(int folder, size_t size) {
    enum { TRIES = 8 };
    char name[32];
    uint64_t own = mlc_nanoseconds();
    for (int i = 0; i < TRIES; i++, own++) {
        syscall(SYS_getrandom, &own, sizeof own, 0U); /* where there is none, the time */
        snprintf(name, sizeof name, "mem-%016llx", (unsigned long long)own);
        int fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return -1;
        unlinkat(folder, name, 0);
        if (fallocate(fd, 0, 0, (off_t)size) == 0) return fd;
        if (errno == EOPNOTSUPP && ftruncate(fd, (off_t)size) == 0) return fd;
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return -1;
}

/* Where the system has no memfd_create (Linux before 3.17), or forbids it. */
static int file_somewhere(size_t size) {
    static const char *const folders[] = {"/dev/shm", NULL, "/var/tmp", "/tmp"};
    int fd = -1;
    for (size_t i = 0; fd < 0 && i < sizeof folders / sizeof *folders; i++) {
        int folder = folders[i] ? open(folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                : cache_folder();
        if (folder < 0) continue;
        fd = file_in(folder, size);
        int error = errno;
        if (folders[i]) close(folder);
        errno = error;
    }
    return fd;
}

int memory_file(const char *name, size_t size) {
    int fd = (int)syscall(SYS_memfd_create, name, CLOSE_ON_EXEC | ALLOW_SEALING);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM || errno == EACCES))
        return file_somewhere(size);
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static bool no_file(const char *what, uint64_t size, Failure *failure) {
    int error = errno;
    struct rlimit limit;
    unsigned long long bytes = (unsigned long long)size;
    switch (error) {
    case EFBIG:
        if (getrlimit(RLIMIT_FSIZE, &limit) != 0) limit.rlim_cur = 0;
        return fail(failure, MEMORY,
                    "%s of %llu bytes is larger than a file may be, %llu bytes; try: ulimit -f "
                    "unlimited, in a start file of the board's shell",
                    what, bytes, (unsigned long long)limit.rlim_cur);
    case EMFILE:
    case ENFILE:
        return fail(failure, MEMORY,
                    "no memory object left: %s; try: free tensors, modules and blobs that are not "
                    "needed, or raise the limit of open files",
                    strerror(error));
    case ENOSYS:
    case EPERM:
    case EACCES:
    case ENOENT:
    case EROFS:
        return fail(failure, MEMORY,
                    "the board's system allows no memory objects (memfd_create), and no files in "
                    "/dev/shm, the cache, /var/tmp or /tmp instead: %s; try: one of these folders "
                    "to write to",
                    strerror(error));
    default:
        return fail(failure, MEMORY, "%s of %llu bytes does not fit: %s; try: a smaller one", what,
                    bytes, strerror(error));
    }
}

/* The mapping is not for a worker that is forked, and not a writer that stands against a seal. */
static void *map_own(void *at, size_t mapped, int protection, int fd) {
    void *data = mmap(at, mapped, protection, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    if (data != MAP_FAILED) madvise(data, mapped, MADV_DONTFORK);
    return data;
}

bool segment_new(Segment *segment, uint64_t size, const char *what, Failure *failure) {
    *segment = (Segment){.fd = -1};
    if (!budget_take(size, what, failure)) return false;
    size_t mapped = whole_pages((size_t)size);
    int fd = memory_file("mlc", mapped);
    void *data = fd < 0 ? MAP_FAILED : map_own(NULL, mapped, PROT_READ | PROT_WRITE, fd);
    if (data == MAP_FAILED) {
        no_file(what, size, failure);
        if (fd >= 0) close(fd);
        budget_give(size);
        return false;
    }
    *segment = (Segment){.fd = fd, .data = data, .size = (size_t)size};
    return true;
}

static bool add_seals(int fd, int seals) {
    return fcntl(fd, ADD_SEALS, SEAL_SHRINK | SEAL_GROW | SEAL_SEAL | seals) == 0;
}

bool segment_fix(Segment *segment) { return add_seals(segment->fd, 0); }

bool segment_seal(Segment *segment) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t mapped = whole_pages(segment->size);
    if (map_own(segment->data, mapped, PROT_READ, fd) == MAP_FAILED) {
        close(fd);
        return false;
    }
    bool sealed = add_seals(segment->fd, SEAL_WRITE);
    close(segment->fd);
    segment->fd = fd;
    return sealed;
}

bool segments_sealed(void) {
    static int known = -1;
    if (known < 0) {
        Segment probe;
        Failure none = {0};
        known = segment_new(&probe, 1, "a page", &none) && segment_seal(&probe);
        segment_free(&probe);
    }
    return known != 0;
}

bool segment_of_file(Segment *segment, int fd, size_t size) {
    Failure none = {0};
    if (!budget_take(size, "a blob", &none)) return false;
    void *data = map_own(NULL, whole_pages(size), PROT_READ, fd);
    if (data == MAP_FAILED) {
        budget_give(size);
        return false;
    }
    *segment = (Segment){.fd = fd, .data = data, .size = size};
    return true;
}

void segment_free(Segment *segment) {
    if (!segment->data) return;
    munmap(segment->data, whole_pages(segment->size));
    close(segment->fd);
    budget_give(segment->size);
    *segment = (Segment){.fd = -1};
}

void *segment_map(int fd, size_t size, bool writable) {
    size_t guard = page_size(), mapped = whole_pages(size);
    uint8_t *room = mmap(NULL, mapped + 2 * guard, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *data = mmap(room + guard, mapped, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (data != MAP_FAILED) return data;
    munmap(room, mapped + 2 * guard);
    return NULL;
}

void segment_unmap(void *data, size_t size) {
    size_t guard = page_size();
    if (data) munmap((uint8_t *)data - guard, whole_pages(size) + 2 * guard);
}

bool segment_open(void *data, size_t size, bool open) {
    return mprotect(data, whole_pages(size), open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
}
