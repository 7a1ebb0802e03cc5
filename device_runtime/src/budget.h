/* The memory budget: how much tensors and blobs may take together, those of all sessions that one
 * program serves, so that the board itself stays alive. */
#ifndef MLC_BUDGET_H
#define MLC_BUDGET_H

#include "failure.h"

#include <stddef.h>
#include <stdint.h>

enum { MAX_WHO = 80 };

/* The budget in bytes: three quarters of the board's memory, unless it is set. */
uint64_t budget_bytes(void);

/* Sets it: "500M", or with K, G or no letter. False where the text is no such size. */
bool budget_set(const char *text);

/* From now on the processes that this one forks take from one budget, each under a name once it has
 * joined. What a process has taken counts until it gives it back or ends. False after a failure, or
 * when too many have joined. */
bool budget_share(void);
bool budget_join(const char *who);

/* In a process that is not to see the budget: what it frees is another's. */
void budget_let_go(void);

/* Takes `size` bytes for `what`, a name for messages; false after a failure, which says who has the
 * rest. */
bool budget_take(uint64_t size, const char *what, Failure *failure);
void budget_give(uint64_t size);

#endif
