#include "shown.h"

#include <stdint.h>
#include <string.h>

/* Characters that a terminal obeys, or that change the order or the look of others: as Python's
 * str.isprintable has them, but for those that no standard has assigned. */
static const struct {
    uint32_t first, last;
} UNPRINTABLE[] = {
    {0x7f, 0xa0},         {0xad, 0xad},         {0x600, 0x605},       {0x61c, 0x61c},
    {0x6dd, 0x6dd},       {0x70f, 0x70f},       {0x180e, 0x180e},     {0x2000, 0x200f},
    {0x2028, 0x202f},     {0x205f, 0x206f},     {0x3000, 0x3000},     {0xd800, 0xf8ff},
    {0xfeff, 0xfeff},     {0xfff0, 0xfffb},     {0x1d173, 0x1d17a},   {0xe0000, UINT32_MAX},
};

size_t printable(const char *text) {
    const uint8_t *at = (const uint8_t *)text;
    if (at[0] < 0x80) return at[0] >= 0x20 && at[0] < 0x7f;
    if (at[0] < 0xc2 || at[0] > 0xf4) return 0;
    size_t size = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    uint32_t c = at[0] & (0x7fU >> size);
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80) return 0; /* the text's end is none, too */
        c = c << 6 | (at[i] & 0x3fU);
    }
    if ((size == 3 && c < 0x800) || (size == 4 && c < 0x10000)) return 0;
    for (size_t i = 0; i < sizeof UNPRINTABLE / sizeof *UNPRINTABLE; i++)
        if (c >= UNPRINTABLE[i].first && c <= UNPRINTABLE[i].last) return 0;
    return size;
}

char *shown(const char *text, char *to, size_t size) {
    size_t used = 0;
    while (*text) {
        static const char digits[] = "0123456789abcdef";
        size_t length = printable(text);
        char escaped[4] = {'\\', 'x', digits[(uint8_t)*text >> 4], digits[*text & 15]};
        size_t more = length > 0 ? length : sizeof escaped;
        if (used + more >= size) break;
        memcpy(to + used, length > 0 ? text : escaped, more);
        used += more;
        text += length > 0 ? length : 1;
    }
    to[used] = 0;
    return to;
}
