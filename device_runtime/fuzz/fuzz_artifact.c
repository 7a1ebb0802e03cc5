/* Fuzzes what reads files on a board: saved models, up to the program that is chosen, and .npy.
 * Hashes are mostly not compared here (FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION).
 *
 * mutate.h says how it is built and started. */
#include "mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact.h"
#include "npy.h"

static volatile unsigned sink; /* what is read goes here, so that the compiler keeps the reading */

static void touch(Bytes b) {
    for (size_t i = 0; i < b.size; i++) sink += b.data[i];
}

static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_artifact: %s\n", what);
    abort();
}

static void model(const uint8_t *data, size_t size) {
    Artifact artifact;
    Failure failure = {0};
    bool ok = artifact_open(&artifact, data, size, &failure);
    expect(ok != failure.failed, "a failure has a reason, a success has none");
    if (!ok) return;
    fuzz_accepted++;
    touch(artifact.name);
    touch(artifact.level);
    touch(artifact.object.content);
    touch(artifact.weights.content);
}

static void tensor(const uint8_t *data, size_t size) {
    Npy npy, again;
    Failure failure = {0};
    char head[MAX_NPY_HEAD];
    bool ok = npy_read(&npy, data, size, "file", &failure);
    expect(ok != failure.failed, "a failure has a reason, a success has none");
    if (!ok) return;
    fuzz_accepted++;
    touch(npy.content);
    size_t head_size = npy_head(&npy.type, head); /* what is written is read, and is the same */
    expect(head_size % 64 == 0 && head_size <= sizeof head, "a head of whole lines");
    uint8_t *copy = malloc(head_size + npy.content.size);
    if (!copy) return;
    memcpy(copy, head, head_size);
    if (npy.content.size > 0) memcpy(copy + head_size, npy.content.data, npy.content.size);
    expect(npy_read(&again, copy, head_size + npy.content.size, "copy", &failure) &&
               memcmp(&again.type, &npy.type, sizeof again.type) == 0,
           "what is written is read again");
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    model(data, size);
    tensor(data, size);
    return 0;
}
