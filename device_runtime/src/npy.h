/* Tensors as files of numpy's (.npy): versions 1 to 3 are read, little-endian and in C order;
 * version 1 is written. */
#ifndef MLC_NPY_H
#define MLC_NPY_H

#include "failure.h"
#include "tensor.h"

typedef struct {
    TensorType type;
    Bytes content; /* points into the file's bytes */
} Npy;

/* `what` names the file in messages. */
bool npy_read(Npy *npy, const void *data, size_t size, const char *what, Failure *failure);

/* The file's bytes before the content, into `head`; how many. bfloat16 is written as V2. */
enum { MAX_NPY_HEAD = 512 };
size_t npy_head(const TensorType *type, char head[MAX_NPY_HEAD]);

#endif
