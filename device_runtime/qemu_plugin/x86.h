/* The classes of x86-64 instructions, for count.c. An instruction that computes on what it loads has
 * both classes, as cores execute it: such counts are of operations, not of instructions. */

#ifndef MLC_X86_H
#define MLC_X86_H

#include <stddef.h>
#include <stdint.h>

enum x86 { X86_MAC = 1, X86_VECTOR = 2, X86_LOAD = 4, X86_STORE = 8, X86_BRANCH = 16, X86_SCALAR = 32 };

/* A sum of them. */
unsigned x86_classes(const uint8_t *bytes, size_t size);

#endif
