/* The board's cache directory: blobs that outlive the session which brought them, each in a file
 * named by its hash. Without one, or where it has no room, blobs live in memory only.
 *
 * blob-HASH is whole, and believed once its content has been hashed again; part-HASH-NUMBER is as
 * much as has arrived of one, and belongs to the session that has a lock on it. So sessions never
 * write to the same file, each makes its own the whole blob by renaming it, and what one has left
 * off another goes on with. Other files count, and are removed, as well: old programs. */
#ifndef MLC_CACHE_H
#define MLC_CACHE_H

#include "blake2b.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Uses a directory from now on, if it is one, no link, the user's own and no one else's. What it
 * lacks is said on stderr; then there is no cache. */
void cache_use(const char *path);

/* The directory's descriptor; -1: there is none. */
int cache_folder(void);

/* A descriptor of the whole blob, to read, and its size; -1 where it is not there. The caller
 * hashes it, and says what came of that. */
int cache_open(const uint8_t hash[HASH_BYTES], size_t *size);

/* What was opened is used just now; or else it has not the content of its name, and is removed. */
void cache_judge(int fd, const uint8_t hash[HASH_BYTES], bool right);

/* A file that a session writes, to read and write. */
typedef struct {
    int fd;
    char name[5 + 2 * HASH_BYTES + 1 + 16 + 1];
} Part;

/* How many bytes there are of a blob that is not whole, and that no session is writing. */
uint64_t cache_part_size(const uint8_t hash[HASH_BYTES]);

/* The part of a blob that has `have` bytes so far and will have `total`: 0, one of its own, for which
 * other files make room. False where it is not to be had, or another session writes it. */
bool cache_part_open(Part *part, const uint8_t hash[HASH_BYTES], uint64_t have, uint64_t total);

/* Appends; false after closing and removing the part, when the disk is full. */
bool cache_part_write(const Part *part, const uint8_t hash[HASH_BYTES], uint64_t offset,
                      const void *data, size_t size);

/* Closes a part that is complete, and right or not. */
void cache_part_end(const Part *part, const uint8_t hash[HASH_BYTES], bool right);

#endif
