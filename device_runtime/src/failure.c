#include "failure.h"

#include <stdio.h>
#include <string.h>

void fail_with(Failure *failure, FailureKind kind, const char *format, va_list args) {
    if (failure->failed) return;
    failure->failed = true;
    failure->kind = kind;
    vsnprintf(failure->text, sizeof failure->text, format, args);
}

bool fail(Failure *failure, FailureKind kind, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fail_with(failure, kind, format, args);
    va_end(args);
    return false;
}

void place_text(const Place *place, bool in_model, char *text, size_t size) {
    if (in_model)
        snprintf(text, size, "kernel '%s' (layer '%s', call %u)", place->kernel, place->layer,
                 place->call);
    else
        snprintf(text, size, "kernel '%s'", place->kernel);
}

void failure_mend(Failure *failure) {
    uint8_t failed, placed; /* a bool that is neither true nor false may not be read as one */
    memcpy(&failed, &failure->failed, 1);
    memcpy(&placed, &failure->placed, 1);
    failure->failed = failed != 0;
    failure->placed = placed != 0;
    failure->text[sizeof failure->text - 1] = 0;
    failure->place.signal[sizeof failure->place.signal - 1] = 0;
    failure->place.kernel[sizeof failure->place.kernel - 1] = 0;
    failure->place.layer[sizeof failure->place.layer - 1] = 0;
    if ((unsigned)failure->kind > MEMORY) failure->kind = CRASHED;
}
