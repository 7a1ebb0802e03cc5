#define _GNU_SOURCE /* sched_getaffinity, CPU_SET, CPU_COUNT */
#include "cores.h"

#include "kernel_text.h"

#include <stdio.h>
#include <string.h>

/* How much a core computes, in the kernel's measure: 1024 is a fastest one; 0 when it does not say.
 * Kernels for ARM know it from the device tree. */
static uint32_t capacity_of(unsigned core) {
    char path[64], text[8];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/cpu_capacity", core);
    kernel_text(path, text, sizeof text);
    uint32_t capacity = 0;
    for (const char *at = text; *at >= '0' && *at <= '9'; at++)
        capacity = 10 * capacity + (uint32_t)(*at - '0');
    return capacity;
}

/* A core counts as fast from two thirds of the fastest one's capacity on: a Cortex-A55 beside an
 * A76 has half, and the same core at a higher clock rarely more than a quarter on top. The slow ones
 * are as near to the slowest; a board of three kinds has some that are neither. */
void cores_read(Cores *cores) {
    uint32_t capacity[CPU_SETSIZE] = {0}, most = 0, least = UINT32_MAX;
    *cores = (Cores){.allowed_count = 0};
    if (sched_getaffinity(0, sizeof cores->allowed, &cores->allowed) != 0)
        CPU_ZERO(&cores->allowed);
    for (unsigned i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &cores->allowed)) continue;
        capacity[i] = capacity_of(i);
        if (capacity[i] > most) most = capacity[i];
        if (capacity[i] < least) least = capacity[i];
        cores->allowed_count++;
    }
    for (unsigned i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &cores->allowed)) continue;
        if (3 * capacity[i] >= 2 * most) {
            CPU_SET(i, &cores->fast);
            cores->fast_count++;
        } else if (2 * capacity[i] <= 3 * least) {
            CPU_SET(i, &cores->slow);
        }
    }
    if (cores->allowed_count == 0) cores->allowed_count = cores->fast_count = 1;
}

/* ---- By name ---- */

static bool take_number(const char **at, unsigned *number) {
    const char *begin = *at;
    for (*number = 0; **at >= '0' && **at <= '9'; (*at)++)
        if (*number < CPU_SETSIZE) *number = 10 * *number + (unsigned)(**at - '0');
    return *at != begin;
}

/* "0-3,6", as much as fits. */
static const char *write_numbers(const cpu_set_t *set, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (unsigned first = 0; first < CPU_SETSIZE && used < size; first++) {
        if (!CPU_ISSET(first, set)) continue;
        unsigned last = first;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set)) last++;
        used += (size_t)snprintf(text + used, size - used, last > first ? "%s%u-%u" : "%s%u",
                                 used ? "," : "", first, last);
        first = last;
    }
    return text;
}

static bool list_cores(const Cores *cores, const char *text, cpu_set_t *named, Failure *failure) {
    CPU_ZERO(named);
    for (const char *at = text;; at++) {
        unsigned first, last;
        bool read = take_number(&at, &first);
        last = first;
        if (read && *at == '-') at++, read = take_number(&at, &last);
        if (!read || last < first || (*at && *at != ','))
            return fail(failure, REFUSED,
                        "cores are 'fast', 'slow', or numbers such as 0-3 or 4,5, not '%s'", text);
        for (unsigned core = first; core <= last; core++) {
            char allowed[64];
            if (core >= CPU_SETSIZE || !CPU_ISSET(core, &cores->allowed))
                return fail(failure, REFUSED,
                            "core %u is not here, or not for this program to use; try: of %s", core,
                            write_numbers(&cores->allowed, allowed, sizeof allowed));
            CPU_SET(core, named);
        }
        if (!*at) return true;
    }
}

uint32_t cores_named(const Cores *cores, const char *text, cpu_set_t *named, Failure *failure) {
    *named = cores->fast;
    if (!*text || strcmp(text, "fast") == 0) return cores->fast_count;
    if (strcmp(text, "slow") == 0) {
        *named = cores->slow;
        if (CPU_COUNT(named) == 0)
            fail(failure, REFUSED, "the board has no slow cores, or its kernel does not tell which "
                 "they are; try: cores by number, such as 0-3");
    } else if (!list_cores(cores, text, named, failure)) {
        return 0;
    }
    return (uint32_t)CPU_COUNT(named);
}
