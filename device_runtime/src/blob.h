/* Blobs: objects and weights, named by the BLAKE2b-256 of their content. When there are many, one
 * that no module needs makes room for the next. What arrives is kept in the cache as well, if there
 * is one, and found there by later sessions. */
#ifndef MLC_BLOB_H
#define MLC_BLOB_H

#include "blake2b.h"
#include "cache.h"
#include "failure.h"
#include "segment.h"

enum { MAX_BLOBS = 512 };

/* Fails: what the cache had of a blob was not what it should be. */
bool part_is_wrong(Failure *failure);

typedef struct {
    bool present;
    bool complete;
    uint8_t hash[HASH_BYTES];
    Segment segment;
    bool reading;       /* what the cache has of it is being taken in, by blob_slice */
    size_t there;       /* bytes that the cache has of it */
    size_t have;        /* bytes that have arrived, in order, and are hashed */
    unsigned uses;      /* modules that need it */
    uint64_t asked_for; /* the larger, the later */
    Blake2b hashing;
    bool kept; /* what has arrived goes to `part` of the cache, too */
    Part part;
} Blob;

/* NULL: none, neither in memory nor whole in the cache; it may be incomplete, or being read. */
Blob *blob_begin(const uint8_t hash[HASH_BYTES]);

/* Takes in at most so many bytes of what the cache has. False when that was the rest: then the blob
 * is complete, or as far as it was; or what the cache had was wrong, and the blob is gone. */
bool blob_slice(Blob *blob, size_t most);

/* As blob_begin, but read as far as the cache has it. */
Blob *blob_find(const uint8_t hash[HASH_BYTES]);

/* How many bytes of a blob there are, in memory or in the cache. */
uint64_t blob_have(const uint8_t hash[HASH_BYTES]);

/* The complete blob of that name; NULL after a failure that says what to send. */
Blob *blob_need(const uint8_t hash[HASH_BYTES], const char *what, Failure *failure);

/* Room for data at `offset` of a blob of `total` bytes, which must be where it ends so far; a blob
 * that is not here begins at offset 0, and one that is complete has room for none: what is sent of it
 * again is not needed. Before there is data, it may be being read: then that is all
 * that is done. NULL after a failure. */
Blob *blob_open(const uint8_t hash[HASH_BYTES], uint64_t total, uint64_t offset, uint64_t size,
                Failure *failure);

/* Where that data goes; NULL for what is not needed. */
uint8_t *blob_room(const Blob *blob, uint64_t offset);

/* `size` bytes were written to the blob's end. The last of them checks the hash: a blob whose
 * content is not what its name says is removed, and that is a failure; one that is right is sealed. */
bool blob_extend(Blob *blob, size_t size, Failure *failure);

void blob_free(Blob *blob);
Blob *blob_slot(unsigned slot); /* of MAX_BLOBS; NULL when empty */

#endif
