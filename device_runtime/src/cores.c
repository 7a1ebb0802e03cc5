#define _GNU_SOURCE /* sched_getaffinity, CPU_SET */
#include "cores.h"

#include "kernel_text.h"

#include <stdio.h>

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
 * A76 has half, and the same core at a higher clock rarely more than a quarter on top. */
void cores_read(Cores *cores) {
    uint32_t capacity[CPU_SETSIZE] = {0}, most = 0;
    *cores = (Cores){.allowed_count = 0};
    if (sched_getaffinity(0, sizeof cores->allowed, &cores->allowed) != 0)
        CPU_ZERO(&cores->allowed);
    for (unsigned i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &cores->allowed)) continue;
        capacity[i] = capacity_of(i);
        if (capacity[i] > most) most = capacity[i];
        cores->allowed_count++;
    }
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &cores->allowed) && 3 * capacity[i] >= 2 * most) {
            CPU_SET(i, &cores->fast);
            cores->fast_count++;
        }
    if (cores->allowed_count == 0) cores->allowed_count = cores->fast_count = 1;
}
