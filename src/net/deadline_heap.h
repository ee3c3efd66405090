/*
 * Many deadlines, the nearest first: a binary heap of embedded entries, so that a call costs no
 * timer of its own. One thread uses a heap at a time. Zeroed memory is an empty heap.
 */
#ifndef SKEP_NET_DEADLINE_HEAP_H
#define SKEP_NET_DEADLINE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct deadline_entry {
    uint64_t deadline_us;
    size_t index; /* the heap's: 1 + index; 0: not in it */
};

struct deadline_heap {
    struct deadline_entry **entries; /* owned array of borrowed entries */
    size_t count;
    size_t cap;
};

/* @param entry borrowed until removed; deadline_us set, place 0. False if memory is short. */
bool deadline_heap_add(struct deadline_heap *heap, struct deadline_entry *entry);
/* Does nothing for an entry that is not in the heap. */
void deadline_heap_remove(struct deadline_heap *heap, struct deadline_entry *entry);
/* The nearest one; NULL if there is none. */
struct deadline_entry *deadline_heap_first(const struct deadline_heap *heap);
void deadline_heap_fini(struct deadline_heap *heap);

#endif
