/* A first-fit allocator over one arena, a hash map and a sorter on top of it, and a test that drives them. */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)64 << 20)
#define ALIGNMENT 16
#define MIN_SPLIT 64

typedef struct Block {
    size_t size;
    bool used;
    struct Block *next;
    struct Block *previous;
} Block;

typedef struct {
    unsigned char *base;
    size_t bytes;
    Block *first;
    size_t allocations, frees, splits, merges;
} Arena;

static size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

static bool arena_init(Arena *arena, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    *arena = (Arena){.base = memory, .bytes = bytes, .first = memory};
    *arena->first = (Block){.size = bytes - sizeof(Block)};
    return true;
}

static void split(Arena *arena, Block *block, size_t size) {
    if (block->size < size + sizeof(Block) + MIN_SPLIT)
        return;
    Block *rest = (Block *)((unsigned char *)(block + 1) + size);
    *rest = (Block){.size = block->size - size - sizeof(Block), .next = block->next, .previous = block};
    if (rest->next)
        rest->next->previous = rest;
    block->next = rest;
    block->size = size;
    arena->splits++;
}

static void *arena_alloc(Arena *arena, size_t size) {
    size = round_up(size ? size : 1, ALIGNMENT);
    for (Block *block = arena->first; block; block = block->next) {
        if (block->used || block->size < size)
            continue;
        split(arena, block, size);
        block->used = true;
        arena->allocations++;
        return block + 1;
    }
    errno = ENOMEM;
    return NULL;
}

static void merge(Arena *arena, Block *block) {
    Block *next = block->next;
    if (!next || next->used || block->used)
        return;
    block->size += sizeof(Block) + next->size;
    block->next = next->next;
    if (block->next)
        block->next->previous = block;
    arena->merges++;
}

static void arena_free(Arena *arena, void *memory) {
    if (!memory)
        return;
    Block *block = (Block *)memory - 1;
    assert(block->used);
    block->used = false;
    arena->frees++;
    merge(arena, block);
    if (block->previous)
        merge(arena, block->previous);
}

typedef struct Entry {
    struct Entry *next;
    uint64_t hash;
    double weight;
    char key[];
} Entry;

typedef struct {
    Arena *arena;
    Entry **buckets;
    size_t count, capacity;
} Map;

static uint64_t hash_of(const char *key) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *key; key++)
        hash = (hash ^ (uint64_t)tolower((unsigned char)*key)) * UINT64_C(1099511628211);
    return hash;
}

static bool map_grow(Map *map) {
    size_t capacity = map->capacity ? map->capacity * 2 : 16;
    Entry **buckets = arena_alloc(map->arena, capacity * sizeof *buckets);
    if (!buckets)
        return false;
    memset(buckets, 0, capacity * sizeof *buckets);
    for (size_t index = 0; index < map->capacity; index++) {
        for (Entry *entry = map->buckets[index], *next; entry; entry = next) {
            next = entry->next;
            entry->next = buckets[entry->hash & (capacity - 1)];
            buckets[entry->hash & (capacity - 1)] = entry;
        }
    }
    arena_free(map->arena, map->buckets);
    map->buckets = buckets;
    map->capacity = capacity;
    return true;
}

static Entry *map_put(Map *map, const char *key, double weight) {
    if (map->count * 4 >= map->capacity * 3 && !map_grow(map))
        return NULL;
    uint64_t hash = hash_of(key);
    Entry **bucket = &map->buckets[hash & (map->capacity - 1)];
    for (Entry *entry = *bucket; entry; entry = entry->next) {
        if (entry->hash == hash && !strcmp(entry->key, key)) {
            entry->weight += weight;
            return entry;
        }
    }
    Entry *entry = arena_alloc(map->arena, sizeof *entry + strlen(key) + 1);
    if (!entry)
        return NULL;
    entry->next = *bucket;
    entry->hash = hash;
    entry->weight = weight;
    strcpy(entry->key, key);
    *bucket = entry;
    map->count++;
    return entry;
}

static int by_weight(const void *left, const void *right) {
    const Entry *a = *(Entry *const *)left, *b = *(Entry *const *)right;
    return a->weight < b->weight ? 1 : a->weight > b->weight ? -1 : strcmp(a->key, b->key);
}

int main(void) {
    Arena arena;
    if (!arena_init(&arena, ARENA_BYTES)) {
        perror("mmap");
        return EXIT_FAILURE;
    }
    Map map = {.arena = &arena};
    char key[32];
    for (unsigned n = 0; n < 20000; n++) {
        snprintf(key, sizeof key, "key-%u", n * 7919u % 5000u);
        if (!map_put(&map, key, sqrt((double)n)))
            return EXIT_FAILURE;
    }
    Entry **sorted = arena_alloc(&arena, map.count * sizeof *sorted);
    size_t filled = 0;
    for (size_t index = 0; index < map.capacity; index++)
        for (Entry *entry = map.buckets[index]; entry; entry = entry->next)
            sorted[filled++] = entry;
    qsort(sorted, filled, sizeof *sorted, by_weight);
    printf("%zu keys, first %s %.2f, pid %ld, at %" PRIdMAX "\n", filled, sorted[0]->key, sorted[0]->weight,
           (long)getpid(), (intmax_t)time(NULL));
    arena_free(&arena, sorted);
    printf("%zu allocations, %zu frees, %zu splits, %zu merges\n", arena.allocations, arena.frees, arena.splits,
           arena.merges);
    return munmap(arena.base, arena.bytes) ? EXIT_FAILURE : EXIT_SUCCESS;
}
