/* The conditions under which a sample is taken: clock, temperatures, load, memory, power, what the
 * system did to this process, and what the CPU counted for it. Each is a number with a name (mlc_rpc/wire.py);
 * what they mean for a timing is the client's to judge. */
#ifndef MLC_CONDITIONS_H
#define MLC_CONDITIONS_H

#include <stdbool.h>
#include <stdint.h>

enum { FACTS = 25 };

typedef struct {
    int64_t facts[FACTS]; /* below 0 where not known */
} Conditions;

/* Opens the system's files, and has the CPU count from now on, for this thread and those that it
 * will make; to be called before the rights are given up that this takes. What is not possible is
 * not known later. */
void conditions_open(void);

const char *conditions_name(uint32_t fact);

/* Before a sample, what the sample itself changes is read last, and after it first, so that little
 * of the reading is counted with it. Takes some ten microseconds. */
void conditions_read(Conditions *conditions, bool before);

#endif
