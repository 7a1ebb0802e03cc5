/* What a request asks the worker to run. */
#ifndef MLC_RUN_ORDER_H
#define MLC_RUN_ORDER_H

#include "session.h"

/* The kernel, arguments and options of a `run` or a `time`, after the module. False after a
 * failure, which the request then has. */
bool read_run_order(Request *q, RunOrder *run, uint32_t *timeout_ms);

#endif
