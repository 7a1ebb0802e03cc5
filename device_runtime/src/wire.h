/* What every stream has in common, before and after there is a session. mlc_rpc/wire.py describes
 * the wire. */
#ifndef MLC_WIRE_H
#define MLC_WIRE_H

#include "failure.h"
#include "msgpack.h"

enum { WIRE_MAJOR = 1, WIRE_MINOR = 1 };

#define RUNTIME_VERSION "0.1.0"

extern const char PREAMBLE[16]; /* what a stream begins with */

void write_failure(Writer *w, const Failure *failure); /* [kind, text, details] */

#endif
