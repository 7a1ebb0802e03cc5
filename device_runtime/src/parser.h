/* What taking a module's metadata apart shares: module.c does it for kernels, model.c for the model. */
#ifndef MLC_PARSER_H
#define MLC_PARSER_H

#include "module.h"
#include "msgpack.h"

/* The state of taking one section apart. Structures go one after the other into a single mapping;
 * pages of it that are not reached cost nothing. */
typedef struct {
    Reader r;
    uint8_t *free, *end;
    Module *module;
    Failure *failure;
} Parser;

/* Records a failure and makes the rest of the parse quiet. */
void refuse(Parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed memory for `count` of a structure; NULL after a failure. */
void *take(Parser *p, size_t count, size_t size);

/* An array's elements, zeroed; *count is 0 whenever the parse has failed. */
void *take_array(Parser *p, size_t size, uint32_t *count);

/* A string, "" after a failure. */
const char *take_str(Parser *p);

/* An array of parameters: a kernel's, or a model's inputs or outputs (NULL). */
Param *parse_params(Parser *p, const Kernel *kernel, uint32_t *count);

/* The map of a model, and what must hold of it beside the kernels. */
void parse_model(Parser *p);
void check_model(Parser *p);

#endif
