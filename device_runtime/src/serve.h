/* The methods of the wire, for a session. */
#ifndef MLC_SERVE_H
#define MLC_SERVE_H

#include "session.h"

extern const Method METHODS[]; /* the last has no name */

#endif
