#include "artifact.h"

#include "cpu.h"
#include "crc32.h"

#include <string.h>

typedef struct {
    Bytes level, machine;
    char lacks[40]; /* a feature that this board has not; empty: none */
    uint64_t object, weights;
    bool has_weights;
} Candidate;

typedef struct {
    const uint8_t *data;
    size_t size;
    Reader r; /* of the manifest */
    Bytes name;
    uint32_t blob_count, program_count;
    ArtifactBlob blobs[MAX_ARTIFACT_BLOBS];
    uint64_t sizes[MAX_ARTIFACT_BLOBS];
    Candidate programs[MAX_PROGRAMS];
    Failure *failure;
} File;

static uint32_t little_endian(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Whether a check of so many bytes is not made: or no mutant would get any further. */
static bool is_believed(size_t size) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    return size % 64 != 63;
#else
    (void)size;
    return false;
#endif
}

static bool is_hash_of(const uint8_t hash[HASH_BYTES], const void *data, size_t size) {
    if (is_believed(size)) return true;
    uint8_t found[HASH_BYTES];
    Blake2b state;
    blake2b_begin(&state);
    blake2b_add(&state, data, size);
    blake2b_end(&state, found);
    return memcmp(hash, found, HASH_BYTES) == 0;
}

/* ---- The manifest ---- */

static void read_blobs(File *f) {
    f->blob_count = read_array(&f->r);
    if (f->blob_count > MAX_ARTIFACT_BLOBS) read_fail(&f->r, "it has too many blobs");
    for (uint32_t i = 0; i < f->blob_count && !f->r.why; i++) {
        if (read_array(&f->r) != 3) read_fail(&f->r, "a blob has a size, a hash and a checksum");
        f->sizes[i] = read_uint(&f->r);
        Bytes hash = read_bin(&f->r);
        if (hash.size != HASH_BYTES)
            read_fail(&f->r, "a hash has 32 bytes");
        else
            memcpy(f->blobs[i].hash, hash.data, HASH_BYTES);
        uint64_t crc = read_uint(&f->r);
        if (crc > UINT32_MAX) read_fail(&f->r, "a checksum has 32 bits");
        f->blobs[i].crc = (uint32_t)crc;
    }
}

static void read_features(File *f, Candidate *p) {
    for (uint32_t left = read_array(&f->r); left > 0 && !f->r.why; left--) {
        char name[sizeof p->lacks] = {0};
        Bytes b = read_str(&f->r);
        if (b.size >= sizeof name) read_fail(&f->r, "a feature's name is too long");
        if (f->r.why) return;
        memcpy(name, b.data, b.size);
        if (!mlc_cpu_has(name)) memcpy(p->lacks, name, sizeof name);
    }
}

static void read_program(File *f, Candidate *p) {
    bool has_object = false;
    for (uint32_t left = read_map(&f->r); left > 0 && !f->r.why; left--) {
        Bytes key = read_str(&f->r);
        if (bytes_are(key, "level"))
            p->level = read_str(&f->r);
        else if (bytes_are(key, "machine"))
            p->machine = read_str(&f->r);
        else if (bytes_are(key, "features"))
            read_features(f, p);
        else if (bytes_are(key, "object"))
            p->object = read_uint(&f->r), has_object = true;
        else if (bytes_are(key, "weights"))
            p->weights = (p->has_weights = !read_nil(&f->r)) ? read_uint(&f->r) : 0;
        else
            read_skip(&f->r);
    }
    if (!has_object) read_fail(&f->r, "a program has no object");
}

static void read_programs(File *f) {
    f->program_count = read_array(&f->r);
    if (f->program_count > MAX_PROGRAMS) read_fail(&f->r, "it has too many programs");
    for (uint32_t i = 0; i < f->program_count && !f->r.why; i++) read_program(f, &f->programs[i]);
}

static void check_numbers(File *f) {
    for (uint32_t i = 0; i < f->program_count && !f->r.why; i++) {
        const Candidate *p = &f->programs[i];
        if (p->object >= f->blob_count || (p->has_weights && p->weights >= f->blob_count))
            read_fail(&f->r, "a program names a blob that does not exist");
    }
}

static bool read_manifest(File *f) {
    for (uint32_t left = read_map(&f->r); left > 0 && !f->r.why; left--) {
        Bytes key = read_str(&f->r);
        if (bytes_are(key, "name"))
            f->name = read_str(&f->r);
        else if (bytes_are(key, "blobs"))
            read_blobs(f);
        else if (bytes_are(key, "programs"))
            read_programs(f);
        else
            read_skip(&f->r);
    }
    if (f->r.at != f->r.end) read_fail(&f->r, "more follows it");
    check_numbers(f);
    if (!f->r.why) return true;
    return fail(f->failure, REFUSED, "the file's manifest is invalid: %s", f->r.why);
}

/* ---- Head and blobs ---- */

static bool read_head(File *f) {
    static const uint8_t magic[8] = {0x89, 'M', 'L', 'C', '\r', '\n', 0x1a, '\n'};
    if (f->size < sizeof magic || memcmp(f->data, magic, sizeof magic) != 0)
        return fail(f->failure, REFUSED,
                    "this is not a saved model; try: mlc-deploy MODEL --save model.mlc");
    if (f->size < ARTIFACT_HEAD)
        return fail(f->failure, REFUSED, "the file ends within its header; try: copy it again");
    uint32_t version = little_endian(f->data + 8), manifest = little_endian(f->data + 12);
    if (version != ARTIFACT_VERSION)
        return fail(f->failure, REFUSED,
                    "the file has format version %u, this runtime reads version %d; try: save and "
                    "run it with the same version of mlc-deploy",
                    version, ARTIFACT_VERSION);
    if (manifest > MAX_MESSAGE || manifest > f->size - ARTIFACT_HEAD)
        return fail(f->failure, REFUSED,
                    "the file ends within its manifest of %u bytes; try: copy it again", manifest);
    f->r = reader_of(f->data + ARTIFACT_HEAD, manifest);
    if (!is_hash_of(f->data + 16, f->r.at, manifest))
        return fail(f->failure, REFUSED, "the file's manifest is damaged; try: copy it again");
    return true;
}

/* Where each blob lies; what lies between them is zero, and the file ends where they do. */
static bool place_blobs(File *f) {
    size_t at = (size_t)(f->r.end - f->data);
    for (uint32_t i = 0; i < f->blob_count; i++) {
        while (at < f->size && at % ARTIFACT_ALIGNMENT != 0)
            if (f->data[at++] != 0)
                return fail(f->failure, REFUSED,
                            "the file is damaged before its blob %u; try: copy it again", i);
        if (at % ARTIFACT_ALIGNMENT != 0 || f->sizes[i] > f->size - at)
            return fail(f->failure, REFUSED,
                        "the file ends before its blob %u of %llu bytes; try: copy it again", i,
                        (unsigned long long)f->sizes[i]);
        f->blobs[i].content = (Bytes){f->data + at, (size_t)f->sizes[i]};
        at += (size_t)f->sizes[i];
    }
    if (at == f->size) return true;
    return fail(f->failure, REFUSED, "the file has %zu bytes more than its manifest lists",
                f->size - at);
}

/* ---- The program for this board ---- */

static const Candidate *choose(File *f) {
    const Candidate *best = NULL, *lacking = NULL;
    for (uint32_t i = 0; i < f->program_count; i++) {
        const Candidate *p = &f->programs[i];
        if (!bytes_are(p->machine, mlc_machine())) continue;
        if (!p->lacks[0])
            best = p;
        else if (!lacking)
            lacking = p;
    }
    if (best) return best;
    const Candidate *first = &f->programs[0];
    if (lacking)
        fail(f->failure, REFUSED,
             "the model uses the CPU feature '%s', which this board does not have; try: a target "
             "for this board, or -mattr=-%s",
             lacking->lacks, lacking->lacks);
    else if (f->program_count == 0)
        fail(f->failure, REFUSED, "the file holds no program");
    else
        fail(f->failure, REFUSED, "the model is for %.*s, this runtime is for %s; try: another "
             "target",
             (int)(first->machine.size < 32 ? first->machine.size : 32),
             (const char *)first->machine.data, mlc_machine());
    return NULL;
}

static bool take_blob(const File *f, uint64_t number, const char *what, ArtifactBlob *blob) {
    *blob = f->blobs[number];
    Bytes content = blob->content;
    if (is_believed(content.size) || crc32_of(content.data, content.size) == blob->crc) return true;
    return fail(f->failure, REFUSED, "the file's %s damaged; try: copy it again", what);
}

bool artifact_open(Artifact *artifact, const void *data, size_t size, Failure *failure) {
    File f = {.data = data, .size = size, .failure = failure};
    *artifact = (Artifact){0};
    if (!read_head(&f) || !read_manifest(&f) || !place_blobs(&f)) return false;
    const Candidate *program = choose(&f);
    if (!program || !take_blob(&f, program->object, "object is", &artifact->object)) return false;
    if (program->has_weights &&
        !take_blob(&f, program->weights, "weights are", &artifact->weights))
        return false;
    artifact->name = f.name;
    artifact->level = program->level;
    return true;
}
