/* Calls the kernels of calls.h in turn, each in two ranges of tasks. Reads each parameter's bytes
 * from stdin. Writes per kernel its status, whether all guard bytes are whole, and its parameters. */
#include "guarded.h"

#include KERNELS_H

enum { MOST = 64, SCALARS = 2 };

typedef struct {
    mlc_kernel *kernel;
    int count;          /* of the parameters */
    size_t bytes[MOST]; /* of each */
    int64_t scalars[SCALARS];
    int32_t tasks, first; /* tasks, and how many of them the first call runs */
    size_t workspace;
} Call;

#include "calls.h"

static void run(const Call *call) {
    void *data[MOST] = {0};
    for (int n = 0; n < call->count; ++n) {
        data[n] = guarded(call->bytes[n]);
        read_exactly(data[n], call->bytes[n]);
    }
    unsigned char *workspace = guarded(call->workspace);
    const mlc_args args = {data, call->scalars, workspace};
    int32_t status = call->kernel(&args, 0, call->first);
    if (status == 0 && call->first < call->tasks)
        status = call->kernel(&args, call->first, call->tasks);
    int whole = intact(workspace, call->workspace);
    for (int n = 0; n < call->count; ++n) whole = whole && intact(data[n], call->bytes[n]);
    answer(status, whole);
    for (int n = 0; n < call->count; ++n) {
        fwrite(data[n], 1, call->bytes[n], stdout);
        freed(data[n]);
    }
    freed(workspace);
}

int main(void) {
    for (size_t n = 0; n < sizeof CALLS / sizeof *CALLS; ++n) run(&CALLS[n]);
    return 0;
}
