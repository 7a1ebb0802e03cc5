#include "wire.h"

const char PREAMBLE[16] = "\0mlc-runtime\0\r\n"; /* and a NUL */
static const char *const KINDS[] = {"protocol", "refused", "crashed", "timeout", "memory"};

void write_failure(Writer *w, const Failure *failure) {
    write_array(w, 3);
    write_str(w, KINDS[failure->kind]);
    write_str(w, failure->text);
    write_map(w, failure->placed ? 4 : 0);
    if (!failure->placed) return;
    write_str(w, "signal");
    write_str(w, failure->place.signal);
    write_str(w, "kernel");
    write_str(w, failure->place.kernel);
    write_str(w, "layer");
    write_str(w, failure->place.layer);
    write_str(w, "call");
    write_uint(w, failure->place.call);
}
