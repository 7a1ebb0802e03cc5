/* memcpy for static releases, whose C library is built for size and copies byte by byte: tensors and
 * blobs are what a runtime copies most. */
#ifdef MLC_OWN_MEMCPY
#include <stddef.h>
#include <stdint.h>

typedef uint32_t Word __attribute__((aligned(1), may_alias));

#ifdef __arm__ /* whose runtime has no vectors */
typedef Word Chunk;
#else
typedef uint64_t Chunk __attribute__((vector_size(16), aligned(1), may_alias));
#endif

__attribute__((used, no_builtin("memcpy"))) void *memcpy(void *restrict to, const void *restrict from,
                                                       size_t size) {
    uint8_t *out = to;
    const uint8_t *in = from;
    for (; size >= 4 * sizeof(Chunk); size -= 4 * sizeof(Chunk)) {
        Chunk a = ((const Chunk *)in)[0], b = ((const Chunk *)in)[1];
        Chunk c = ((const Chunk *)in)[2], d = ((const Chunk *)in)[3];
        ((Chunk *)out)[0] = a, ((Chunk *)out)[1] = b;
        ((Chunk *)out)[2] = c, ((Chunk *)out)[3] = d;
        in += 4 * sizeof(Chunk), out += 4 * sizeof(Chunk);
    }
    for (; size >= sizeof(Word); size -= sizeof(Word), in += sizeof(Word), out += sizeof(Word))
        *(Word *)out = *(const Word *)in;
    for (; size > 0; size--) *out++ = *in++;
    return to;
}
#endif
