/* Which cores this process computes on: where a board has fast and slow ones, the fast ones. */
#ifndef MLC_CORES_H
#define MLC_CORES_H

#include <sched.h> /* cpu_set_t, with _GNU_SOURCE */
#include <stdint.h>

typedef struct {
    cpu_set_t allowed; /* that the system lets this process use */
    cpu_set_t fast;    /* the fast ones of them; all where the system does not tell them apart */
    uint32_t allowed_count, fast_count; /* at least 1 */
} Cores;

void cores_read(Cores *cores);

#endif
