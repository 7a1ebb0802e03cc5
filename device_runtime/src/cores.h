/* Which cores this process computes on: where a board has fast and slow ones, the fast ones unless
 * others are named. */
#ifndef MLC_CORES_H
#define MLC_CORES_H

#include "failure.h"

#include <sched.h> /* cpu_set_t, with _GNU_SOURCE */
#include <stdint.h>

typedef struct {
    cpu_set_t allowed; /* that the system lets this process use */
    cpu_set_t fast;    /* the fast ones of them; all where the system does not tell them apart */
    cpu_set_t slow;    /* the slowest kind of them; none where all are fast */
    uint32_t allowed_count, fast_count; /* at least 1 */
} Cores;

void cores_read(Cores *cores);

/* The cores that `text` names: "fast", "slow", or numbers such as 0-3 or 4,5, all of which must be
 * allowed; the fast ones for "". Returns how many, and 0 where there are no such cores. */
uint32_t cores_named(const Cores *cores, const char *text, cpu_set_t *named, Failure *failure);

#endif
