/* Reads .ARM.attributes (Addenda to the ABI for the Arm Architecture):
 *
 *   'A' { length:u32 vendor:string { tag:uleb length:u32 attributes } ... } ...
 *
 * where a length counts from its own structure's beginning and an attribute is a tag and a number, a
 * string, or both. Attributes of the whole file are those under tag 1 of the vendor "aeabi". */
#include "arm_abi.h"

#include <string.h>

enum { TAG_FILE = 1, TAG_CPU_RAW_NAME = 4, TAG_CPU_NAME = 5, TAG_ABI_VFP_ARGS = 28 };
enum { TAG_COMPATIBILITY = 32 };
enum { VFP_ARGS_BASE = 0, VFP_ARGS_VFP = 1, VFP_ARGS_COMPATIBLE = 3 };

/* Bytes still to read. The first step past the end empties it for good. */
typedef struct {
    const unsigned char *at, *end;
} Span;

static uint32_t number(Span *s) {
    uint32_t value = 0;
    for (unsigned shift = 0; s->at < s->end; shift += 7) {
        unsigned char byte = *s->at++;
        if (shift < 32) value |= (uint32_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) break;
    }
    return value;
}

static const char *string(Span *s) {
    const unsigned char *begin = s->at;
    const unsigned char *zero = begin < s->end ? memchr(begin, 0, (size_t)(s->end - begin)) : NULL;
    s->at = zero ? zero + 1 : s->end;
    return zero ? (const char *)begin : "";
}

/* Splits off the structure that began at `begin` and whose length stands at s->at. */
static Span part(Span *s, const unsigned char *begin) {
    uint32_t length = 0;
    Span inner = {s->end, s->end};
    if (s->end - s->at >= 4) {
        for (unsigned i = 0; i < 4; i++) length |= (uint32_t)s->at[i] << (8 * i);
        inner.at = s->at + 4;
        if (length >= (size_t)(inner.at - begin) && length <= (size_t)(s->end - begin))
            inner.end = begin + length;
        else
            inner.at = inner.end;
    }
    s->at = inner.end;
    return inner;
}

/* Tag_ABI_VFP_args among attributes; absent means the base (soft-float) convention. */
static uint32_t vfp_args(Span s) {
    uint32_t found = VFP_ARGS_BASE;
    while (s.at < s.end) {
        uint32_t tag = number(&s);
        if (tag == TAG_COMPATIBILITY) number(&s);
        bool text = tag == TAG_CPU_RAW_NAME || tag == TAG_CPU_NAME || tag == TAG_COMPATIBILITY ||
                    (tag > TAG_COMPATIBILITY && tag % 2 == 1);
        if (text)
            string(&s);
        else if (tag == TAG_ABI_VFP_ARGS)
            found = number(&s);
        else
            number(&s);
    }
    return found;
}

static uint32_t section_vfp_args(Span s) {
    uint32_t found = VFP_ARGS_BASE;
    if (s.at == s.end || *s.at++ != 'A') return found;
    while (s.at < s.end) {
        Span vendor = part(&s, s.at);
        if (strcmp(string(&vendor), "aeabi") != 0) continue;
        while (vendor.at < vendor.end) {
            const unsigned char *begin = vendor.at;
            uint32_t tag = number(&vendor);
            Span attributes = part(&vendor, begin);
            if (tag == TAG_FILE) found = vfp_args(attributes);
        }
    }
    return found;
}

void mlc_arm_abi_check(mlc_elf *elf) {
    uint32_t eabi = elf->flags >> 24;
    if (eabi != 5)
        mlc_elf_fail(elf,
                     "object is of ARM EABI version %u, this board runs version 5; try: "
                     "-mtriple=armv7a-unknown-linux-gnueabihf",
                     eabi);
    uint32_t found = VFP_ARGS_BASE;
    for (uint32_t i = 1; i < elf->sections && !elf->failed; i++) {
        mlc_elf_section section = mlc_elf_section_at(elf, i);
        if (section.type != SHT_ARM_ATTRIBUTES) continue;
        const unsigned char *begin = elf->bytes + section.offset;
        found = section_vfp_args((Span){begin, begin + section.size});
    }
    if (found != VFP_ARGS_VFP && found != VFP_ARGS_COMPATIBLE)
        mlc_elf_fail(elf, "object has the soft-float calling convention, this board runs the "
                          "hard-float one; try: -mtriple=armv7a-unknown-linux-gnueabihf");
}
