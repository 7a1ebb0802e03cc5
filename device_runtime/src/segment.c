#define _GNU_SOURCE /* syscall() */
#include "segment.h"

#include "budget.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
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

static bool no_memfd(Failure *failure) {
    struct utsname system = {0};
    int error = errno;
    uname(&system);
    if (error == ENOSYS)
        return fail(failure, REFUSED,
                    "the board's kernel (Linux %s) has no memfd_create; try: a kernel of version "
                    "3.17 or later",
                    system.release);
    return fail(failure, MEMORY,
                "no memory object left: %s; try: free tensors, modules and blobs that are not "
                "needed, or raise the limit of open files",
                strerror(error));
}

/* The mapping is no business of a worker that is forked, and no writer that stands against a seal. */
static void *map_own(void *at, size_t mapped, int protection, int fd) {
    void *data = mmap(at, mapped, protection, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    if (data != MAP_FAILED) madvise(data, mapped, MADV_DONTFORK);
    return data;
}

bool segment_new(Segment *segment, uint64_t size, const char *what, Failure *failure) {
    *segment = (Segment){.fd = -1};
    if (!budget_take(size, what, failure)) return false;
    size_t mapped = whole_pages((size_t)size);
    int fd = (int)syscall(SYS_memfd_create, "mlc", CLOSE_ON_EXEC | ALLOW_SEALING);
    void *data = MAP_FAILED;
    if (fd < 0)
        no_memfd(failure);
    else if (ftruncate(fd, (off_t)mapped) == 0)
        data = map_own(NULL, mapped, PROT_READ | PROT_WRITE, fd);
    if (data == MAP_FAILED) {
        fail(failure, MEMORY, "%s of %llu bytes does not fit: %s; try: a smaller one", what,
             (unsigned long long)size, strerror(errno));
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
