#define _GNU_SOURCE /* pread */
#include "blob.h"

#include <string.h>
#include <unistd.h>

static Blob blobs[MAX_BLOBS];
static uint64_t requests; /* which blobs were asked for when */

bool part_is_wrong(Failure *failure) {
    return fail(failure, REFUSED,
                "the part of the blob that was there cannot be used; try: send it again");
}

Blob *blob_slot(unsigned slot) { return blobs[slot].present ? &blobs[slot] : NULL; }

static Blob *blob_in_memory(const uint8_t hash[HASH_BYTES]) {
    for (unsigned i = 0; i < MAX_BLOBS; i++)
        if (blobs[i].present && memcmp(blobs[i].hash, hash, HASH_BYTES) == 0) {
            blobs[i].asked_for = ++requests;
            return &blobs[i];
        }
    return NULL;
}

/* The blob that no module needs and that nobody asked for the longest; NULL: all are needed. */
static Blob *blob_least_wanted(void) {
    Blob *least = NULL;
    for (unsigned i = 0; i < MAX_BLOBS; i++)
        if (blobs[i].present && !blobs[i].uses &&
            (!least || blobs[i].asked_for < least->asked_for))
            least = &blobs[i];
    return least;
}

/* An empty place; NULL after a failure. */
static Blob *blob_place(const uint8_t hash[HASH_BYTES], Failure *failure) {
    unsigned slot = 0;
    while (slot < MAX_BLOBS && blobs[slot].present) slot++;
    Blob *blob = slot < MAX_BLOBS ? &blobs[slot] : blob_least_wanted();
    if (!blob) {
        fail(failure, REFUSED, "modules need %d blobs already; try: module.free", MAX_BLOBS);
        return NULL;
    }
    if (blob->present) blob_free(blob);
    memcpy(blob->hash, hash, HASH_BYTES);
    blob->asked_for = ++requests;
    return blob;
}

Blob *blob_begin(const uint8_t hash[HASH_BYTES]) {
    Blob *blob = blob_in_memory(hash);
    Failure none = {0};
    size_t size;
    int fd = blob ? -1 : cache_open(hash, &size);
    if (fd < 0) return blob;
    blob = blob_place(hash, &none);
    if (blob && segment_of_file(&blob->segment, fd, size)) {
        blob->present = blob->reading = true;
        blob->there = size;
        blake2b_begin(&blob->hashing);
        return blob;
    }
    close(fd);
    return NULL;
}

/* Whether the content of a whole blob is what its name says. */
static bool blob_is_right(Blob *blob) {
    uint8_t hash[HASH_BYTES];
    blake2b_end(&blob->hashing, hash);
    return memcmp(hash, blob->hash, HASH_BYTES) == 0;
}

/* What the cache has is of no use. */
static bool blob_give_up(Blob *blob) {
    if (blob->kept) cache_part_end(&blob->part, blob->hash, false);
    blob->kept = false;
    blob_free(blob);
    return false;
}

bool blob_slice(Blob *blob, size_t most) {
    uint8_t *at = blob->segment.data + blob->have;
    size_t size = blob->there - blob->have;
    if (size > most) size = most;
    if (blob->kept && size > 0) { /* else its memory is the file */
        ssize_t got = pread(blob->part.fd, at, size, (off_t)blob->have);
        if (got <= 0) return blob_give_up(blob);
        size = (size_t)got;
    }
    blake2b_add(&blob->hashing, at, size);
    blob->have += size;
    if (blob->have < blob->there) return true;
    blob->reading = false;
    if (blob->kept) return false;
    blob->complete = blob_is_right(blob);
    cache_judge(blob->segment.fd, blob->hash, blob->complete);
    return blob->complete ? false : blob_give_up(blob);
}

/* Reads the rest; NULL when it was wrong. */
static Blob *blob_read(Blob *blob) {
    while (blob && blob->reading) blob_slice(blob, SIZE_MAX);
    return blob && blob->present ? blob : NULL;
}

Blob *blob_find(const uint8_t hash[HASH_BYTES]) { return blob_read(blob_begin(hash)); }

uint64_t blob_have(const uint8_t hash[HASH_BYTES]) {
    const Blob *blob = blob_find(hash);
    return blob ? blob->have : cache_part_size(hash);
}

Blob *blob_need(const uint8_t hash[HASH_BYTES], const char *what, Failure *failure) {
    Blob *blob = blob_find(hash);
    if (blob && blob->complete) return blob;
    fail(failure, REFUSED, "the %s blob %02x%02x%02x%02x... is not %s on the board; try: blob.put",
         what, hash[0], hash[1], hash[2], hash[3], blob ? "complete" : "there");
    return NULL;
}

/* `have` bytes of it are in the cache. */
static Blob *blob_new(const uint8_t hash[HASH_BYTES], uint64_t have, uint64_t total,
                      Failure *failure) {
    Blob *blob = blob_place(hash, failure);
    if (!blob || !segment_new(&blob->segment, total, "a blob", failure)) return NULL;
    blob->present = true;
    blake2b_begin(&blob->hashing);
    blob->kept = cache_part_open(&blob->part, hash, have, total);
    blob->there = (size_t)have;
    blob->reading = have > 0 && blob->kept;
    if (have == 0 || blob->kept) return blob;
    blob_free(blob);
    part_is_wrong(failure);
    return NULL;
}

static bool continues(const Blob *blob, uint64_t have, uint64_t total, uint64_t offset,
                      uint64_t size) {
    if (blob && total != blob->segment.size) return false;
    bool all = blob && (blob->complete || blob->reading); /* another session may have brought it */
    return (all || offset == have) && offset <= total && size <= total - offset;
}

Blob *blob_open(const uint8_t hash[HASH_BYTES], uint64_t total, uint64_t offset, uint64_t size,
                Failure *failure) {
    Blob *blob = blob_in_memory(hash);
    if (!blob && offset > 0) blob = blob_begin(hash); /* what is sent from 0 on needs no reading */
    if (size > 0) blob = blob_read(blob);
    uint64_t have = blob ? blob->have : offset > 0 ? cache_part_size(hash) : 0;
    if (!continues(blob, have, total, offset, size)) {
        fail(failure, REFUSED,
             "%llu bytes at offset %llu of %llu do not continue this blob, of which %llu bytes are "
             "there; try: blob.has",
             (unsigned long long)size, (unsigned long long)offset, (unsigned long long)total,
             (unsigned long long)have);
        return NULL;
    }
    if (!blob) blob = blob_new(hash, have, total, failure);
    if (!blob || size == 0) return blob;
    blob = blob_read(blob);
    if (!blob) part_is_wrong(failure);
    return blob;
}

uint8_t *blob_room(const Blob *blob, uint64_t offset) {
    return blob->complete ? NULL : blob->segment.data + offset;
}

bool blob_extend(Blob *blob, size_t size, Failure *failure) {
    if (blob->complete) return true;
    blake2b_add(&blob->hashing, blob->segment.data + blob->have, size);
    if (blob->kept)
        blob->kept = cache_part_write(&blob->part, blob->hash, blob->have,
                                      blob->segment.data + blob->have, size);
    blob->have += size;
    if (blob->have < blob->segment.size) return true;
    blob->complete = blob_is_right(blob);
    if (blob->kept) cache_part_end(&blob->part, blob->hash, blob->complete);
    blob->kept = false;
    if (blob->complete) {
        segment_seal(&blob->segment);
        return true;
    }
    blob_free(blob);
    return fail(failure, REFUSED,
                "the blob's content has another hash than its name says; try: send it again");
}

void blob_free(Blob *blob) {
    if (blob->kept) close(blob->part.fd); /* a later session goes on with it */
    segment_free(&blob->segment);
    *blob = (Blob){0};
}
