#include "tensor.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {[NO_DTYPE] = {"none", 1}, [FLOAT16] = {"float16", 2},   [FLOAT32] = {"float32", 4},
              [FLOAT64] = {"float64", 8}, [BFLOAT16] = {"bfloat16", 2}, [INT8] = {"int8", 1},
              [INT16] = {"int16", 2},     [INT32] = {"int32", 4},       [INT64] = {"int64", 8},
              [UINT8] = {"uint8", 1},     [UINT16] = {"uint16", 2},     [UINT32] = {"uint32", 4},
              [UINT64] = {"uint64", 8},   [BOOL] = {"bool", 1}};

static Tensor tensors[MAX_TENSORS];
static unsigned slots; /* the highest that was in use, and one */

DType dtype_of(Bytes name) {
    for (unsigned i = 1; i < sizeof dtypes / sizeof *dtypes; i++)
        if (bytes_are(name, dtypes[i].name)) return (DType)i;
    return NO_DTYPE;
}

const char *dtype_name(DType dtype) { return dtypes[dtype].name; }

size_t dtype_bytes(DType dtype) { return dtypes[dtype].bytes; }

bool tensor_bytes(const TensorType *type, uint64_t *bytes) {
    uint64_t product = dtype_bytes(type->dtype);
    bool empty = false, fits = true;
    for (uint32_t i = 0; i < type->rank; i++) {
        uint64_t extent = type->shape[i];
        if (extent == 0)
            empty = true;
        else if (fits && extent <= (uint64_t)INT64_MAX / product)
            product *= extent;
        else
            fits = false; /* unless it is empty, which a later dimension may say */
    }
    *bytes = empty ? 0 : product;
    return empty || fits;
}

Tensor *tensor_new(const TensorType *type, Failure *failure) {
    static uint32_t turn; /* in the id, above the slot's number, so that ids do not come back */
    uint64_t bytes;
    unsigned slot = 0;
    while (slot < MAX_TENSORS && tensors[slot].id) slot++;
    if (slot == MAX_TENSORS || turn >= UINT32_MAX / MAX_TENSORS - 1) {
        fail(failure, REFUSED, "there are %d tensors already; try: free some", MAX_TENSORS);
        return NULL;
    }
    if (!tensor_bytes(type, &bytes)) bytes = UINT64_MAX;
    Tensor *t = &tensors[slot];
    if (!segment_new(&t->segment, bytes, "a tensor", failure)) return NULL;
    segment_fix(&t->segment);
    if (slot >= slots) slots = slot + 1;
    t->id = ++turn * MAX_TENSORS + slot;
    t->type = *type;
    return t;
}

unsigned tensor_slots(void) { return slots; }

Tensor *tensor_slot(unsigned slot) { return tensors[slot].id ? &tensors[slot] : NULL; }

Tensor *tensor_find(uint64_t id, Failure *failure) {
    Tensor *t = &tensors[id % MAX_TENSORS];
    if (t->id && t->id == id && !t->freed) return t;
    if (failure)
        fail(failure, REFUSED, "there is no tensor %llu on the board; was it freed?",
             (unsigned long long)id);
    return NULL;
}

void tensor_remove(Tensor *tensor) {
    segment_free(&tensor->segment);
    *tensor = (Tensor){0};
}

/* ---- Filling ---- */

static uint64_t xorshift(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1d;
}

/* binary16 of k / 1024 for -1024 <= k <= 1024: exact. */
static uint16_t half_of(int k) {
    unsigned magnitude = (unsigned)(k < 0 ? -k : k), sign = k < 0 ? 0x8000 : 0;
    if (magnitude == 0) return 0;
    unsigned exponent = 15; /* of 1.0, biased */
    while (magnitude < 1024) {
        magnitude <<= 1;
        exponent--;
    }
    return (uint16_t)(sign | exponent << 10 | (magnitude & 0x3ff));
}

/* Element from the top bits of x: floats k / 2^n - 1 with as many bits as the dtype holds. */
static void random_element(uint8_t *to, DType dtype, uint64_t x) {
    float single;
    double wide;
    uint32_t bits;
    uint16_t half;
    switch (dtype) {
    case FLOAT32:
        single = (float)((int32_t)(x >> 40) - (1 << 23)) * 0x1p-23f;
        memcpy(to, &single, 4);
        break;
    case FLOAT64:
        wide = (double)((int64_t)(x >> 11) - ((int64_t)1 << 52)) * 0x1p-52;
        memcpy(to, &wide, 8);
        break;
    case FLOAT16:
        half = half_of((int)(x >> 53) - 1024);
        memcpy(to, &half, 2);
        break;
    case BFLOAT16: /* the upper half of a float32, exact with eight bits */
        single = (float)((int32_t)(x >> 56) - 128) * 0x1p-7f;
        memcpy(&bits, &single, 4);
        half = (uint16_t)(bits >> 16);
        memcpy(to, &half, 2);
        break;
    case BOOL:
        *to = (uint8_t)(x >> 63);
        break;
    default: { /* integers over their whole range, least significant byte first */
        size_t bytes = dtype_bytes(dtype);
        for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(x >> (64 - 8 * bytes + 8 * i));
    }
    }
}

Fill fill_begin(Tensor *tensor, bool random, uint64_t seed) {
    return (Fill){.tensor = tensor, .random = random, .state = seed ? seed : 0x9e3779b97f4a7c15};
}

void fill_slice(Fill *fill, size_t bytes) {
    if (!fill->tensor) return;
    const Segment *segment = &fill->tensor->segment;
    size_t left = segment->size - fill->done;
    if (bytes > left) bytes = left;
    uint8_t *at = segment->data + fill->done;
    if (!fill->random) {
        memset(at, 0, bytes);
        fill->done += bytes;
    } else {
        DType dtype = fill->tensor->type.dtype;
        size_t element = dtype_bytes(dtype);
        for (size_t i = 0; i + element <= bytes; i += element, fill->done += element)
            random_element(at + i, dtype, xorshift(&fill->state));
    }
    if (fill->done == segment->size) fill->tensor = NULL;
}
