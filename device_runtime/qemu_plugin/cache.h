/* A data cache and those behind it, fed with the addresses that the guest reads and writes.
 *
 * The first cache is the core's own. All others are alternatives for what stands behind it: each
 * sees the same misses of the first, so one run answers for cores with different second levels.
 * Caches hold lines of 64 bytes, write back, fetch a line before writing to it, and give up what was
 * not used for the longest time.
 *
 * Nothing depends on where the host puts the guest's memory: pages are numbered in the order in
 * which they are first touched, as if the board had handed them out in this order. */

#ifndef MLC_QEMU_CACHE_H
#define MLC_QEMU_CACHE_H

#include <stdbool.h>
#include <stdint.h>

enum { MOST_CACHES = 8 };

/* "32768x4:524288x16": bytes and ways of each cache. False where this describes none. */
bool caches_configure(const char *text);

/* How many there are; 0 before caches_configure. */
int caches_count(void);

void caches_access(uint64_t address);

/* Lines that a cache fetched since the program began. */
uint64_t caches_misses(int cache);

#endif
