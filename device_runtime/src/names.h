/* Names one after the other, each with its NUL: a table of pointers to them would be twice as large. */
#ifndef MLC_NAMES_H
#define MLC_NAMES_H

#include <string.h>

#define NUL_AFTER(name) name "\0"

static inline const char *name_after(const char *name) { return name + strlen(name) + 1; }

/* The place of a name in `names`, which an empty one ends; -1 if it is not there. */
static inline int name_index(const char *names, const char *name) {
    for (int i = 0; *names; names = name_after(names), i++)
        if (strcmp(names, name) == 0) return i;
    return -1;
}

static inline const char *name_at(const char *names, size_t index) {
    while (index--) names = name_after(names);
    return names;
}

#endif
