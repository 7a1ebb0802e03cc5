#include "blob.h"

#include <string.h>

static Blob blobs[MAX_BLOBS];
static uint64_t requests; /* which blobs were asked for when */

Blob *blob_slot(unsigned slot) { return blobs[slot].present ? &blobs[slot] : NULL; }

Blob *blob_find(const uint8_t hash[HASH_BYTES]) {
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

Blob *blob_need(const uint8_t hash[HASH_BYTES], const char *what, Failure *failure) {
    Blob *blob = blob_find(hash);
    if (blob && blob->complete) return blob;
    fail(failure, REFUSED, "the %s blob %02x%02x%02x%02x... is not %s on the board; try: blob.put",
         what, hash[0], hash[1], hash[2], hash[3], blob ? "complete" : "there");
    return NULL;
}

static Blob *blob_new(const uint8_t hash[HASH_BYTES], uint64_t total, Failure *failure) {
    unsigned slot = 0;
    while (slot < MAX_BLOBS && blobs[slot].present) slot++;
    Blob *blob = slot < MAX_BLOBS ? &blobs[slot] : blob_least_wanted();
    if (!blob) {
        fail(failure, REFUSED, "modules need %d blobs already; try: module.free", MAX_BLOBS);
        return NULL;
    }
    if (blob->present) blob_free(blob);
    if (!segment_new(&blob->segment, total, "a blob", failure)) return NULL;
    blob->present = true;
    blob->asked_for = ++requests;
    memcpy(blob->hash, hash, HASH_BYTES);
    blake2b_begin(&blob->hashing);
    return blob;
}

Blob *blob_open(const uint8_t hash[HASH_BYTES], uint64_t total, uint64_t offset, uint64_t size,
                Failure *failure) {
    Blob *blob = blob_find(hash);
    size_t have = blob ? blob->have : 0;
    if ((blob && total != blob->segment.size) || offset != have || size > total - offset) {
        fail(failure, REFUSED,
             "%llu bytes at offset %llu of %llu do not continue this blob, of which %zu bytes are "
             "there; try: blob.has",
             (unsigned long long)size, (unsigned long long)offset, (unsigned long long)total, have);
        return NULL;
    }
    return blob ? blob : blob_new(hash, total, failure);
}

bool blob_extend(Blob *blob, size_t size, Failure *failure) {
    uint8_t hash[HASH_BYTES];
    if (blob->complete) return true; /* nothing was left to add */
    blake2b_add(&blob->hashing, blob->segment.data + blob->have, size);
    blob->have += size;
    if (blob->have < blob->segment.size) return true;
    blake2b_end(&blob->hashing, hash);
    blob->complete = memcmp(hash, blob->hash, HASH_BYTES) == 0;
    if (blob->complete) return true;
    blob_free(blob);
    return fail(failure, REFUSED,
                "the blob's content has another hash than its name says; try: send it again");
}

void blob_free(Blob *blob) {
    segment_free(&blob->segment);
    *blob = (Blob){0};
}
