/* The clock that durations and deadlines are taken from. */
#ifndef MLC_CLOCK_H
#define MLC_CLOCK_H

#include <stdint.h>

uint64_t mlc_nanoseconds(void); /* since some moment, by the clock that nothing adjusts */

#endif
