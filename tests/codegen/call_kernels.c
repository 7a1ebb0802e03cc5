/* Calls the kernels of calls.h in turn: reads each parameter's bytes from stdin, runs the tasks in
 * two halves, writes the parameters back to stdout. Every parameter and workspace is allocated
 * by itself, in its exact size, so that AddressSanitizer sees an access beyond it. */

#include <stdio.h>
#include <stdlib.h>

#include KERNELS_H

enum { MOST = 8 };

typedef struct {
    mlc_kernel *kernel;
    size_t bytes[MOST]; /* of each parameter; 0 ends them */
    int64_t scalars[MOST];
    int32_t tasks;
    size_t workspace;
} Call;

#include "calls.h"

static void *allocated(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

static int run(const Call *call) {
    void *data[MOST] = {0};
    int count = 0;
    for (; count < MOST && call->bytes[count]; ++count) {
        data[count] = allocated(call->bytes[count]);
        if (fread(data[count], 1, call->bytes[count], stdin) != call->bytes[count]) {
            fprintf(stderr, "input ends early\n");
            return 1;
        }
    }
    void *const workspace = allocated(call->workspace);
    const mlc_args args = {data, call->scalars, workspace};
    const int32_t half = call->tasks / 2;
    if (call->kernel(&args, 0, half > 0 ? half : call->tasks) != 0 ||
        (half > 0 && call->kernel(&args, half, call->tasks) != 0)) {
        fprintf(stderr, "a kernel returned an error\n");
        return 1;
    }
    free(workspace);
    for (int n = 0; n < count; ++n) {
        fwrite(data[n], 1, call->bytes[n], stdout);
        free(data[n]);
    }
    return 0;
}

int main(void) {
    for (size_t n = 0; n < sizeof CALLS / sizeof *CALLS; ++n) {
        if (run(&CALLS[n]) != 0) {
            fprintf(stderr, "in call %d\n", (int)n);
            return 1;
        }
    }
    return 0;
}
