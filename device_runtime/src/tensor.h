/* Tensors on the board: a dtype, a shape, and memory that outlives a worker. */
#ifndef MLC_TENSOR_H
#define MLC_TENSOR_H

#include "failure.h"
#include "msgpack.h"
#include "segment.h"

enum { MAX_RANK = 12, MAX_TENSORS = 1024 };

typedef enum {
    NO_DTYPE,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    BFLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    BOOL
} DType;

DType dtype_of(Bytes name); /* NO_DTYPE when none has that name */
const char *dtype_name(DType dtype);
size_t dtype_bytes(DType dtype);

typedef struct {
    DType dtype;
    uint32_t rank;
    uint64_t shape[MAX_RANK];
} TensorType;

/* Bytes of a tensor of that type; false when they are more than 2^63. */
bool tensor_bytes(const TensorType *type, uint64_t *bytes);

typedef struct {
    uint32_t id; /* 0: no tensor here */
    TensorType type;
    Segment segment;
    bool in_worker; /* the worker has it mapped */
    uint32_t user;  /* then: the last module that was given it */
    bool freed;     /* its id is gone; its memory goes once the worker has let go of it */
} Tensor;

/* Returns NULL after a failure. Ids are not used again within a session. */
Tensor *tensor_new(const TensorType *type, Failure *failure);
Tensor *tensor_find(uint64_t id, Failure *failure); /* `failure` may be NULL */
unsigned tensor_slots(void);        /* beyond these there never was one */
Tensor *tensor_slot(unsigned slot); /* NULL when empty; freed ones too */
void tensor_remove(Tensor *tensor);

/* A fill goes in slices, since a large one takes seconds and heartbeats must not wait for it. */
typedef struct {
    Tensor *tensor; /* NULL when there is nothing (more) to fill */
    bool random;
    uint64_t state; /* of xorshift64* */
    size_t done;    /* bytes */
} Fill;

Fill fill_begin(Tensor *tensor, bool random, uint64_t seed);
void fill_slice(Fill *fill, size_t bytes);

#endif
