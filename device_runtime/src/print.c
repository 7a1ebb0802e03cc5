/* printf and its kin, in place of the C library's, which print floats of every width and wide
 * characters: a tenth of this program, which prints neither. Known are %s %c %d %u %x %%, with l,
 * ll or z, a width, leading zeros, and a precision of strings; anything else ends the output. */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    char *to;
    size_t room, size; /* bytes there are; bytes of the whole text, of which only some may fit */
} Text;

static void put(Text *t, char c) {
    if (t->size < t->room) t->to[t->size] = c;
    t->size++;
}

static void put_field(Text *t, const char *from, size_t size, size_t width, char pad) {
    for (; width > size; width--) put(t, pad);
    for (size_t i = 0; i < size; i++) put(t, from[i]);
}

static void put_number(Text *t, uintmax_t value, bool negative, unsigned base, size_t width,
                       char pad) {
    char digits[24], *at = digits + sizeof digits;
    do {
        *--at = "0123456789abcdef"[value % base];
        value /= base;
    } while (value > 0);
    if (negative) *--at = '-';
    put_field(t, at, (size_t)(digits + sizeof digits - at), width, pad);
}

static uintmax_t take_unsigned(va_list *args, unsigned length) {
    switch (length) {
    case 0:
        return va_arg(*args, unsigned);
    case 1:
        return va_arg(*args, unsigned long);
    case 2:
        return va_arg(*args, unsigned long long);
    default:
        return va_arg(*args, size_t);
    }
}

static size_t take_count(const char **format, va_list *args) {
    size_t count = 0;
    if (**format == '*') {
        (*format)++;
        return (size_t)va_arg(*args, int);
    }
    for (; **format >= '0' && **format <= '9'; (*format)++)
        count = 10 * count + (size_t)(**format - '0');
    return count;
}

/* One conversion, after its '%'. Returns what follows it, or NULL when it is not known. */
static const char *convert(Text *t, const char *format, va_list *args) {
    char pad = *format == '0' ? '0' : ' ';
    size_t width = take_count(&format, args), most = SIZE_MAX;
    unsigned length = 0; /* 0: int, 1: long, 2: long long, 3: size_t */
    if (*format == '.') {
        format++;
        most = take_count(&format, args);
    }
    for (; *format == 'l'; format++) length++;
    if (*format == 'z') {
        length = 3;
        format++;
    }
    switch (*format) {
    case 's': {
        const char *text = va_arg(*args, const char *);
        size_t size = 0;
        while (size < most && text[size]) size++;
        put_field(t, text, size, width, ' ');
        break;
    }
    case 'c':
        put(t, (char)va_arg(*args, int));
        break;
    case 'd': {
        intmax_t value = length == 0   ? va_arg(*args, int)
                         : length == 1 ? va_arg(*args, long)
                                       : va_arg(*args, long long);
        put_number(t, value < 0 ? 0 - (uintmax_t)value : (uintmax_t)value, value < 0, 10, width,
                   pad);
        break;
    }
    case 'u':
    case 'x':
        put_number(t, take_unsigned(args, length), false, *format == 'x' ? 16 : 10, width, pad);
        break;
    case '%':
        put(t, '%');
        break;
    default:
        return NULL;
    }
    return format + 1;
}

int vsnprintf(char *to, size_t room, const char *format, va_list given) {
    Text t = {to, room, 0};
    va_list args;
    va_copy(args, given);
    while (format && *format) {
        if (*format == '%')
            format = convert(&t, format + 1, &args);
        else
            put(&t, *format++);
    }
    va_end(args);
    if (room > 0) to[t.size < room ? t.size : room - 1] = 0;
    return (int)t.size;
}

int snprintf(char *to, size_t room, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int size = vsnprintf(to, room, format, args);
    va_end(args);
    return size;
}

/* At most MOST bytes, which is more than any line of this program. */
static int print(FILE *file, const char *format, va_list args) {
    enum { MOST = 2048 };
    char text[MOST];
    int size = vsnprintf(text, sizeof text, format, args);
    fwrite(text, 1, size < MOST ? (size_t)size : MOST - 1, file);
    return size;
}

int fprintf(FILE *file, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int size = print(file, format, args);
    va_end(args);
    return size;
}

int printf(const char *format, ...) {
    va_list args;
    va_start(args, format);
    int size = print(stdout, format, args);
    va_end(args);
    return size;
}
