/* How an operation says that it did not succeed: what went wrong, where, and what mends it. */
#ifndef MLC_FAILURE_H
#define MLC_FAILURE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One for each of ERROR_KINDS on the wire, in that order. */
typedef enum { PROTOCOL, REFUSED, CRASHED, TIMEOUT, MEMORY } FailureKind;

/* The part of a module that was at work. `signal` is empty when no signal ended it. */
typedef struct {
    char signal[16];
    char kernel[128];
    char layer[256];
    uint32_t call;
} Place;

typedef struct {
    bool failed;
    bool placed; /* place is known */
    FailureKind kind;
    char text[640];
    Place place;
} Failure;

enum { MAX_PLACE_TEXT = 448 };

/* "kernel 'conv2d_1'", and of a model's "(layer 'features.3', call 3)" after it. */
void place_text(const Place *place, bool in_model, char *text, size_t size);

/* Records the first failure, keeps it against later ones, and returns false. */
bool fail(Failure *failure, FailureKind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void fail_with(Failure *failure, FailureKind kind, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* Of one that came from a process whose memory a kernel may have written over: its strings end, and
 * its kind and its bools are some. */
void failure_mend(Failure *failure);

#endif
