#include "failure.h"

#include <stdarg.h>
#include <stdio.h>

bool fail(Failure *failure, FailureKind kind, const char *format, ...) {
    if (failure->failed) return false;
    failure->failed = true;
    failure->kind = kind;
    va_list args;
    va_start(args, format);
    vsnprintf(failure->text, sizeof failure->text, format, args);
    va_end(args);
    return false;
}
