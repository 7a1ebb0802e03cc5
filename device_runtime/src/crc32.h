/* CRC-32 of ISO 3309, which zlib and Ethernet have too: finds what was damaged by accident. */
#ifndef MLC_CRC32_H
#define MLC_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* By the CPU's instruction where it has one, else by tables, which the first call makes. */
uint32_t crc32_of(const void *data, size_t size);

#endif
