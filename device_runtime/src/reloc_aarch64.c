/* Relocations of AArch64 (ELF for the Arm 64-bit Architecture, AAELF64). */
#include <string.h>

#include "reloc.h"

enum {
    R_AARCH64_NONE = 256,
    R_AARCH64_ABS64 = 257,
    R_AARCH64_ABS32 = 258,
    R_AARCH64_PREL64 = 260,
    R_AARCH64_PREL32 = 261,
    R_AARCH64_MOVW_UABS_G0 = 263,
    R_AARCH64_MOVW_UABS_G3 = 269,
    R_AARCH64_ADR_PREL_LO21 = 274,
    R_AARCH64_ADR_PREL_PG_HI21 = 275,
    R_AARCH64_ADR_PREL_PG_HI21_NC = 276,
    R_AARCH64_ADD_ABS_LO12_NC = 277,
    R_AARCH64_LDST8_ABS_LO12_NC = 278,
    R_AARCH64_CONDBR19 = 280,
    R_AARCH64_JUMP26 = 282,
    R_AARCH64_CALL26 = 283,
    R_AARCH64_LDST16_ABS_LO12_NC = 284,
    R_AARCH64_LDST32_ABS_LO12_NC = 285,
    R_AARCH64_LDST64_ABS_LO12_NC = 286,
    R_AARCH64_LDST128_ABS_LO12_NC = 299,
    R_AARCH64_ADR_GOT_PAGE = 311,
    R_AARCH64_LD64_GOT_LO12_NC = 312,
    R_AARCH64_LD64_GOTPAGE_LO15 = 313,
    R_AARCH64_PLT32 = 314
};

/* Replaces `bits` bits of the instruction, from bit `low` up. */
static void put_field(unsigned char *place, unsigned low, unsigned bits, uint64_t value) {
    uint32_t instruction, mask = ((UINT32_C(1) << bits) - 1) << low;
    memcpy(&instruction, place, sizeof instruction);
    instruction = (instruction & ~mask) | (((uint32_t)value << low) & mask);
    memcpy(place, &instruction, sizeof instruction);
}

/* The signed 21-bit immediate of ADR and ADRP, in two fields. */
static const char *put_adr(unsigned char *place, int64_t value) {
    if (!mlc_fits_signed(value, 21)) return mlc_reloc_range;
    put_field(place, 29, 2, (uint64_t)value);
    put_field(place, 5, 19, (uint64_t)(value >> 2));
    return NULL;
}

static const char *put_adrp(unsigned char *place, uint64_t target, uint64_t at) {
    return put_adr(place, (int64_t)((target & ~UINT64_C(0xfff)) - (at & ~UINT64_C(0xfff))) >> 12);
}

/* The word offset of a branch or literal load, at bit `low`. */
static const char *put_branch(unsigned char *place, unsigned low, unsigned bits, int64_t distance) {
    if (distance & 3) return mlc_reloc_misaligned;
    if (!mlc_fits_signed(distance, bits + 2)) return mlc_reloc_range;
    put_field(place, low, bits, (uint64_t)(distance >> 2));
    return NULL;
}

/* The low 12 bits of an address, for an access of 1 << scale bytes. */
static const char *put_lo12(unsigned char *place, uint64_t target, unsigned scale) {
    if (target & ((UINT64_C(1) << scale) - 1)) return mlc_reloc_misaligned;
    put_field(place, 10, 12, (target & 0xfff) >> scale);
    return NULL;
}

/* 16 bits of an address in MOVZ or MOVK; G0, G0_NC, G1, ... G2_NC, G3 are consecutive types. */
static const char *put_movw(const mlc_relocation *r, uint64_t value) {
    unsigned step = r->type - R_AARCH64_MOVW_UABS_G0, group = step / 2;
    bool checked = step % 2 == 0 && group < 3;
    if (checked && value >> (16 * (group + 1))) return mlc_reloc_range;
    put_field(r->place, 5, 16, value >> (16 * group));
    return NULL;
}

static const char *put_word(unsigned char *place, uint64_t value, bool in_range) {
    uint32_t word = (uint32_t)value;
    if (!in_range) return mlc_reloc_range;
    memcpy(place, &word, sizeof word);
    return NULL;
}

static const char *relocate(const mlc_relocation *r) {
    bool wide = r->type == R_AARCH64_ABS64 || r->type == R_AARCH64_PREL64;
    uint64_t value = r->symbol + (uint64_t)r->addend;
    int64_t distance = (int64_t)(value - r->at);
    if (r->type == R_AARCH64_NONE) return NULL;
    if (r->room < (wide ? 8 : 4)) return mlc_reloc_outside;

    switch (r->type) {
    case R_AARCH64_ABS64:
        memcpy(r->place, &value, sizeof value);
        return NULL;
    case R_AARCH64_PREL64:
        memcpy(r->place, &distance, sizeof distance);
        return NULL;
    case R_AARCH64_ABS32:
        return put_word(r->place, value, value <= UINT32_MAX);
    case R_AARCH64_PREL32:
    case R_AARCH64_PLT32:
        return put_word(r->place, (uint64_t)distance, mlc_fits_signed(distance, 32));
    case R_AARCH64_ADR_PREL_LO21:
        return put_adr(r->place, distance);
    case R_AARCH64_ADR_PREL_PG_HI21:
    case R_AARCH64_ADR_PREL_PG_HI21_NC:
        return put_adrp(r->place, value, r->at);
    case R_AARCH64_CONDBR19:
        return put_branch(r->place, 5, 19, distance);
    case R_AARCH64_JUMP26:
    case R_AARCH64_CALL26:
        return put_branch(r->place, 0, 26, distance);
    case R_AARCH64_ADD_ABS_LO12_NC:
    case R_AARCH64_LDST8_ABS_LO12_NC:
        return put_lo12(r->place, value, 0);
    case R_AARCH64_LDST16_ABS_LO12_NC:
        return put_lo12(r->place, value, 1);
    case R_AARCH64_LDST32_ABS_LO12_NC:
        return put_lo12(r->place, value, 2);
    case R_AARCH64_LDST64_ABS_LO12_NC:
        return put_lo12(r->place, value, 3);
    case R_AARCH64_LDST128_ABS_LO12_NC:
        return put_lo12(r->place, value, 4);
    case R_AARCH64_ADR_GOT_PAGE:
        return r->got ? put_adrp(r->place, r->got + (uint64_t)r->addend, r->at) : mlc_reloc_local;
    case R_AARCH64_LD64_GOT_LO12_NC:
        return r->got ? put_lo12(r->place, r->got + (uint64_t)r->addend, 3) : mlc_reloc_local;
    case R_AARCH64_LD64_GOTPAGE_LO15: {
        uint64_t at = r->got + (uint64_t)r->addend - (r->origin & ~UINT64_C(0xfff));
        if (!r->got) return mlc_reloc_local;
        if (at & 7 || at >> 15) return mlc_reloc_range;
        put_field(r->place, 10, 12, at >> 3);
        return NULL;
    }
    default:
        if (r->type >= R_AARCH64_MOVW_UABS_G0 && r->type <= R_AARCH64_MOVW_UABS_G3)
            return put_movw(r, value);
        return mlc_reloc_unsupported;
    }
}

static void write_veneer(unsigned char *place, uint64_t target) {
    static const uint32_t code[2] = {
        0x58000050, /* ldr x16, . + 8 */
        0xd61f0200, /* br x16 */
    };
    memcpy(place, code, sizeof code);
    memcpy(place + sizeof code, &target, sizeof target);
}

const mlc_arch mlc_arch_aarch64 = {
    .machine = EM_AARCH64,
    .wide = true,
    .relocate = relocate,
    .write_veneer = write_veneer,
};
