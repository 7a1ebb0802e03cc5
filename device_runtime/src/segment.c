#define _GNU_SOURCE /* syscall() */
#include "segment.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

static uint64_t used; /* bytes in all segments of this process */

uint64_t memory_size(void) {
    struct sysinfo info;
    if (sysinfo(&info) != 0) return 0;
    return (uint64_t)info.totalram * info.mem_unit;
}

uint64_t memory_for_segments(void) {
    static uint64_t limit;
    if (limit == 0) {
        limit = memory_size() / 4 * 3;
        if (limit > SIZE_MAX / 4) limit = SIZE_MAX / 4; /* a 32-bit address space is smaller */
    }
    return limit;
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

bool segment_new(Segment *segment, uint64_t size, const char *what, Failure *failure) {
    *segment = (Segment){.fd = -1};
    uint64_t limit = memory_for_segments();
    if (size > limit || used > limit - size)
        return fail(failure, MEMORY,
                    "%s of %llu bytes does not fit: %llu of %llu bytes are in use on this board; "
                    "try: free tensors and blobs that are not needed, or a smaller model",
                    what, (unsigned long long)size, (unsigned long long)used,
                    (unsigned long long)limit);
    size_t mapped = whole_pages((size_t)size);
    int fd = (int)syscall(SYS_memfd_create, "mlc", 1U /* MFD_CLOEXEC */);
    if (fd < 0) return no_memfd(failure);
    void *data = MAP_FAILED;
    if (ftruncate(fd, (off_t)mapped) == 0)
        data = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        fail(failure, MEMORY, "%s of %llu bytes does not fit: %s; try: a smaller one", what,
             (unsigned long long)size, strerror(errno));
        close(fd);
        return false;
    }
    *segment = (Segment){.fd = fd, .data = data, .size = (size_t)size};
    used += size;
    return true;
}

bool segment_of_file(Segment *segment, int fd, size_t size) {
    void *data = mmap(NULL, whole_pages(size), PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return false;
    *segment = (Segment){.fd = fd, .data = data, .size = size};
    used += size; /* of the address space, whatever the system keeps of it in memory */
    return true;
}

void segment_free(Segment *segment) {
    if (!segment->data) return;
    munmap(segment->data, whole_pages(segment->size));
    close(segment->fd);
    used -= segment->size;
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
