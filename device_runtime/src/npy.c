#include "npy.h"

#include <stdio.h>
#include <string.h>

/* How numpy writes a dtype: a letter for byte order, one for the kind, and the bytes. */
static const char *const descriptions[] = {
    [FLOAT16] = "<f2", [FLOAT32] = "<f4", [FLOAT64] = "<f8", [BFLOAT16] = "<V2", [INT8] = "|i1",
    [INT16] = "<i2",   [INT32] = "<i4",   [INT64] = "<i8",   [UINT8] = "|u1",    [UINT16] = "<u2",
    [UINT32] = "<u4",  [UINT64] = "<u8",  [BOOL] = "|b1"};

/* ---- The header: a Python dictionary ---- */

typedef struct {
    const char *at, *end;
    bool bad; /* the text is none that numpy writes */
} Text;

static void skip_blanks(Text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t')) t->at++;
}

/* Takes a character after blanks, when it is this one. */
static bool take(Text *t, char c) {
    skip_blanks(t);
    if (t->bad || t->at == t->end || *t->at != c) return false;
    t->at++;
    return true;
}

static void need(Text *t, char c) {
    if (!take(t, c)) t->bad = true;
}

static Bytes quoted(Text *t) {
    skip_blanks(t);
    char quote = t->at < t->end ? *t->at : 0;
    Bytes nothing = {(const uint8_t *)t->end, 0};
    if (t->bad || (quote != '\'' && quote != '"')) {
        t->bad = true;
        return nothing;
    }
    const char *begin = ++t->at;
    while (t->at < t->end && *t->at != quote) t->at++;
    Bytes text = {(const uint8_t *)begin, (size_t)(t->at - begin)};
    need(t, quote);
    return t->bad ? nothing : text;
}

static bool word(Text *t, const char *text) {
    size_t size = strlen(text);
    skip_blanks(t);
    if (t->bad || (size_t)(t->end - t->at) < size || memcmp(t->at, text, size) != 0) return false;
    t->at += size;
    return true;
}

static uint64_t number(Text *t) {
    uint64_t value = 0;
    skip_blanks(t);
    const char *begin = t->at;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
        uint64_t digit = (uint64_t)(*t->at - '0');
        if (value > (INT64_MAX - digit) / 10)
            t->bad = true;
        else
            value = value * 10 + digit;
    }
    if (t->at == begin) t->bad = true;
    return value;
}

static void shape(Text *t, TensorType *type) {
    need(t, '(');
    while (!t->bad && !take(t, ')')) {
        if (type->rank == MAX_RANK) {
            t->bad = true;
            return;
        }
        type->shape[type->rank++] = number(t);
        if (take(t, ',')) continue;
        need(t, ')');
        return;
    }
}

typedef struct {
    Bytes description;
    bool fortran_order, has_description, has_order, has_shape;
    TensorType type;
} Header;

static bool read_header(Header *h, Text t) {
    need(&t, '{');
    while (!t.bad && !take(&t, '}')) {
        Bytes key = quoted(&t);
        need(&t, ':');
        if (bytes_are(key, "descr") && !h->has_description) { /* each of them once */
            h->description = quoted(&t);
            h->has_description = true;
        } else if (bytes_are(key, "fortran_order") && !h->has_order) {
            h->fortran_order = word(&t, "True");
            if (!h->fortran_order && !word(&t, "False")) t.bad = true;
            h->has_order = true;
        } else if (bytes_are(key, "shape") && !h->has_shape) {
            shape(&t, &h->type);
            h->has_shape = true;
        } else {
            t.bad = true;
        }
        if (take(&t, ',')) continue;
        need(&t, '}');
        break;
    }
    return !t.bad && h->has_description && h->has_order && h->has_shape;
}

/* Byte order says nothing where an element is one byte, or has no type. */
static DType described(Bytes b) {
    for (unsigned i = FLOAT16; i <= BOOL; i++) {
        const char *own = descriptions[i];
        bool ordered = own[0] == '<' && own[1] != 'V';
        if (b.size == 3 && memcmp(b.data + 1, own + 1, 2) == 0 &&
            (!ordered || b.data[0] == '<' || b.data[0] == '='))
            return (DType)i;
    }
    return NO_DTYPE;
}

/* ---- Reading ---- */

bool npy_read(Npy *npy, const void *data, size_t size, const char *what, Failure *failure) {
    static const uint8_t magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    const uint8_t *at = data;
    *npy = (Npy){0};
    if (size < 10 || memcmp(at, magic, sizeof magic) != 0)
        return fail(failure, REFUSED, "%s is not a .npy file; try: numpy.save(file, array)", what);
    unsigned version = at[6];
    size_t head = version == 1 ? 10 : 12, length = (size_t)at[8] | (size_t)at[9] << 8;
    if (version < 1 || version > 3)
        return fail(failure, REFUSED, "%s has version %u of the .npy format; 1 to 3 are read", what,
                    version);
    if (version > 1 && size >= head) length |= (size_t)at[10] << 16 | (size_t)at[11] << 24;
    if (size < head || length > size - head)
        return fail(failure, REFUSED, "%s ends in its header", what);
    Header h = {0};
    const char *text = (const char *)at + head;
    if (!read_header(&h, (Text){.at = text, .end = text + length}))
        return fail(failure, REFUSED, "the header of %s is invalid", what);
    h.type.dtype = described(h.description);
    if (h.type.dtype == NO_DTYPE)
        return fail(failure, REFUSED, "%s has elements '%.*s', which are not read; try: astype",
                    what, (int)(h.description.size < 32 ? h.description.size : 32),
                    (const char *)h.description.data);
    if (h.fortran_order && h.type.rank > 1)
        return fail(failure, REFUSED,
                    "%s is in Fortran order; try: numpy.ascontiguousarray before numpy.save", what);
    uint64_t bytes, have = size - head - length;
    if (!tensor_bytes(&h.type, &bytes) || bytes != have)
        return fail(failure, REFUSED, "%s holds %llu bytes of elements, which is not what its "
                    "shape asks for", what, (unsigned long long)have);
    *npy = (Npy){.type = h.type, .content = {at + head + length, (size_t)bytes}};
    return true;
}

/* ---- Writing ---- */

size_t npy_head(const TensorType *type, char head[MAX_NPY_HEAD]) {
    enum { PREFIX = 10, ALIGNMENT = 64 };
    char *text = head + PREFIX;
    size_t room = MAX_NPY_HEAD - PREFIX, used = 0;
    used += (size_t)snprintf(text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                             descriptions[type->dtype]);
    for (uint32_t i = 0; i < type->rank; i++) /* MAX_RANK numbers of 20 digits fit */
        used += (size_t)snprintf(text + used, room - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)type->shape[i]);
    used += (size_t)snprintf(text + used, room - used, "%s), }", type->rank == 1 ? "," : "");
    size_t total = (PREFIX + used + ALIGNMENT) / ALIGNMENT * ALIGNMENT; /* one more: the newline */
    memset(text + used, ' ', total - PREFIX - used - 1);
    head[total - 1] = '\n';
    size_t length = total - PREFIX;
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = (char)(length & 0xff);
    head[9] = (char)(length >> 8);
    return total;
}
