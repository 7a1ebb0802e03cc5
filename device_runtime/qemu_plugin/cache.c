#include "cache.h"

#include <stddef.h>
#include <stdlib.h>

enum { LINE_BITS = 6, PAGE_BITS = 12, MOST_WAYS = 32 };
enum { RECENT = 256 }; /* pages whose numbers are found without a search; a power of two */

struct cache {
    uint64_t *lines; /* `ways` for each set, the last used first; line number + 1, 0 for none */
    uint64_t sets;   /* a power of two */
    unsigned ways;
    uint64_t misses;
};

static struct cache caches[MOST_CACHES];
static int count;

/* Page numbers: an open hash table of (page + 1, number), at most half full. */
struct page {
    uint64_t key, number;
};
static struct page *pages, recent[RECENT];
static uint64_t capacity, used;

static uint64_t last_line = UINT64_MAX;

static struct page *slot_of(struct page *table, uint64_t size, uint64_t key) {
    uint64_t at = (key * 0x9e3779b97f4a7c15u) >> 20 & (size - 1);
    while (table[at].key && table[at].key != key) at = (at + 1) & (size - 1);
    return &table[at];
}

static void grow(void) {
    uint64_t larger = capacity ? capacity * 2 : 4096;
    struct page *table = calloc(larger, sizeof *table);
    if (!table) abort(); /* a plugin has nobody to tell */
    for (uint64_t at = 0; at < capacity; at++)
        if (pages[at].key) *slot_of(table, larger, pages[at].key) = pages[at];
    free(pages);
    pages = table, capacity = larger;
}

static uint64_t page_number(uint64_t page) {
    struct page *near = &recent[page & (RECENT - 1)];
    if (near->key == page + 1) return near->number;
    if (used * 2 >= capacity) grow();
    struct page *slot = slot_of(pages, capacity, page + 1);
    if (!slot->key) *slot = (struct page){page + 1, used++};
    *near = *slot;
    return slot->number;
}

/* Whether the line was there; it is there now, as the last used. */
static bool touch(struct cache *cache, uint64_t line) {
    uint64_t *set = cache->lines + (line & (cache->sets - 1)) * cache->ways, wanted = line + 1;
    if (set[0] == wanted) return true;
    uint64_t moved = set[0];
    for (unsigned way = 1; way < cache->ways; way++) {
        uint64_t next = set[way];
        set[way] = moved;
        if (next == wanted) {
            set[0] = wanted;
            return true;
        }
        moved = next;
    }
    set[0] = wanted;
    cache->misses++;
    return false;
}

void caches_access(uint64_t address) {
    uint64_t line = address >> LINE_BITS;
    if (line == last_line) return;
    last_line = line;
    uint64_t in_page = line & ((1u << (PAGE_BITS - LINE_BITS)) - 1);
    line = page_number(address >> PAGE_BITS) << (PAGE_BITS - LINE_BITS) | in_page;
    if (touch(&caches[0], line)) return;
    for (int behind = 1; behind < count; behind++) touch(&caches[behind], line);
}

static bool add(uint64_t bytes, uint64_t ways) {
    if (count == MOST_CACHES || ways < 1 || ways > MOST_WAYS) return false;
    uint64_t sets = (bytes >> LINE_BITS) / ways;
    if (!sets || (sets & (sets - 1)) || sets * ways << LINE_BITS != bytes) return false;
    uint64_t *lines = calloc(sets * ways, sizeof *lines);
    if (!lines) return false;
    caches[count++] = (struct cache){lines, sets, (unsigned)ways, 0};
    return true;
}

bool caches_configure(const char *text) {
    for (;;) {
        char *end;
        uint64_t bytes = strtoull(text, &end, 10);
        if (end == text || *end != 'x') return false;
        text = end + 1;
        uint64_t ways = strtoull(text, &end, 10);
        if (end == text || !add(bytes, ways)) return false;
        if (!*end) return true;
        if (*end != ':') return false;
        text = end + 1;
    }
}

int caches_count(void) { return count; }

uint64_t caches_misses(int cache) { return caches[cache].misses; }
