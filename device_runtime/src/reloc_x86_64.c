/* Relocations of x86-64 (System V ABI, AMD64 supplement). */
#include <string.h>

#include "reloc.h"

enum {
    R_X86_64_64 = 1,
    R_X86_64_PC32 = 2,
    R_X86_64_PLT32 = 4,
    R_X86_64_GOTPCREL = 9,
    R_X86_64_32 = 10,
    R_X86_64_32S = 11,
    R_X86_64_PC64 = 24,
    R_X86_64_GOTPCRELX = 41,
    R_X86_64_REX_GOTPCRELX = 42
};

static const char *put_word(unsigned char *place, uint64_t value, bool in_range) {
    uint32_t word = (uint32_t)value;
    if (!in_range) return mlc_reloc_range;
    memcpy(place, &word, sizeof word);
    return NULL;
}

static const char *relocate(const mlc_relocation *r) {
    bool wide = r->type == R_X86_64_64 || r->type == R_X86_64_PC64;
    uint64_t value = r->symbol + (uint64_t)r->addend;
    uint64_t distance = value - r->at;
    if (r->room < (wide ? 8 : 4)) return mlc_reloc_outside;

    switch (r->type) {
    case R_X86_64_64:
        memcpy(r->place, &value, sizeof value);
        return NULL;
    case R_X86_64_PC64:
        memcpy(r->place, &distance, sizeof distance);
        return NULL;
    case R_X86_64_PC32:
    case R_X86_64_PLT32:
        return put_word(r->place, distance, mlc_fits_signed((int64_t)distance, 32));
    case R_X86_64_32:
        return put_word(r->place, value, value <= UINT32_MAX);
    case R_X86_64_32S:
        return put_word(r->place, value, mlc_fits_signed((int64_t)value, 32));
    case R_X86_64_GOTPCREL:
    case R_X86_64_GOTPCRELX:
    case R_X86_64_REX_GOTPCRELX:
        if (!r->got) return mlc_reloc_local;
        distance = r->got + (uint64_t)r->addend - r->at;
        return put_word(r->place, distance, mlc_fits_signed((int64_t)distance, 32));
    default:
        return mlc_reloc_unsupported;
    }
}

static void write_veneer(unsigned char *place, uint64_t target) {
    static const unsigned char code[6] = {0xff, 0x25, 0, 0, 0, 0}; /* jmp *0(%rip) */
    memcpy(place, code, sizeof code);
    memcpy(place + sizeof code, &target, sizeof target);
}

const mlc_arch mlc_arch_x86_64 = {
    .machine = EM_X86_64,
    .wide = true,
    .relocate = relocate,
    .write_veneer = write_veneer,
};
