/* `mlc-runtime run`: a saved model on this board, from files to files, without a laptop. */
#ifndef MLC_RUN_COMMAND_H
#define MLC_RUN_COMMAND_H

#define RUN_USAGE                                                                               \
    "run MODEL.mlc [--input [NAME=]FILE.npy]... [--output DIR] [--threads N] [--cores C] "        \
    "[--timeout SECONDS] [--time | --stream]"

enum { RUN_SECONDS = 600 }; /* without --timeout, as the laptop's command has it (driver/deploy.py) */

/* With --stream it runs once for each frame on standard input, and writes each result to standard
 * output: the bytes of the inputs that no --input gives, and of the outputs that are not states, in the
 * model's order. States go from each run to the next, and begin as zero, or as --input says.
 *
 * After --timeout the run is ended: all runs of --time together, each frame of --stream by itself.
 * Names from the model's file are printed with their unprintable bytes escaped.
 *
 * Arguments are those after "run". Returns the exit status: 0 the model ran and its outputs are
 * written, 1 it did not (the reason stands on standard error), 2 bad usage. */
int run_command(int count, char **arguments);

#endif
