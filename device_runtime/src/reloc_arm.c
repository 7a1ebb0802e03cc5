/* Relocations of 32-bit ARM, in ARM and in Thumb-2 code (ELF for the Arm Architecture, AAELF32).
 * Addends stand in the instructions. Addresses are numbers modulo 2^32, distances int32_t. */
#include <string.h>

#include "arm_abi.h"
#include "reloc.h"

enum {
    R_ARM_ABS32 = 2,
    R_ARM_REL32 = 3,
    R_ARM_THM_CALL = 10,
    R_ARM_GOTOFF32 = 24,
    R_ARM_BASE_PREL = 25,
    R_ARM_GOT_BREL = 26,
    R_ARM_CALL = 28,
    R_ARM_JUMP24 = 29,
    R_ARM_THM_JUMP24 = 30,
    R_ARM_V4BX = 40,
    R_ARM_PREL31 = 42,
    R_ARM_MOVW_ABS_NC = 43,
    R_ARM_MOVT_ABS = 44,
    R_ARM_MOVW_PREL_NC = 45,
    R_ARM_MOVT_PREL = 46,
    R_ARM_THM_MOVW_ABS_NC = 47,
    R_ARM_THM_MOVT_ABS = 48,
    R_ARM_THM_MOVW_PREL_NC = 49,
    R_ARM_THM_MOVT_PREL = 50,
    R_ARM_GOT_PREL = 96
};

/* A veneer has an entry for ARM code, and at this offset one for Thumb code. */
enum { THUMB_ENTRY = 8 };

static uint32_t get_word(const unsigned char *place) {
    uint32_t word;
    memcpy(&word, place, sizeof word);
    return word;
}

static void put_word(unsigned char *place, uint32_t word) { memcpy(place, &word, sizeof word); }

/* A 32-bit Thumb instruction is two halfwords, the first one the upper half here. */
static uint32_t get_thumb(const unsigned char *place) {
    uint32_t word = get_word(place);
    return word << 16 | word >> 16;
}

static void put_thumb(unsigned char *place, uint32_t instruction) {
    put_word(place, instruction << 16 | instruction >> 16);
}

static uint32_t sign_extend(uint32_t value, unsigned bits) {
    uint32_t sign = UINT32_C(1) << (bits - 1);
    return ((value & ((sign << 1) - 1)) ^ sign) - sign;
}

/* The 16-bit immediates of MOVW and MOVT. */
static uint32_t movw_immediate(uint32_t i) {
    return sign_extend((i >> 4 & 0xf000) | (i & 0xfff), 16);
}

static uint32_t with_movw_immediate(uint32_t i, uint32_t value) {
    return (i & 0xfff0f000) | (value & 0xf000) << 4 | (value & 0xfff);
}

static uint32_t thumb_movw_immediate(uint32_t i) {
    return sign_extend((i >> 4 & 0xf000) | (i >> 15 & 0x800) | (i >> 4 & 0x700) | (i & 0xff), 16);
}

static uint32_t with_thumb_movw_immediate(uint32_t i, uint32_t value) {
    return (i & 0xfbf08f00) | (value & 0xf000) << 4 | (value & 0x800) << 15 | (value & 0x700) << 4 |
           (value & 0xff);
}

/* The 25-bit distance of Thumb's BL, BLX and B.W: S I1 I2 imm10 imm11 0, where J = !(I ^ S). */
static uint32_t thumb_branch_distance(uint32_t i) {
    uint32_t s = i >> 26 & 1, i1 = ~(i >> 13 ^ s) & 1, i2 = ~(i >> 11 ^ s) & 1;
    return sign_extend(s << 24 | i1 << 23 | i2 << 22 | (i >> 4 & 0x3ff000) | (i & 0x7ff) << 1, 25);
}

static uint32_t with_thumb_branch_distance(uint32_t i, uint32_t distance) {
    uint32_t s = distance >> 24 & 1;
    uint32_t j1 = ~(distance >> 23 ^ s) & 1, j2 = ~(distance >> 22 ^ s) & 1;
    return (i & 0xf800d000) | s << 26 | (distance & 0x3ff000) << 4 | j1 << 13 | j2 << 11 |
           (distance >> 1 & 0x7ff);
}

/* BL, BLX and B of ARM code; a BL to Thumb code becomes BLX and the other way round. */
static const char *branch_arm(const mlc_relocation *r, uint32_t symbol, bool thumb) {
    enum { BLX = 0xfa000000, BL = 0xeb000000 };
    uint32_t i = get_word(r->place);
    bool exchange = (i & 0xfe000000) == BLX, always = i >> 28 == 0xe;
    bool link = exchange || (i & 0x0f000000) == 0x0b000000;
    if (thumb && !exchange && (!link || !always) && r->bridge) {
        symbol = (uint32_t)r->bridge; /* its first entry is ARM code */
        thumb = false;
    }
    uint32_t addend = sign_extend(i << 2, 26) | (exchange ? i >> 23 & 2 : 0);
    uint32_t distance = symbol + addend - (uint32_t)r->at;
    if (thumb && !exchange && (!link || !always)) return mlc_reloc_state;
    if (thumb)
        i = BLX | (distance & 2) << 23;
    else if (exchange)
        i = BL;
    if (distance & (thumb ? 1 : 3)) return mlc_reloc_misaligned;
    if (!mlc_fits_signed((int32_t)distance, 26)) return mlc_reloc_range;
    put_word(r->place, (i & 0xff000000) | (distance >> 2 & 0xffffff));
    return NULL;
}

/* BL, BLX and B.W of Thumb code. BLX goes to ARM code and counts from the word of its place. */
static const char *branch_thumb(const mlc_relocation *r, uint32_t symbol, bool thumb) {
    enum { NOT_EXCHANGE = 1 << 12, LINK = 1 << 14 };
    uint32_t i = get_thumb(r->place);
    bool link = i & LINK;
    if (!thumb && !link && r->bridge) {
        symbol = (uint32_t)r->bridge + THUMB_ENTRY;
        thumb = true;
    }
    uint32_t distance = symbol + thumb_branch_distance(i) - (uint32_t)r->at;
    if (!thumb && !link) return mlc_reloc_state;
    if (thumb) {
        i |= NOT_EXCHANGE;
    } else {
        i &= ~(uint32_t)NOT_EXCHANGE;
        distance += (uint32_t)r->at & 2;
    }
    if (distance & (thumb ? 1 : 3)) return mlc_reloc_misaligned;
    if (!mlc_fits_signed((int32_t)distance, 25)) return mlc_reloc_range;
    put_thumb(r->place, with_thumb_branch_distance(i, distance));
    return NULL;
}

static const char *relocate(const mlc_relocation *r) {
    if (r->room < 4) return mlc_reloc_outside;
    bool thumb_code = r->type == R_ARM_THM_CALL || r->type == R_ARM_THM_JUMP24;
    uint32_t symbol = (uint32_t)r->symbol, at = (uint32_t)r->at;
    bool thumb = r->function && (symbol & 1);
    if (thumb) symbol &= ~UINT32_C(1);
    if (r->veneer && thumb_code) {
        symbol += THUMB_ENTRY;
        thumb = true;
    }
    uint32_t bit = thumb, word = get_word(r->place), i = get_thumb(r->place);

    switch (r->type) {
    case R_ARM_ABS32:
        put_word(r->place, (symbol + word) | bit);
        return NULL;
    case R_ARM_GOTOFF32:
        put_word(r->place, ((symbol + word) | bit) - (uint32_t)r->origin);
        return NULL;
    case R_ARM_GOT_BREL:
        if (!r->got) return mlc_reloc_local;
        put_word(r->place, (uint32_t)(r->got - r->origin) + word);
        return NULL;
    case R_ARM_BASE_PREL: /* of _GLOBAL_OFFSET_TABLE_ */
    case R_ARM_REL32:
        put_word(r->place, ((symbol + word) | bit) - at);
        return NULL;
    case R_ARM_PREL31: {
        uint32_t distance = ((symbol + sign_extend(word, 31)) | bit) - at;
        if (!mlc_fits_signed((int32_t)distance, 31)) return mlc_reloc_range;
        put_word(r->place, (word & 0x80000000) | (distance & 0x7fffffff));
        return NULL;
    }
    case R_ARM_GOT_PREL:
        if (!r->got) return mlc_reloc_local;
        put_word(r->place, (uint32_t)r->got + word - at);
        return NULL;
    case R_ARM_CALL:
    case R_ARM_JUMP24:
        return branch_arm(r, symbol, thumb);
    case R_ARM_THM_CALL:
    case R_ARM_THM_JUMP24:
        return branch_thumb(r, symbol, thumb);
    case R_ARM_V4BX: /* marks BX for linkers that serve ARMv4; ARMv7 has it */
        return NULL;
    case R_ARM_MOVW_ABS_NC:
        put_word(r->place, with_movw_immediate(word, (symbol + movw_immediate(word)) | bit));
        return NULL;
    case R_ARM_MOVT_ABS:
        put_word(r->place, with_movw_immediate(word, (symbol + movw_immediate(word)) >> 16));
        return NULL;
    case R_ARM_MOVW_PREL_NC:
        put_word(r->place, with_movw_immediate(word, ((symbol + movw_immediate(word)) | bit) - at));
        return NULL;
    case R_ARM_MOVT_PREL:
        put_word(r->place, with_movw_immediate(word, (symbol + movw_immediate(word) - at) >> 16));
        return NULL;
    case R_ARM_THM_MOVW_ABS_NC:
        put_thumb(r->place, with_thumb_movw_immediate(i, (symbol + thumb_movw_immediate(i)) | bit));
        return NULL;
    case R_ARM_THM_MOVT_ABS:
        put_thumb(r->place, with_thumb_movw_immediate(i, (symbol + thumb_movw_immediate(i)) >> 16));
        return NULL;
    case R_ARM_THM_MOVW_PREL_NC:
        put_thumb(r->place,
                  with_thumb_movw_immediate(i, ((symbol + thumb_movw_immediate(i)) | bit) - at));
        return NULL;
    case R_ARM_THM_MOVT_PREL:
        put_thumb(r->place,
                  with_thumb_movw_immediate(i, (symbol + thumb_movw_immediate(i) - at) >> 16));
        return NULL;
    default:
        return mlc_reloc_unsupported;
    }
}

static void write_veneer(unsigned char *place, uint64_t target) {
    put_word(place, 0xe51ff004); /* ARM: ldr pc, [pc, #-4] */
    put_word(place + 4, (uint32_t)target);
    put_thumb(place + THUMB_ENTRY, 0xf8dff000); /* Thumb: ldr.w pc, [pc] */
    put_word(place + THUMB_ENTRY + 4, (uint32_t)target);
}

const mlc_arch mlc_arch_arm = {
    .machine = EM_ARM,
    .wide = false,
    .check = mlc_arm_abi_check,
    .relocate = relocate,
    .write_veneer = write_veneer,
};
