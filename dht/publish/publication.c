/* The items a node publishes and their records. */
#include "dht/publish/publication.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crypto/keyed_hash.h"
#include "dht/record/record_internal.h"

/* A coordinate takes at most 9 bytes as msgpack, and endpoints about 1.2 KB. */
enum { PART_COORDS = 6000, NODE_ITEMS = 2, MAX_BELOW = RECORD_MAX_BELOW / 2 };
_Static_assert(PART_COORDS * 9 + 4096 <= RECORD_MAX_PREFIX_BYTES, "a part fits its record");

struct local_expert {
    struct uid uid;
    char cls[32];
    uint8_t schema_digest[16];
    bool publishable;
    struct record_load load;
    struct record_claim claim;
};

/* One expert under one prefix, by its next coordinate. */
struct member {
    size_t expert; /* index */
    size_t prefix; /* index into its uid.prefix_len */
    size_t depth;  /* coordinates from the prefix to the whole UID */
    int64_t coord;
};

struct item {
    enum record_kind kind;
    uint8_t key[RECORD_KEY_BYTES];
    size_t first; /* expert: its index; prefix: first member */
    size_t count; /* prefix: members */
    unsigned part, parts;
    uint64_t notified; /* content_of() a root prefix, as last notified; 0: never */
    struct statement statement;
};

struct publication {
    const struct record_swarm *swarm; /* borrowed */
    struct local_expert *experts;     /* sorted by UID */
    size_t expert_count;
    struct member *members; /* sorted by prefix, depth, then coordinate */
    size_t member_count;
    struct item *items;
    size_t item_count;
    struct record_expert *locals; /* of publication_update() */
    struct record_load load;      /* of all experts that may be published; for one round */
};

/* ---- building the items ---- */

static int compare_local_experts(const void *a, const void *b)
{
    return strcmp(((const struct local_expert *)a)->uid.text,
                  ((const struct local_expert *)b)->uid.text);
}

static skep_status copy_experts(struct publication *p, const struct handler_expert *experts,
                                struct skep_error *err)
{
    for (size_t i = 0; i < p->expert_count; i++) {
        struct local_expert *h = &p->experts[i];
        skep_status rc = uid_parse(&h->uid, experts[i].uid, err);
        if (rc != SKEP_OK)
            return rc;
        int n = snprintf(h->cls, sizeof(h->cls), "%s", experts[i].cls);
        if (n <= 0 || (size_t)n >= sizeof(h->cls))
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "expert %s: class \"%s\": expected 1 to %zu characters",
                             experts[i].uid, experts[i].cls, sizeof(h->cls) - 1);
        memcpy(h->schema_digest, experts[i].schema_digest, sizeof(h->schema_digest));
        h->publishable = true;
    }
    qsort(p->experts, p->expert_count, sizeof(*p->experts), compare_local_experts);
    for (size_t i = 1; i < p->expert_count; i++)
        if (compare_local_experts(&p->experts[i - 1], &p->experts[i]) == 0)
            return error_set(err, SKEP_INVALID_ARGUMENT, "expert %s: given twice",
                             p->experts[i].uid.text);
    return SKEP_OK;
}

static const struct uid *uid_of(const struct publication *p, const struct member *m)
{
    return &p->experts[m->expert].uid;
}

static bool same_prefix(const struct publication *p, const struct member *a, const struct member *b)
{
    size_t len = uid_of(p, a)->prefix_len[a->prefix];

    return len == uid_of(p, b)->prefix_len[b->prefix] &&
           memcmp(uid_of(p, a)->text, uid_of(p, b)->text, len) == 0;
}

static int compare_members(const void *a, const void *b, void *arg)
{
    const struct publication *p = arg;
    const struct member *x = a, *y = b;
    size_t x_len = uid_of(p, x)->prefix_len[x->prefix], y_len = uid_of(p, y)->prefix_len[y->prefix];

    if (x_len != y_len)
        return x_len < y_len ? -1 : 1;
    int order = memcmp(uid_of(p, x)->text, uid_of(p, y)->text, x_len);
    if (order != 0)
        return order;
    if (x->depth != y->depth)
        return x->depth < y->depth ? -1 : 1;
    if (x->coord != y->coord)
        return x->coord < y->coord ? -1 : 1;
    if (x->depth == 1)
        return 0;
    int64_t x_next = uid_of(p, x)->coords[x->prefix + 1],
            y_next = uid_of(p, y)->coords[y->prefix + 1];
    return x_next < y_next ? -1 : x_next > y_next;
}

static void list_members(struct publication *p)
{
    for (size_t i = 0; i < p->expert_count; i++)
        for (size_t c = 0; c < p->experts[i].uid.coord_count; c++)
            p->members[p->member_count++] =
                (struct member){.expert = i,
                                .prefix = c,
                                .depth = p->experts[i].uid.coord_count - c,
                                .coord = p->experts[i].uid.coords[c]};
    qsort_r(p->members, p->member_count, sizeof(*p->members), compare_members, p);
}

static void prefix_text(const struct publication *p, const struct member *m,
                        char out[static UID_BYTES])
{
    size_t len = uid_of(p, m)->prefix_len[m->prefix];

    memcpy(out, uid_of(p, m)->text, len);
    out[len] = '\0';
}

/* Number of members from `first` that make one part: whole coordinates, at most PART_COORDS, and of
 * one depth, so that readers know whether a coordinate completes a UID. */
static size_t part_length(const struct publication *p, size_t first, size_t end)
{
    size_t coords = 1, i = first + 1;

    for (; i < end; i++) {
        coords += p->members[i].coord != p->members[i - 1].coord;
        if (coords > PART_COORDS || p->members[i].depth != p->members[first].depth)
            break;
    }
    return i - first;
}

/* The parts of the prefix of members [first, end). */
static void add_prefix(struct publication *p, size_t first, size_t end,
                       const uint8_t peer_id[static PEER_ID_BYTES])
{
    size_t first_item = p->item_count;
    char prefix[UID_BYTES];

    prefix_text(p, &p->members[first], prefix);
    while (first < end) {
        struct item *item = &p->items[p->item_count++];
        item->kind = RECORD_PREFIX;
        item->first = first;
        item->count = part_length(p, first, end);
        item->part = (unsigned)(p->item_count - first_item - 1);
        record_key_prefix(p->swarm, prefix, peer_id, item->key);
        first += item->count;
    }
    for (size_t i = first_item; i < p->item_count; i++)
        p->items[i].parts = (unsigned)(p->item_count - first_item);
}

static void add_items(struct publication *p, const struct identity *identity)
{
    for (size_t i = 0; i < p->expert_count; i++) {
        struct item *item = &p->items[p->item_count++];
        item->kind = RECORD_EXPERT;
        item->first = i;
        record_key_expert(p->swarm, p->experts[i].uid.text, item->key);
    }
    for (size_t first = 0, end; first < p->member_count; first = end) {
        end = first + 1;
        while (end < p->member_count && same_prefix(p, &p->members[first], &p->members[end]))
            end++;
        add_prefix(p, first, end, identity->peer_id);
    }
    for (int i = 0; i < NODE_ITEMS; i++) {
        struct item *item = &p->items[p->item_count++];
        item->kind = RECORD_NODE;
        if (i == 0)
            record_key_nodes_shard(p->swarm, record_shard(identity->peer_id), item->key);
        else
            record_key_node(p->swarm, identity->peer_id, item->key);
    }
    for (size_t i = 0; i < p->item_count; i++)
        p->items[i].statement.failed = true; /* there was no attempt yet */
}

skep_status publication_new(const struct record_swarm *swarm, const struct identity *identity,
                            const struct handler_expert *experts, size_t count,
                            struct publication **out, struct skep_error *err)
{
    *out = NULL;
    struct publication *p = mem_calloc(1, sizeof(*p));
    if (p == NULL)
        return error_no_memory(err, "publication", sizeof(*p));
    p->swarm = swarm;
    p->expert_count = count;
    p->experts = mem_calloc(count, sizeof(*p->experts));
    p->locals = mem_calloc(count, sizeof(*p->locals));
    skep_status rc = p->experts == NULL || p->locals == NULL
                         ? error_no_memory(err, "experts", count * sizeof(*p->experts))
                         : copy_experts(p, experts, err);
    if (rc != SKEP_OK)
        goto out;

    size_t members = 0;
    for (size_t i = 0; i < count; i++)
        members += p->experts[i].uid.coord_count;
    /* At most: every prefix may be its own, and an expert the only one of its name. */
    size_t items = count + members + NODE_ITEMS;
    p->members = mem_calloc(members, sizeof(*p->members));
    p->items = mem_calloc(items, sizeof(*p->items));
    if (p->members == NULL || p->items == NULL) {
        rc = error_no_memory(err, "records to publish", items * sizeof(*p->items));
        goto out;
    }
    list_members(p);
    add_items(p, identity);

out:
    if (rc != SKEP_OK)
        publication_free(p);
    else
        *out = p;
    return rc;
}

/* ---- the same with more experts ---- */

static int compare_items(const void *a, const void *b)
{
    const struct item *x = *(struct item *const *)a, *y = *(struct item *const *)b;
    int order = memcmp(x->key, y->key, sizeof(x->key));

    if (order != 0)
        return order;
    return x->part < y->part ? -1 : x->part > y->part;
}

/* Carries over what the publication before has published of each item. */
static skep_status continue_items(struct publication *p, const struct publication *before,
                                  struct skep_error *err)
{
    struct item **sorted = mem_calloc(p->item_count, sizeof(struct item *));

    if (sorted == NULL)
        return error_no_memory(err, "records to publish", p->item_count * sizeof(struct item *));
    for (size_t i = 0; i < p->item_count; i++)
        sorted[i] = &p->items[i];
    qsort(sorted, p->item_count, sizeof(struct item *), compare_items);
    for (size_t i = 0; i < before->item_count; i++) {
        const struct item *old = &before->items[i];
        struct item **same =
            bsearch(&old, sorted, p->item_count, sizeof(struct item *), compare_items);
        if (same == NULL)
            continue;
        (*same)->notified = old->notified;
        (*same)->statement = old->statement;
    }
    mem_free(sorted);
    return SKEP_OK;
}

static bool is_listed(const struct handler_expert *experts, size_t count, const char *uid)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(experts[i].uid, uid) == 0)
            return true;
    return false;
}

skep_status publication_extend(const struct publication *before, const struct identity *identity,
                               const struct handler_expert *more, size_t count,
                               struct publication **out, struct skep_error *err)
{
    size_t all = 0;
    struct handler_expert *experts = mem_calloc(before->expert_count + count, sizeof(*experts));

    *out = NULL;
    if (experts == NULL)
        return error_no_memory(err, "experts", (before->expert_count + count) * sizeof(*experts));
    for (size_t i = 0; i < before->expert_count; i++) {
        const struct local_expert *h = &before->experts[i];
        if (is_listed(more, count, h->uid.text))
            continue; /* it may have come back as one of another class */
        struct handler_expert *e = &experts[all++];
        *e = (struct handler_expert){.uid = h->uid.text, .cls = h->cls};
        memcpy(e->schema_digest, h->schema_digest, sizeof(e->schema_digest));
    }
    for (size_t i = 0; i < count; i++)
        if (!is_listed(more + i + 1, count - i - 1, more[i].uid))
            experts[all++] = more[i]; /* the last of several of one UID */
    skep_status rc = publication_new(before->swarm, identity, experts, all, out, err);
    mem_free(experts);
    if (rc == SKEP_OK)
        rc = continue_items(*out, before, err);
    if (rc != SKEP_OK) {
        publication_free(*out);
        *out = NULL;
    }
    return rc;
}

void publication_free(struct publication *p)
{
    if (p == NULL)
        return;
    mem_free(p->items);
    mem_free(p->members);
    mem_free(p->locals);
    mem_free(p->experts);
    mem_free(p);
}

/* ---- rounds ---- */

static void fill_expert(const struct local_expert *h, const struct publication_state *s,
                        struct record_expert *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->uid, h->uid.text, sizeof(out->uid));
    out->endpoint_count = s->endpoint_count;
    memcpy(out->endpoints, s->endpoints, s->endpoint_count * sizeof(*s->endpoints));
    memcpy(out->cls, h->cls, sizeof(out->cls));
    memcpy(out->schema_digest, h->schema_digest, sizeof(out->schema_digest));
    out->features = s->features;
    out->load = h->load;
    out->claim = h->claim;
}

size_t publication_update(struct publication *p, const struct publication_source *source,
                          const struct publication_state *state, const struct record_expert **out)
{
    size_t n = 0;

    for (size_t i = 0; i < p->expert_count; i++) {
        struct local_expert *h = &p->experts[i];
        h->load = (struct record_load){0};
        h->claim = (struct record_claim){0};
        h->publishable = source->load == NULL || source->load(source->arg, h->uid.text, &h->load);
        if (h->publishable && source->claim != NULL)
            source->claim(source->arg, h->uid.text, &h->claim);
        if (h->publishable)
            fill_expert(h, state, &p->locals[n++]);
    }
    *out = p->locals;
    return n;
}

/* Whether the item has something to say, were it asked in this scope. */
static bool is_alive(const struct publication *p, const struct item *item,
                     enum publisher_scope scope)
{
    if (scope == PUBLISH_OFFLINE)
        return false;
    if (item->kind == RECORD_EXPERT)
        return p->experts[item->first].publishable;
    for (size_t i = 0; item->kind == RECORD_PREFIX && i < item->count; i++)
        if (p->experts[p->members[item->first + i].expert].publishable)
            return true;
    return item->kind == RECORD_NODE;
}

/* Lists what is alive one level further down, behind coords. Not under the name itself, which
 * searches never read, nor where it would be long. */
static void fill_below(const struct publication *p, const struct item *item,
                       struct record_prefix *out)
{
    const struct member *first = &p->members[item->first];
    int64_t *below = out->coords + item->count, *list = NULL, coord = -1;
    size_t len = 0;

    if (first->depth < 2 || first->prefix == 0 || item->count > MAX_BELOW)
        return;
    for (size_t i = 0; i < item->count; i++) {
        const struct member *m = &p->members[item->first + i];
        int64_t next = uid_of(p, m)->coords[m->prefix + 1];
        if (!p->experts[m->expert].publishable)
            continue;
        if (list == NULL || m->coord != coord) {
            list = &below[len++];
            coord = m->coord;
        } else if (below[len - 1] == next) {
            continue;
        }
        (*list)++;
        below[len++] = next;
    }
    out->below = below;
    out->below_len = len;
}

/* False if memory is short. */
static bool fill_prefix(const struct publication *p, const struct item *item, bool alive,
                        const struct publication_state *s, struct record_prefix *out)
{
    prefix_text(p, &p->members[item->first], out->prefix);
    out->endpoint_count = s->endpoint_count;
    memcpy(out->endpoints, s->endpoints, s->endpoint_count * sizeof(*s->endpoints));
    out->features = s->features;
    out->part = item->part;
    out->parts = item->parts;
    out->depth = (uint32_t)p->members[item->first].depth;
    size_t room = item->count + (item->count <= MAX_BELOW ? 2 * item->count : 0);
    out->coords = mem_calloc(room, sizeof(*out->coords)); /* with what is below them */
    if (out->coords == NULL)
        return false;
    for (size_t i = 0; alive && i < item->count; i++) {
        const struct member *m = &p->members[item->first + i];
        if (!p->experts[m->expert].publishable ||
            (out->coord_count > 0 && out->coords[out->coord_count - 1] == m->coord))
            continue;
        out->coords[out->coord_count++] = m->coord;
    }
    if (alive) {
        fill_below(p, item, out);
        out->load = p->load;
    }
    return true;
}

static void fill_node(const struct publication *p, bool alive, const struct publication_state *s,
                      struct record_node *out)
{
    out->endpoint_count = s->endpoint_count;
    memcpy(out->endpoints, s->endpoints, s->endpoint_count * sizeof(*s->endpoints));
    out->features = s->features;
    snprintf(out->state, sizeof(out->state), "%s", alive ? "online" : "offline");
    snprintf(out->version, sizeof(out->version), "%s", s->version != NULL ? s->version : "");
    for (size_t i = 0; alive && i < p->expert_count; i++)
        out->expert_count += p->experts[i].publishable;
    if (alive)
        out->load = p->load;
}

static bool fill_record(const struct publication *p, const struct item *item, bool alive,
                        const struct publication_state *s, struct record *out)
{
    out->kind = item->kind;
    if (item->kind == RECORD_PREFIX)
        return fill_prefix(p, item, alive, s, &out->prefix);
    if (item->kind == RECORD_NODE) {
        fill_node(p, alive, s, &out->node);
    } else {
        fill_expert(&p->experts[item->first], s, &out->expert);
        out->expert.offline = !alive;
    }
    return true;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    const uint64_t both[] = {hash, value};

    return keyed_hash(both, sizeof(both));
}

/* What a root prefix and all below it say, as a number; never 0. */
static uint64_t content_of(const struct publication *p, const struct item *item, bool alive,
                           const struct publication_state *s)
{
    uint64_t hash = mix(0, alive);

    for (size_t i = 0; alive && i < item->count; i++) {
        size_t expert = p->members[item->first + i].expert;
        hash = mix(mix(hash, expert), p->experts[expert].publishable);
    }
    for (size_t i = 0; i < s->endpoint_count; i++) {
        const struct endpoint *e = &s->endpoints[i];
        hash = mix(mix(hash, keyed_hash(e->host, strlen(e->host))), e->port);
    }
    return hash | 1;
}

/*
 * Notifies those who listen to a root prefix, if what it says has changed: OpenDHT tells them of
 * new value ids only, not of our edits. So an empty record goes out of a part number that was not
 * there before; readers take it as what it says, that this part lists nothing.
 */
static void notify(const struct publication *p, struct item *item, bool alive,
                   const struct publication_state *s, struct publisher_round *round)
{
    if (item->kind != RECORD_PREFIX || p->members[item->first].prefix != 0)
        return;
    uint64_t content = content_of(p, item, alive, s);
    if (content == item->notified || item->parts >= RECORD_MAX_PARTS)
        return;
    struct record *record = publisher_round_next(round);
    if (!fill_record(p, item, false, s, record))
        return;
    item->notified = content;
    record->prefix.part =
        item->parts + (unsigned)randombytes_uniform(RECORD_MAX_PARTS - item->parts);
    record->prefix.parts = record->prefix.part + 1;
    record->expires_at = round->now_s + RECORD_MIN_LIFETIME_S;
    publisher_round_add(round, item->key);
}

static struct record_load load_of(const struct publication *p)
{
    struct record_load all = {0};

    for (size_t i = 0; i < p->expert_count; i++) {
        if (!p->experts[i].publishable)
            continue;
        all.examples_per_s += p->experts[i].load.examples_per_s;
        all.queued_tasks += p->experts[i].load.queued_tasks;
    }
    return all;
}

/* Adds an item to the round, if it has something to say in this scope. */
static void say(const struct publication *p, struct item *item, const struct publication_state *s,
                struct publisher_round *round)
{
    bool alive = is_alive(p, item, round->scope);

    if (statement_is_due(&item->statement, round, alive, false) &&
        fill_record(p, item, alive, s, publisher_round_next(round)))
        publisher_round_say(round, &item->statement, alive, item->key);
}

static void say_all(struct publication *p, bool experts, const struct publication_state *s,
                    struct publisher_round *round)
{
    for (size_t i = 0; i < p->item_count; i++)
        if ((p->items[i].kind == RECORD_EXPERT) == experts)
            say(p, &p->items[i], s, round);
}

static struct item *item_of(struct statement *statement)
{
    return (struct item *)((char *)statement - offsetof(struct item, statement));
}

static void notify_all(const struct publication *p, const struct publication_state *s,
                       struct publisher_round *round)
{
    for (size_t i = 0, said = round->count; i < said; i++) {
        struct item *item = item_of(round->statements[i]);
        notify(p, item, !item->statement.gone, s, round);
    }
}

/* Experts come before the prefixes that list them and the notifications, so that whoever reads a
 * notification finds them. A withdrawal goes the other way round: of a node with thousands of
 * experts the time may not suffice for all, and who watches or searches asks the prefixes. */
void publication_round(struct publication *p, const struct publication_state *s,
                       struct publisher_round *round)
{
    bool withdraws = round->scope == PUBLISH_OFFLINE;

    /* Each prefix with a notification. If memory is short, the next round tries again. */
    if (!publisher_round_reserve(round, 2 * p->item_count - p->expert_count))
        return;
    p->load = load_of(p);
    if (!withdraws)
        say_all(p, true, s, round);
    say_all(p, false, s, round);
    notify_all(p, s, round);
    if (withdraws)
        say_all(p, true, s, round);
}

uint64_t publication_ended(const struct publisher_round *round)
{
    uint64_t highest_seq = 0;

    for (size_t i = 0; i < round->count; i++) {
        struct statement *statement = round->statements[i];
        if (statement != NULL && statement->failed)
            item_of(statement)->notified = 0; /* notifies again when it succeeds */
        if (round->records[i].seq > highest_seq)
            highest_seq = round->records[i].seq;
    }
    return highest_seq;
}

size_t publication_sample_keys(const struct publication *p, size_t turn, uint8_t *keys, size_t cap)
{
    size_t others = p->item_count - NODE_ITEMS;
    size_t n = p->item_count < cap ? p->item_count : cap;

    /* The node's own record is put last in every round, so it has the highest seq unless its put
     * failed. */
    for (size_t i = 0; i < n; i++) {
        size_t item =
            i < NODE_ITEMS ? p->item_count - 1 - i : (turn * cap + i - NODE_ITEMS) % others;
        memcpy(keys + i * RECORD_KEY_BYTES, p->items[item].key, RECORD_KEY_BYTES);
    }
    return n;
}
