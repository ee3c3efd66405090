/* A binary heap of deadlines. */
#include "net/deadline_heap.h"

#include "base/alloc.h"

enum { FIRST_CAP = 64 };

static void put(struct deadline_heap *heap, size_t i, struct deadline_entry *entry)
{
    heap->entries[i] = entry;
    entry->index = i + 1;
}

static void sift_up(struct deadline_heap *heap, size_t i, struct deadline_entry *entry)
{
    while (i > 0) {
        struct deadline_entry *parent = heap->entries[(i - 1) / 2];
        if (parent->deadline_us <= entry->deadline_us)
            break;
        put(heap, i, parent);
        i = (i - 1) / 2;
    }
    put(heap, i, entry);
}

static void sift_down(struct deadline_heap *heap, size_t i, struct deadline_entry *entry)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count &&
            heap->entries[child + 1]->deadline_us < heap->entries[child]->deadline_us)
            child++;
        if (entry->deadline_us <= heap->entries[child]->deadline_us)
            break;
        put(heap, i, heap->entries[child]);
        i = child;
    }
    put(heap, i, entry);
}

bool deadline_heap_add(struct deadline_heap *heap, struct deadline_entry *entry)
{
    if (heap->count == heap->cap) {
        size_t cap = heap->cap > 0 ? heap->cap * 2 : FIRST_CAP;
        struct deadline_entry **entries =
            mem_realloc(heap->entries, cap * sizeof(struct deadline_entry *));
        if (entries == NULL)
            return false;
        heap->entries = entries;
        heap->cap = cap;
    }
    sift_up(heap, heap->count++, entry);
    return true;
}

void deadline_heap_remove(struct deadline_heap *heap, struct deadline_entry *entry)
{
    if (entry->index == 0)
        return;
    size_t i = entry->index - 1;
    struct deadline_entry *last = heap->entries[--heap->count];

    entry->index = 0;
    if (last == entry)
        return;
    if (i > 0 && heap->entries[(i - 1) / 2]->deadline_us > last->deadline_us)
        sift_up(heap, i, last);
    else
        sift_down(heap, i, last);
}

struct deadline_entry *deadline_heap_first(const struct deadline_heap *heap)
{
    return heap->count > 0 ? heap->entries[0] : NULL;
}

void deadline_heap_fini(struct deadline_heap *heap)
{
    mem_free(heap->entries);
    *heap = (struct deadline_heap){0};
}
