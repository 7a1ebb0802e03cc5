/* A model saved to one file: objects without weights, weights, and a manifest that says which
 * belong together.
 *
 *   0    8   magic: 89 "MLC" 0d 0a 1a 0a
 *   8    4   format version, least significant byte first, as all numbers here
 *   12   4   bytes of the manifest, at most MAX_MESSAGE
 *   16   32  BLAKE2b-256 of the manifest
 *   48       the manifest, one msgpack map:
 *
 *     "name"      str        of the model
 *     "writer"    str        the program that wrote the file, with its version
 *     "blobs"     [[size: uint, hash: bin 32, crc: uint]]    BLAKE2b-256 and CRC-32 of its content
 *     "programs"  [program]  program = {"level": str, "target": str, "machine": str,
 *                                       "features": [str], "object": uint, "weights": uint | nil,
 *                                       "indices": {input: str -> extent: uint}}
 *
 *   Then the blobs in their order, each from the next multiple of ARTIFACT_ALIGNMENT on, zeros
 *   between. Where a blob lies follows from the sizes before it, so none can overlap; the file ends
 *   with the last one. No byte of it is without meaning: a file that differs in any is refused.
 *
 * Programs compute the same; later ones ask more of the CPU and are better where it has that.
 * "object" and "weights" are numbers of blobs. What the object takes and gives stands in its own
 * section ".mlc" (mlc_abi.h). "indices": inputs that are indices, and into how many entries.
 * The hash is a blob's name, by which others know it; a board that starts from a file trusts the file
 * and looks for damage alone, with a fortieth of the instructions.
 *
 * Who reads format N refuses every other, naming both. */
#ifndef MLC_ARTIFACT_H
#define MLC_ARTIFACT_H

#include "blake2b.h"
#include "failure.h"
#include "msgpack.h"

enum {
    ARTIFACT_VERSION = 2,
    ARTIFACT_ALIGNMENT = 4096,
    ARTIFACT_HEAD = 48,
    MAX_ARTIFACT_BLOBS = 64,
    MAX_PROGRAMS = 16
};

typedef struct {
    uint8_t hash[HASH_BYTES];
    uint32_t crc;
    Bytes content;
} ArtifactBlob;

typedef struct {
    Bytes name;
    Bytes level;
    ArtifactBlob object;
    ArtifactBlob weights; /* content.size is 0 where there are none */
} Artifact;

/* Checks a whole file and chooses the last of its programs that this board runs; everything points
 * into `data`. The blobs of other programs are not read. */
bool artifact_open(Artifact *artifact, const void *data, size_t size, Failure *failure);

#endif
