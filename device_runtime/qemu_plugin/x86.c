/* Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: chapter 2 for prefixes,
 * appendix A for the opcodes of the four maps. */

#include "x86.h"

#include <stdbool.h>

enum { NO_BYTE = 0x90 }; /* nop: reading beyond the end decides nothing */

typedef struct {
    const uint8_t *at, *end;
    bool half, repeat; /* prefixes 66; f3 */
    bool vex;          /* or EVEX */
    unsigned map, opcode, modrm;
} decoder;

static uint8_t next(decoder *d) { return d->at < d->end ? *d->at++ : NO_BYTE; }

static bool is_prefix(uint8_t byte) {
    switch (byte) {
    case 0x26: case 0x2e: case 0x36: case 0x3e: case 0x64: case 0x65: /* segments */
    case 0x66: case 0x67: case 0xf0: case 0xf2: case 0xf3: return true;
    default: return (byte & 0xf0) == 0x40; /* REX */
    }
}

static void decode(decoder *d) {
    uint8_t byte = next(d);
    for (; is_prefix(byte) && d->at < d->end; byte = next(d)) {
        if (byte == 0x66) d->half = true;
        if (byte == 0xf3) d->repeat = true;
    }
    unsigned more = 0;
    switch (byte) {
    case 0xc5:
        more = next(d), d->vex = true, d->map = 1;
        break;
    case 0xc4:
        d->map = next(d) & 0x1f, more = next(d), d->vex = true;
        break;
    case 0x62:
        d->map = next(d) & 7, more = next(d), d->vex = true;
        (void)next(d);
        break;
    case 0x0f:
        d->map = 1, byte = next(d);
        if (byte == 0x38) d->map = 2, byte = next(d);
        if (byte == 0x3a) d->map = 3, byte = next(d);
        break;
    default: break;
    }
    if (d->vex) {
        d->half = (more & 3) == 1, d->repeat = (more & 3) == 2;
        byte = next(d);
    }
    d->opcode = byte;
    d->modrm = d->at < d->end ? *d->at : 0xc0;
}

static bool between(unsigned opcode, unsigned low, unsigned high) {
    return opcode >= low && opcode <= high;
}

/* Of two bytes: 0f and this. */
static unsigned classes_0f(const decoder *d, bool memory) {
    unsigned op = d->opcode, load = memory ? X86_LOAD : 0;
    switch (op) {
    case 0x77: return X86_SCALAR; /* vzeroupper */
    case 0x0d: case 0x18: return memory ? X86_LOAD : X86_SCALAR; /* prefetches */
    case 0x10: case 0x12: case 0x16: case 0x28: case 0x6f: case 0xf0:
        return memory ? X86_LOAD : X86_VECTOR;
    case 0x11: case 0x13: case 0x17: case 0x29: case 0x2b: case 0x7f: case 0xd6: case 0xe7:
        return memory ? X86_STORE : X86_VECTOR;
    case 0x6e: return memory ? X86_LOAD : X86_VECTOR;
    case 0x7e: return !memory ? X86_VECTOR : d->repeat ? X86_LOAD : X86_STORE;
    case 0xf5: return X86_MAC | load; /* pmaddwd */
    case 0xc3: return memory ? X86_STORE : X86_SCALAR;
    case 0xb6: case 0xb7: case 0xbe: case 0xbf: return memory ? X86_LOAD : X86_SCALAR; /* movzx */
    case 0x1f: case 0xae: return X86_SCALAR;
    case 0xb0: case 0xb1: case 0xc0: case 0xc1: case 0xc7: return X86_SCALAR | load;
    default: break;
    }
    if (between(op, 0x80, 0x8f)) return X86_BRANCH;
    if (between(op, 0x90, 0x9f)) return memory ? X86_STORE : X86_SCALAR; /* set by condition */
    if (between(op, 0x14, 0x15) || between(op, 0x2a, 0x2f) || between(op, 0x50, 0x76) ||
        between(op, 0x7c, 0x7d) || op == 0xc2 || between(op, 0xc4, 0xc6) || between(op, 0xd0, 0xfe))
        return X86_VECTOR | load;
    if (between(op, 0x40, 0x4f) || between(op, 0xa3, 0xa5) || between(op, 0xab, 0xad) ||
        between(op, 0xaf, 0xbd))
        return X86_SCALAR | load;
    return X86_SCALAR;
}

/* 0f 38 and this. */
static unsigned classes_0f38(const decoder *d, bool memory) {
    unsigned op = d->opcode, load = memory ? X86_LOAD : 0, low = op & 0xf;
    if (!d->vex && between(op, 0xf0, 0xf1)) return memory ? X86_LOAD : X86_SCALAR; /* movbe */
    if (between(op, 0xf0, 0xf7)) return X86_SCALAR | load;                          /* bit fields */
    if (d->vex && (between(op, 0x50, 0x53) || (between(op, 0x96, 0xbf) && low >= 6)))
        return X86_MAC | load; /* dot products of bytes; fused multiply-adds */
    switch (op) {
    case 0x04: return X86_MAC | load; /* pmaddubsw */
    case 0x18: case 0x19: case 0x1a: case 0x58: case 0x59: case 0x5a: case 0x78: case 0x79:
        return memory ? X86_LOAD : X86_VECTOR; /* broadcasts */
    case 0x2a: case 0x2c: case 0x2d: case 0x8c: case 0x90: case 0x91: case 0x92: case 0x93:
        return X86_LOAD;
    case 0x2e: case 0x2f: case 0x8e: return X86_STORE;
    default: return X86_VECTOR | load;
    }
}

/* 0f 3a and this. */
static unsigned classes_0f3a(const decoder *d, bool memory) {
    unsigned op = d->opcode;
    if (op == 0xf0) return X86_SCALAR | (memory ? X86_LOAD : 0); /* rorx */
    if (between(op, 0x14, 0x17) || op == 0x19 || op == 0x39 || op == 0x1d)
        return memory ? X86_STORE : X86_VECTOR; /* extracts */
    return X86_VECTOR | (memory ? X86_LOAD : 0);
}

static unsigned classes_of_one_byte(const decoder *d, bool memory) {
    unsigned op = d->opcode, load = memory ? X86_LOAD : 0, field = (d->modrm >> 3) & 7;
    if (op < 0x40) return X86_SCALAR | ((op & 7) < 4 ? load : 0); /* add, or, ..., cmp */
    if (between(op, 0x50, 0x57) || op == 0x68 || op == 0x6a) return X86_STORE; /* push */
    if (between(op, 0x58, 0x5f) || op == 0x8f || op == 0xc9) return X86_LOAD;  /* pop, leave */
    if (between(op, 0x70, 0x7f) || between(op, 0xe0, 0xe3) || between(op, 0xe8, 0xeb) ||
        between(op, 0xc2, 0xc3))
        return X86_BRANCH;
    if (between(op, 0xd8, 0xdf)) return X86_VECTOR;
    switch (op) {
    case 0x63: case 0x8a: case 0x8b: return memory ? X86_LOAD : X86_SCALAR;
    case 0x88: case 0x89: case 0xc6: case 0xc7: return memory ? X86_STORE : X86_SCALAR;
    case 0x69: case 0x6b: case 0x80: case 0x81: case 0x83: case 0x84: case 0x85: case 0x86:
    case 0x87: case 0xc0: case 0xc1: case 0xd0: case 0xd1: case 0xd2: case 0xd3: case 0xf6:
    case 0xf7: case 0xfe: return X86_SCALAR | load;
    case 0xa4: case 0xa5: return X86_LOAD | X86_STORE;
    case 0xaa: case 0xab: return X86_STORE;
    case 0xff:
        return field == 6 ? X86_STORE : between(field, 2, 5) ? X86_BRANCH : X86_SCALAR | load;
    default: return X86_SCALAR;
    }
}

unsigned x86_classes(const uint8_t *bytes, size_t size) {
    decoder d = {.at = bytes, .end = bytes + size};
    decode(&d);
    bool memory = d.modrm < 0xc0;
    switch (d.map) {
    case 0: return classes_of_one_byte(&d, memory);
    case 1: return classes_0f(&d, memory);
    case 2: return classes_0f38(&d, memory);
    case 3: return classes_0f3a(&d, memory);
    default: return X86_VECTOR | (memory ? X86_LOAD : 0); /* 5 and 6: float16 */
    }
}
