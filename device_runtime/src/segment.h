/* Memory that more than one process maps: a memfd, or a file without a name where the system has
 * none, and this process' view of it. Segments outlive the worker that uses them, which is why
 * tensors and blobs live in them. */
#ifndef MLC_SEGMENT_H
#define MLC_SEGMENT_H

#include "failure.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int fd;
    uint8_t *data;
    size_t size;
} Segment;

/* A file of so many zeros, in memory if the system has such files; -1 and errno where none is to be
 * had. */
int memory_file(const char *name, size_t size);

/* A zeroed segment of `size` bytes for `what` (named in messages), or false where the memory budget
 * has no room. */
bool segment_new(Segment *segment, uint64_t size, const char *what, Failure *failure);
void segment_free(Segment *segment);

/* Its size stays as it is from now on: who maps it never faults for another's doing. False where the
 * system cannot hold that. */
bool segment_fix(Segment *segment);

/* So does its content, for every process and through every descriptor; its own is for reading alone,
 * and so is whatever is mapped by it. False where the system cannot hold all of that. */
bool segment_seal(Segment *segment);

/* Whether this system holds all of it. */
bool segments_sealed(void);

/* A segment of a file of `size` bytes, to read; on success the descriptor belongs to it. */
bool segment_of_file(Segment *segment, int fd, size_t size);

/* Maps a segment that another process made; NULL when there is no room. On both sides lies memory
 * that faults, so that a stray access ends in an error and not in the neighbour. */
void *segment_map(int fd, size_t size, bool writable);
void segment_unmap(void *data, size_t size);

/* Whether what segment_map gave, writable, can be looked at and changed. False after a failure. */
bool segment_open(void *data, size_t size, bool open);

/* The board's memory in bytes, and the bytes of a page. */
uint64_t memory_size(void);
size_t page_size(void);

#endif
