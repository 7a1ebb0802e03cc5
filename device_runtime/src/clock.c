#define _GNU_SOURCE /* CLOCK_MONOTONIC_RAW */
#include "clock.h"

#include <time.h>

uint64_t mlc_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
