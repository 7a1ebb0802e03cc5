/* The supervisor: one loop over the stream, the worker and its deadline. */
#ifndef MLC_SUPERVISE_H
#define MLC_SUPERVISE_H

/* Serves the stream on two descriptors until its end, leaves no child behind, and returns the
 * process' exit status: 0 after the end of input, 1 when the stream was not understood. */
int supervise(int input, int output);

#endif
