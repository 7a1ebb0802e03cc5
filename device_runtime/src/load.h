/* Loads a relocatable ELF object: checks it, lays its sections out in one mapping, relocates it and
 * seals the mapping (code read+execute, constants read, data read+write; never write+execute).
 *
 * The object's bytes may come from anywhere: nothing in them is trusted before it is checked. They
 * are not needed after loading. */
#ifndef MLC_LOAD_H
#define MLC_LOAD_H

#include <stddef.h>
#include <stdint.h>

#define MLC_IMAGE_MAX ((size_t)64 << 20) /* bytes of one loaded object, bss included */

typedef struct {
    unsigned char *base;    /* the mapping; NULL when nothing is loaded */
    size_t size;            /* its bytes */
    const uint64_t *values; /* per global symbol: its address, Thumb bit included */
    const uint32_t *names;  /* per global symbol: its name's offset in strings, or UINT32_MAX */
    const char *strings;
    size_t symbols;
} mlc_image;

/* Returns NULL, or `why`, which then says what is wrong and where. The image is empty after a
 * failure and must be unloaded after a success. */
const char *mlc_load(mlc_image *image, const void *object, size_t size, char *why, size_t why_size);

/* Address of a global symbol that the object defines, Thumb bit kept; NULL when it has none. */
void *mlc_image_symbol(const mlc_image *image, const char *name);

/* Returns the memory; harmless on an empty (zeroed) image. */
void mlc_unload(mlc_image *image);

/* Bytes of a section of an object, for any machine, without loading it. Points into `object` and
 * sets *found_size; NULL when the object is malformed or has no such section, and `why` says so. */
const unsigned char *mlc_object_section(const void *object, size_t size, const char *name,
                                        size_t *found_size, char *why, size_t why_size);

#endif
