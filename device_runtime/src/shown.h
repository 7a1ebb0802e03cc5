/* Text for a terminal. Names in it may be from a file: a terminal would obey the bytes of some. */
#ifndef MLC_SHOWN_H
#define MLC_SHOWN_H

#include <stddef.h>

/* Bytes of the printable character (UTF-8) that begins there; 0 where none does. */
size_t printable(const char *at);

/* The text with every other byte as \x1b, whole characters alone; returns `to`. */
char *shown(const char *text, char *to, size_t size);

#endif
