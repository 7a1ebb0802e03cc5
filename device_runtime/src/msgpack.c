#include "msgpack.h"

#include <string.h>

/* ---- Tokens: what both the reader and the scanner are made of ---- */

typedef enum { NIL, BOOLEAN, UINT, NEGATIVE, FLOAT, STR, BIN, ARRAY, MAP, EXT, INVALID } Type;

typedef struct {
    Type type;
    uint64_t value; /* of a bool or an integer (two's complement when NEGATIVE); bits of a float;
                       bytes in the body of a str, bin or ext; elements of an array or a map */
    unsigned width; /* bytes that encode it: distinguishes float32 from float64 */
} Token;

static uint64_t big_endian(const uint8_t *at, unsigned size) {
    uint64_t value = 0;
    for (unsigned i = 0; i < size; i++) value = value << 8 | at[i];
    return value;
}

static bool has_body(Type type) { return type == STR || type == BIN || type == EXT; }

/* Decodes a token's head. Returns its bytes, or 0 when `have` are too few to tell. */
static size_t token_head(const uint8_t *at, size_t have, Token *t) {
    static const struct {
        uint8_t type, width;
    } heads[0xe0 - 0xc0] = {
        {NIL, 0},  {INVALID, 0},  {BOOLEAN, 0},  {BOOLEAN, 0},  {BIN, 1},      {BIN, 2},
        {BIN, 4},  {EXT, 1},      {EXT, 2},      {EXT, 4},      {FLOAT, 4},    {FLOAT, 8},
        {UINT, 1}, {UINT, 2},     {UINT, 4},     {UINT, 8},     {NEGATIVE, 1}, {NEGATIVE, 2},
        {NEGATIVE, 4}, {NEGATIVE, 8}, {EXT, 0},  {EXT, 0},      {EXT, 0},      {EXT, 0},
        {EXT, 0},  {STR, 1},      {STR, 2},      {STR, 4},      {ARRAY, 2},    {ARRAY, 4},
        {MAP, 2},  {MAP, 4}};
    if (have == 0) return 0;
    uint8_t first = at[0];
    *t = (Token){.type = UINT, .value = first};
    if (first < 0x80) return 1;
    if (first < 0x90) return *t = (Token){.type = MAP, .value = first & 0x0f}, 1;
    if (first < 0xa0) return *t = (Token){.type = ARRAY, .value = first & 0x0f}, 1;
    if (first < 0xc0) return *t = (Token){.type = STR, .value = first & 0x1f}, 1;
    if (first >= 0xe0) {
        *t = (Token){.type = NEGATIVE, .value = 0xffffffffffffff00 | first};
        return 1;
    }
    t->type = (Type)heads[first - 0xc0].type;
    t->width = heads[first - 0xc0].width;
    if (have < 1 + (size_t)t->width) return 0;
    t->value = big_endian(at + 1, t->width);
    if (t->type == BOOLEAN) t->value = first == 0xc3;
    if (t->type == NEGATIVE) {
        uint64_t sign = (uint64_t)1 << (8 * t->width - 1);
        t->value = (t->value ^ sign) - sign;
        if (!(t->value >> 63)) t->type = UINT;
    }
    if (t->type == EXT) { /* its body begins with the byte that says which extension it is */
        t->value = t->width ? t->value + 1 : ((uint64_t)1 << (first - 0xd4)) + 1;
    }
    return 1 + (size_t)t->width;
}

/* ---- Reader ---- */

Reader reader_of(const void *data, size_t size) {
    return (Reader){.at = data, .end = (const uint8_t *)data + size};
}

void read_fail(Reader *r, const char *why) {
    if (!r->why) r->why = why;
    r->at = r->end; /* every later read fails too, and quietly */
}

/* Takes a token's head; its body, if it has one, is known to be there when `whole`. */
static Token next(Reader *r, bool whole) {
    Token t = {.type = INVALID};
    size_t have = (size_t)(r->end - r->at);
    size_t head = r->why ? 0 : token_head(r->at, have, &t);
    if (head == 0) {
        read_fail(r, "ends too early");
        return (Token){.type = INVALID};
    }
    have -= head;
    bool counted = has_body(t.type) ? whole : t.type == ARRAY || t.type == MAP;
    if (t.type == INVALID || (counted && t.value > have)) {
        read_fail(r, t.type == INVALID ? "is not msgpack" : "ends too early");
        return (Token){.type = INVALID};
    }
    r->at += head;
    return t;
}

static Token expect(Reader *r, Type type, const char *why) {
    Token t = next(r, true);
    if (t.type == type) return t;
    read_fail(r, why);
    return (Token){.type = INVALID};
}

static Bytes body(Reader *r, Token t) {
    Bytes b = {r->at, (size_t)t.value};
    r->at += b.size;
    return b;
}

uint64_t read_uint(Reader *r) { return expect(r, UINT, "an unsigned integer is expected").value; }

int64_t read_int(Reader *r) {
    Token t = next(r, true);
    if (t.type == NEGATIVE || (t.type == UINT && t.value <= INT64_MAX)) return (int64_t)t.value;
    read_fail(r, "an integer is expected");
    return 0;
}

bool read_bool(Reader *r) { return expect(r, BOOLEAN, "a boolean is expected").value != 0; }

double read_number(Reader *r) {
    Token t = next(r, true);
    double value = 0;
    if (t.type == UINT) return (double)t.value;
    if (t.type == NEGATIVE) return (double)(int64_t)t.value;
    if (t.type == FLOAT && t.width == 4) {
        uint32_t bits = (uint32_t)t.value;
        float narrow;
        memcpy(&narrow, &bits, sizeof narrow);
        value = (double)narrow;
    } else if (t.type == FLOAT) {
        memcpy(&value, &t.value, sizeof value);
    } else {
        read_fail(r, "a number is expected");
    }
    if (value != value) {
        read_fail(r, "a number is expected, not NaN");
        return 0;
    }
    return value;
}

Bytes read_str(Reader *r) { return body(r, expect(r, STR, "a string is expected")); }

Bytes read_bin(Reader *r) { return body(r, expect(r, BIN, "binary data is expected")); }

bool read_nil(Reader *r) {
    if (r->why || r->at == r->end || *r->at != 0xc0) return false;
    r->at++;
    return true;
}

uint32_t read_array(Reader *r) { return (uint32_t)expect(r, ARRAY, "an array is expected").value; }

uint32_t read_map(Reader *r) { return (uint32_t)expect(r, MAP, "a map is expected").value; }

void read_skip(Reader *r) {
    Scan scan = {0};
    if (r->why) return;
    ScanResult result = scan_message(&scan, r->at, (size_t)(r->end - r->at));
    if (result == SCAN_DONE)
        r->at += scan.at;
    else
        read_fail(r, result == SCAN_BAD ? scan.why : "ends too early");
}

Bytes read_partial_bin(Reader *r, size_t *whole) {
    Token t = next(r, false);
    *whole = 0;
    if (t.type != BIN) {
        read_fail(r, "binary data is expected");
        return (Bytes){r->at, 0};
    }
    *whole = (size_t)t.value;
    size_t have = (size_t)(r->end - r->at);
    t.value = *whole < have ? *whole : have;
    return body(r, t);
}

bool bytes_are(Bytes b, const char *text) {
    return b.size == strlen(text) && memcmp(b.data, text, b.size) == 0;
}

/* ---- Scanner ---- */

static ScanResult bad(Scan *scan, const char *why) {
    scan->why = why;
    return SCAN_BAD;
}

ScanResult scan_message(Scan *scan, const uint8_t *data, size_t have) {
    if (scan->why) return SCAN_BAD;
    if (scan->at == 0) {
        scan->depth = 0;
        scan->left[0] = 1;
    }
    while (scan->left[0] > 0 || scan->depth > 0) {
        if (scan->left[scan->depth] == 0) {
            scan->depth--;
            continue;
        }
        Token t;
        size_t head = scan->at < have ? token_head(data + scan->at, have - scan->at, &t) : 0;
        if (head == 0) return have < MAX_MESSAGE ? SCAN_MORE : bad(scan, "is longer than 1 MiB");
        if (t.type == INVALID) return bad(scan, "is not msgpack");
        uint64_t size = head + (has_body(t.type) ? t.value : 0);
        uint64_t elements = t.type == ARRAY ? t.value : t.type == MAP ? 2 * t.value : 0;
        if (size + elements > MAX_MESSAGE - scan->at) return bad(scan, "is longer than 1 MiB");
        scan->at += (size_t)size;
        scan->left[scan->depth]--;
        if (t.type == ARRAY || t.type == MAP) {
            if (scan->depth == MAX_DEPTH) return bad(scan, "is nested more than 8 levels deep");
            scan->left[++scan->depth] = (uint32_t)elements;
        }
    }
    return scan->at <= have ? SCAN_DONE : SCAN_TAIL;
}

/* ---- Writer ---- */

Writer writer_to(void *data, size_t size) {
    return (Writer){.at = data, .end = (uint8_t *)data + size};
}

static void put(Writer *w, const void *data, size_t size) {
    if ((size_t)(w->end - w->at) < size) w->full = true;
    if (w->full) return;
    memcpy(w->at, data, size);
    w->at += size;
}

/* A first byte and `width` bytes of value, most significant first. */
static void put_token(Writer *w, unsigned first, uint64_t value, unsigned width) {
    uint8_t bytes[9] = {(uint8_t)first};
    for (unsigned i = 0; i < width; i++) bytes[1 + i] = (uint8_t)(value >> (8 * (width - 1 - i)));
    put(w, bytes, 1 + (size_t)width);
}

void write_nil(Writer *w) { put_token(w, 0xc0, 0, 0); }

void write_bool(Writer *w, bool value) { put_token(w, value ? 0xc3 : 0xc2, 0, 0); }

void write_uint(Writer *w, uint64_t value) {
    if (value < 0x80)
        put_token(w, (unsigned)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_token(w, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_token(w, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_token(w, 0xce, value, 4);
    else
        put_token(w, 0xcf, value, 8);
}

void write_double(Writer *w, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_token(w, 0xcb, bits, 8);
}

/* Bytes of the well-formed UTF-8 sequence at the front of text, or 0. A NUL ends any sequence, so
 * this stays within a terminated string. */
static size_t utf8_sequence(const uint8_t *text) {
    unsigned first = text[0];
    if (first < 0x80) return 1;
    size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4) return 0;
    for (size_t i = 1; i < size; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    bool overlong = (first == 0xe0 && text[1] < 0xa0) || (first == 0xf0 && text[1] < 0x90);
    bool surrogate = first == 0xed && text[1] >= 0xa0;
    return overlong || surrogate || (first == 0xf4 && text[1] >= 0x90) ? 0 : size;
}

void write_str(Writer *w, const char *text) {
    size_t size = strlen(text);
    if (size < 32)
        put_token(w, 0xa0 | (unsigned)size, 0, 0);
    else if (size <= UINT8_MAX)
        put_token(w, 0xd9, size, 1);
    else
        put_token(w, 0xda, size = size <= UINT16_MAX ? size : UINT16_MAX, 2);
    for (const uint8_t *at = (const uint8_t *)text, *end = at + size; at < end;) {
        size_t sequence = utf8_sequence(at);
        bool whole = sequence > 0 && sequence <= (size_t)(end - at);
        put(w, whole ? at : (const uint8_t *)"?", whole ? sequence : 1);
        at += whole ? sequence : 1;
    }
}

void write_bin_head(Writer *w, size_t size) {
    if (size <= UINT8_MAX)
        put_token(w, 0xc4, size, 1);
    else if (size <= UINT16_MAX)
        put_token(w, 0xc5, size, 2);
    else
        put_token(w, 0xc6, size, 4);
}

void write_bin(Writer *w, const void *data, size_t size) {
    write_bin_head(w, size);
    put(w, data, size);
}

void write_array(Writer *w, uint32_t count) {
    if (count < 16)
        put_token(w, 0x90 | count, 0, 0);
    else if (count <= UINT16_MAX)
        put_token(w, 0xdc, count, 2);
    else
        put_token(w, 0xdd, count, 4);
}

void write_map(Writer *w, uint32_t count) {
    if (count < 16)
        put_token(w, 0x80 | count, 0, 0);
    else
        put_token(w, 0xde, count, 2);
}
