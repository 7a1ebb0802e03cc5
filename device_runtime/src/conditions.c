#define _GNU_SOURCE /* syscall(), cpu_set_t */
#include "conditions.h"

#include "kernel_text.h"
#include "segment.h"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In the order in which they are read before a sample. */
enum {
    LOAD,
    THROTTLED,
    ZONE,
    RESIDENT = 10,
    RESIDENT_MOST,
    POWER,
    ENERGY,
    CORE,
    CLOCK,
    CLOCK_LIMIT,
    CLOCK_MOST,
    VOLUNTARY,
    INVOLUNTARY,
    FAULTS,
    CPU_TIME,
    COUNTER
};

static const char *const NAMES[FACTS] = {
    "load_percent",   "throttled",    "zone0_mc",       "zone1_mc",
    "zone2_mc",       "zone3_mc",     "zone4_mc",       "zone5_mc",
    "zone6_mc",       "zone7_mc",     "memory_kb",      "memory_most_kb",
    "power_uw",       "energy_uj",    "core",           "clock_khz",
    "clock_limit_khz", "clock_most_khz", "voluntary_switches", "involuntary_switches",
    "major_faults",   "cpu_us",       "cycles",         "instructions",
    "cache_misses"};

const char *conditions_name(uint32_t fact) { return NAMES[fact]; }

/* ---- Files ---- */

/* A descriptor that stays open, so that a reading is one system call and no path is needed. */
typedef struct {
    bool opened; /* or else there is no such file */
    int fd;
} File;

enum { MAX_CORES = 64, MAX_SENSORS = 16 }; /* that are looked at */

static File files[CORE], clocks[CLOCK_MOST - CLOCK + 1][MAX_CORES];

#define CPUFREQ SYSTEM_ROOT "/sys/devices/system/cpu/cpu%d/cpufreq/"
#define SENSOR SYSTEM_ROOT "/sys/class/hwmon/hwmon%d/"
#define PACKAGE SYSTEM_ROOT "/sys/class/powercap/intel-rapl:0/energy_uj"

static const char *path_of(uint32_t fact) {
    switch (fact) {
    case LOAD:
        return SYSTEM_ROOT "/proc/loadavg";
    case THROTTLED:
        return SYSTEM_ROOT "/sys/devices/platform/soc/soc:firmware/get_throttled";
    case RESIDENT:
        return SYSTEM_ROOT "/proc/self/statm";
    case POWER:
        return SENSOR "power1_input";
    case ENERGY:
        return SENSOR "energy1_input";
    case CLOCK:
        return CPUFREQ "scaling_cur_freq";
    case CLOCK_LIMIT:
        return CPUFREQ "scaling_max_freq";
    case CLOCK_MOST:
        return CPUFREQ "cpuinfo_max_freq";
    default:
        return SYSTEM_ROOT "/sys/class/thermal/thermal_zone%d/temp";
    }
}

/* Digits of `base`, passing over a decimal point: 0.52 is 52. -1 for what is no such number. */
static int64_t number_in(const char *text, int base) {
    int64_t value = -1;
    for (; value < INT64_MAX / 32; text++) {
        int digit = *text >= '0' && *text <= '9'   ? *text - '0'
                    : *text >= 'a' && *text <= 'f' ? *text - 'a' + 10
                                                   : base;
        if (digit < base)
            value = (value < 0 ? 0 : value * base) + digit;
        else if (*text != '.' && *text != 'x')
            break;
    }
    return value;
}

static File file_of(int fd) { return (File){fd >= 0, fd}; }

static File open_file(uint32_t fact, int number) {
    char path[256];
    snprintf(path, sizeof path, path_of(fact), number);
    return file_of(open(path, O_RDONLY | O_CLOEXEC));
}

static int64_t read_file(const File *file, uint32_t fact) {
    char text[32];
    ssize_t got = file->opened ? pread(file->fd, text, sizeof text - 1, 0) : -1;
    if (got < 0) return -1;
    text[got] = 0;
    return number_in(text, fact == THROTTLED ? 16 : 10);
}

/* The first sensor of a kind; for energy, the CPU's own counter counts as one. */
static File open_sensor(uint32_t fact) {
    File found = {0};
    for (int number = 0; number < MAX_SENSORS && !found.opened; number++)
        found = open_file(fact, number);
    if (!found.opened && fact == ENERGY) found = file_of(open(PACKAGE, O_RDONLY | O_CLOEXEC));
    return found;
}

/* ---- The process ---- */

/* Kilobytes that it has in memory: the second number of statm, in pages. */
static int64_t resident(void) {
    char text[64];
    ssize_t got = files[RESIDENT].opened ? pread(files[RESIDENT].fd, text, sizeof text - 1, 0) : -1;
    if (got < 0) return -1;
    text[got] = 0;
    const char *second = strchr(text, ' ');
    int64_t pages = second ? number_in(second + 1, 10) : -1;
    return pages < 0 ? -1 : pages * (int64_t)(page_size() / 1024);
}

static int64_t core(void) {
    unsigned number;
    return syscall(SYS_getcpu, &number, NULL, NULL) == 0 ? (int64_t)number : -1;
}

static int64_t microseconds(struct timeval time) {
    return (int64_t)time.tv_sec * 1000000 + time.tv_usec;
}

/* Of all its threads. */
static int64_t usage(uint32_t fact) {
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used) != 0) return -1;
    switch (fact) {
    case VOLUNTARY:
        return used.ru_nvcsw;
    case INVOLUNTARY:
        return used.ru_nivcsw;
    case FAULTS:
        return used.ru_majflt;
    case RESIDENT_MOST:
        return used.ru_maxrss;
    default:
        return microseconds(used.ru_utime) + microseconds(used.ru_stime);
    }
}

/* ---- The CPU's counters ---- */

static File counters[FACTS - COUNTER];

static void count_events(void) {
    static const uint64_t EVENTS[FACTS - COUNTER] = {
        PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS, PERF_COUNT_HW_CACHE_MISSES};
    for (unsigned i = 0; i < FACTS - COUNTER; i++) {
        struct perf_event_attr event = {
            .type = PERF_TYPE_HARDWARE,
            .size = sizeof event,
            .config = EVENTS[i],
            .read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
            .inherit = 1, /* by the threads that share a kernel's work */
            .exclude_kernel = 1,
            .exclude_hv = 1};
        long fd = syscall(SYS_perf_event_open, &event, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
        counters[i] = file_of((int)fd);
    }
}

/* Where the CPU has fewer counters than are wanted, each counts for a part of the time only. */
static int64_t counted(const File *counter) {
    uint64_t now[3]; /* count, nanoseconds wanted, nanoseconds counted */
    if (!counter->opened ||
        read(counter->fd, now, sizeof now) != (ssize_t)sizeof now || now[2] == 0)
        return -1;
    if (now[2] >= now[1]) return (int64_t)now[0];
    return (int64_t)((double)now[0] * ((double)now[1] / (double)now[2]));
}

/* ---- All of it ---- */

void conditions_open(void) {
    count_events();
    for (uint32_t fact = 0; fact <= RESIDENT; fact++) files[fact] = open_file(fact, (int)fact - ZONE);
    for (uint32_t fact = POWER; fact <= ENERGY; fact++) files[fact] = open_sensor(fact);
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (uint32_t fact = CLOCK; fact <= CLOCK_MOST; fact++)
        for (unsigned i = 0; i < MAX_CORES; i++)
            if (CPU_ISSET(i, &allowed)) clocks[fact - CLOCK][i] = open_file(fact, (int)i);
}

static int64_t read_fact(uint32_t fact) {
    int64_t here;
    switch (fact) {
    case RESIDENT:
        return resident();
    case CORE:
        return core();
    case CLOCK:
    case CLOCK_LIMIT:
    case CLOCK_MOST:
        here = core();
        return here < 0 || here >= MAX_CORES ? -1 : read_file(&clocks[fact - CLOCK][here], fact);
    case RESIDENT_MOST:
    case VOLUNTARY:
    case INVOLUNTARY:
    case FAULTS:
    case CPU_TIME:
        return usage(fact);
    default:
        return fact < CORE ? read_file(&files[fact], fact)
                           : counted(&counters[fact - COUNTER]);
    }
}

void conditions_read(Conditions *conditions, bool before) {
    for (uint32_t i = 0; i < FACTS; i++) {
        uint32_t fact = before ? i : FACTS - 1 - i;
        conditions->facts[fact] = read_fact(fact);
    }
}
