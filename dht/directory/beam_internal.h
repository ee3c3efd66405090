/*
 * What beam.c (rounds of asking, levels) and beam_candidates.c (nodes, candidates in their order)
 * share. beam.c says how they work together.
 */
#ifndef SKEP_DHT_DIRECTORY_BEAM_INTERNAL_H
#define SKEP_DHT_DIRECTORY_BEAM_INTERNAL_H

#include "dht/directory/beam.h"

enum {
    NO_NODE = UINT32_MAX,
    BEAM_MAX_BEST = 32, /* candidates kept in order; more are cheaper in a heap */
};

enum node_state {
    NODE_UNKNOWN,
    NODE_ASKED, /* in this round */
    NODE_ACTIVE,
    NODE_EMPTY,
};

struct beam_node {
    int64_t coords[BEAM_MAX_DIMS]; /* up to its level */
    uint32_t parent;               /* in the table of the level before */
    uint32_t chain;                /* in the hash table; NO_NODE: last */
    enum node_state state;
    bool watched;
    bool outside_counted;
    struct prefix_view *view;   /* shared; of an active prefix, or where an expert is named */
    size_t named_at;            /* of an expert: its index in that view */
    struct provider *providers; /* owned; of an expert that was looked up */
    size_t provider_count;
    uint32_t expert; /* its index in the result; NO_NODE: not chosen */
};

struct beam_table {
    struct beam_node *nodes; /* owned */
    size_t count, cap;
    uint32_t *buckets; /* owned */
    size_t bucket_count;
};

struct beam_candidate {
    double score;
    uint32_t ref; /* the parent while in the heap, its own node once popped */
    int32_t coord;
};

struct beam_entry {
    double score;
    uint32_t node;
};

struct beam_sample {
    /* Owned: first those in no order, or a heap of them; then the best, the best one last; then
     * those popped, last one first. */
    struct beam_candidate *list;
    size_t cap; /* of the list */
    size_t total;
    size_t left;             /* not popped yet */
    size_t best;             /* of those left, how many stand in order */
    bool is_heap;            /* the others */
    size_t settled;          /* of those popped, how many have been decided on */
    struct beam_entry *beam; /* view of search.entries */
    size_t beam_count;
    bool full; /* nothing more to do in this level */
};

struct beam_state {
    struct directory *directory;
    const struct beam_query *query;
    size_t width, level, prefix_len;
    size_t place_count; /* in a beam of this level */
    size_t best_count;  /* how many candidates are kept in order while they are listed */
    int64_t now_s;
    struct beam_table before, table; /* of the level before and of this one */
    struct beam_sample *samples;
    struct beam_entry *entries; /* two halves: beams of this level and of the one before */
    uint32_t *asked;            /* nodes of this round */
    size_t asked_count, asked_cap;
    bool no_memory, give_up;
    struct beam_result *result;
};

static inline bool beam_is_last(const struct beam_state *s)
{
    return s->level + 1 == s->query->dims;
}

/* Number i of those popped. */
static inline struct beam_candidate *beam_popped(const struct beam_sample *p, size_t i)
{
    return &p->list[p->total - 1 - i];
}

/* ---- beam_candidates.c */

void beam_table_fini(struct beam_table *table);
/* Prefix or UID of a node; false if it is too long for one, so that nobody can serve it. */
bool beam_node_text(const struct beam_state *s, const struct beam_node *n,
                    char out[static UID_BYTES]);
/* Lists the candidates of every sample in this level. False if memory is short. */
bool beam_list_candidates(struct beam_state *s);
/* Takes the best one that is left: it is beam_popped() then, and refers to its own node. */
void beam_pop(struct beam_state *s, struct beam_sample *p);

#endif
