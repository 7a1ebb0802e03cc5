/* The supervisor: one loop over the stream, the worker, its deadline and the client's. */
#ifndef MLC_SUPERVISE_H
#define MLC_SUPERVISE_H

#include "record.h"

/* Serves the stream on two descriptors until its end, leaves no child behind, and returns the
 * process' exit status: 0 after the end of input, 1 when the stream was not understood or the
 * client died. With `records`, greetings have been exchanged, and the stream consists of them. */
int supervise(int input, int output, Records *records);

#endif
