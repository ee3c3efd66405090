/* Merging keeps a heap of candidate pairs over a linked list of symbols, so that a long word costs
 * n log n and not n squared. */
#include "model/tokenizer/bpe.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "model/tokenizer/byte_alphabet.h"

struct bpe_word {
    struct hash_node node;
    size_t text; /* where it begins in bpe.text */
    size_t len;
    uint32_t id;
};

struct bpe_merge {
    struct hash_node node;
    uint32_t left, right;
    uint32_t rank;
    uint32_t result;
};

/* A symbol of the word that is being merged. */
struct symbol {
    uint32_t id;             /* BPE_NONE once it is part of the one before it */
    uint32_t previous, next; /* BPE_NONE at the ends */
};

struct candidate {
    uint32_t rank;
    uint32_t position; /* of the left symbol */
    uint32_t result;
};

bool token_ids_append(struct token_ids *list, uint32_t id)
{
    if (list->count == list->cap) {
        size_t cap = list->cap > 0 ? list->cap * 2 : 32;
        size_t bytes;
        uint32_t *ids;
        if (!size_mul(cap, sizeof(*ids), &bytes))
            return false;
        ids = mem_realloc(list->ids, bytes);
        if (ids == NULL)
            return false;
        list->ids = ids;
        list->cap = cap;
    }
    list->ids[list->count++] = id;
    return true;
}

void token_ids_free(struct token_ids *list)
{
    if (list == NULL)
        return;
    mem_free(list->ids);
    memset(list, 0, sizeof(*list));
}

/* FNV-1a: the file's owner chooses the keys, and can harm only the own start. */
static uint64_t hash_text(const char *text, size_t len)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

/* Splitmix64's finalizer: one to one, so equal hashes mean equal pairs. */
static uint64_t hash_pair(uint32_t left, uint32_t right)
{
    uint64_t x = (uint64_t)left << 32 | right;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

skep_status bpe_init(struct bpe *out, size_t words, size_t merges, size_t text_bytes,
                     struct skep_error *err)
{
    memset(out, 0, sizeof(*out));
    memset(out->byte_id, 0xff, sizeof(out->byte_id));
    out->word_cap = words;
    out->merge_cap = merges;
    out->text_cap = text_bytes;
    out->word = mem_calloc(words + 1, sizeof(*out->word));
    out->merge = mem_calloc(merges + 1, sizeof(*out->merge));
    out->text = mem_alloc(text_bytes + 1);
    if (out->word == NULL || out->merge == NULL || out->text == NULL ||
        !hash_table_init(&out->words, words) || !hash_table_init(&out->merges, merges)) {
        bpe_fini(out);
        return error_no_memory(err, "a vocabulary", text_bytes);
    }
    return SKEP_OK;
}

void bpe_fini(struct bpe *bpe)
{
    if (bpe == NULL)
        return;
    hash_table_fini(&bpe->words);
    hash_table_fini(&bpe->merges);
    mem_free(bpe->word);
    mem_free(bpe->merge);
    mem_free(bpe->text);
    memset(bpe, 0, sizeof(*bpe));
}

uint32_t bpe_find(const struct bpe *bpe, const char *text, size_t len)
{
    struct hash_node *node = hash_table_first(&bpe->words, hash_text(text, len));

    for (; node != NULL; node = hash_table_next(node)) {
        const struct bpe_word *word = HASH_HOLDER(node, struct bpe_word, node);
        if (word->len == len && memcmp(bpe->text + word->text, text, len) == 0)
            return word->id;
    }
    return BPE_NONE;
}

bool bpe_add_word(struct bpe *bpe, const char *text, size_t len, uint32_t id)
{
    struct bpe_word *word = &bpe->word[bpe->word_count];

    if (bpe->word_count == bpe->word_cap || len > bpe->text_cap - bpe->text_len ||
        bpe_find(bpe, text, len) != BPE_NONE)
        return false;
    *word = (struct bpe_word){.text = bpe->text_len, .len = len, .id = id};
    memcpy(bpe->text + bpe->text_len, text, len);
    bpe->text_len += len;
    bpe->word_count++;
    hash_table_add(&bpe->words, &word->node, hash_text(text, len));
    return true;
}

void bpe_find_bytes(struct bpe *bpe)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[2];
        size_t len = byte_alphabet_encode((uint8_t)byte, text);
        bpe->byte_id[byte] = bpe_find(bpe, text, len);
    }
}

static struct bpe_merge *find_merge(const struct bpe *bpe, uint32_t left, uint32_t right)
{
    struct hash_node *node = hash_table_first(&bpe->merges, hash_pair(left, right));

    return HASH_HOLDER(node, struct bpe_merge, node);
}

static skep_status find_part(const struct bpe *bpe, const char *text, size_t len, uint32_t *out,
                             struct skep_error *err)
{
    char quote[TEXT_QUOTE_BYTES];

    *out = bpe_find(bpe, text, len);
    if (*out == BPE_NONE)
        return error_set(err, SKEP_INVALID_ARGUMENT, "merge %zu: %s is not in the vocabulary",
                         bpe->merge_count, text_quote(text, len, quote));
    return SKEP_OK;
}

skep_status bpe_add_merge(struct bpe *bpe, const char *left, size_t left_len, const char *right,
                          size_t right_len, struct skep_error *err)
{
    struct bpe_merge merge = {.rank = (uint32_t)bpe->merge_count};
    struct bpe_merge *same;
    struct bytes whole = {0};
    skep_status rc;

    if (!bytes_append(&whole, left, left_len) || !bytes_append(&whole, right, right_len))
        rc = error_no_memory(err, "a merge", left_len + right_len);
    else if (bpe->merge_count == bpe->merge_cap)
        rc = error_set(err, SKEP_INTERNAL, "more merges than announced");
    else
        rc = find_part(bpe, left, left_len, &merge.left, err);
    if (rc == SKEP_OK)
        rc = find_part(bpe, right, right_len, &merge.right, err);
    if (rc == SKEP_OK)
        rc = find_part(bpe, (const char *)whole.data, whole.len, &merge.result, err);
    bytes_free(&whole);
    if (rc != SKEP_OK)
        return rc;
    same = find_merge(bpe, merge.left, merge.right);
    bpe->merge[bpe->merge_count] = merge;
    if (same != NULL) /* the later of two counts, as in Hugging Face's reader */
        same->rank = merge.rank;
    else
        hash_table_add(&bpe->merges, &bpe->merge[bpe->merge_count].node,
                       hash_pair(merge.left, merge.right));
    bpe->merge_count++;
    return SKEP_OK;
}

/* ---- merging ---- */

struct merging {
    const struct bpe *bpe;
    struct symbol *symbols; /* owned */
    struct candidate *heap; /* owned; room for 3 a symbol: see merge_word() */
    size_t heap_count;
};

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct merging *m, struct candidate c)
{
    size_t i = m->heap_count++;

    while (i > 0 && before(&c, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = c;
}

static struct candidate heap_pop(struct merging *m)
{
    struct candidate top = m->heap[0];
    struct candidate last = m->heap[--m->heap_count];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= m->heap_count)
            break;
        if (child + 1 < m->heap_count && before(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!before(&m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static const struct bpe_merge *merge_at(const struct merging *m, uint32_t position)
{
    const struct symbol *left = &m->symbols[position];

    if (left->id == BPE_NONE || left->next == BPE_NONE)
        return NULL;
    return find_merge(m->bpe, left->id, m->symbols[left->next].id);
}

static void consider(struct merging *m, uint32_t position)
{
    const struct bpe_merge *merge = merge_at(m, position);

    if (merge != NULL)
        heap_push(m, (struct candidate){merge->rank, position, merge->result});
}

/* Each merge takes a symbol away and pushes at most two candidates, so 3 a symbol are enough. */
static void merge_word(struct merging *m, size_t count)
{
    for (uint32_t i = 0; i + 1 < count; i++)
        consider(m, i);
    while (m->heap_count > 0) {
        struct candidate top = heap_pop(m);
        const struct bpe_merge *merge = merge_at(m, top.position);
        struct symbol *left = &m->symbols[top.position];
        if (merge == NULL || merge->result != top.result)
            continue; /* its symbols have changed since */
        struct symbol *right = &m->symbols[left->next];
        left->id = merge->result;
        left->next = right->next;
        right->id = BPE_NONE;
        if (left->next != BPE_NONE)
            m->symbols[left->next].previous = top.position;
        if (left->previous != BPE_NONE)
            consider(m, left->previous);
        consider(m, top.position);
    }
}

static skep_status split_bytes(const struct bpe *bpe, const char *bytes, size_t len,
                               struct symbol *symbols, struct skep_error *err)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        if (bpe->byte_id[byte] == BPE_NONE)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "the vocabulary has no token for byte 0x%02x", byte);
        symbols[i] = (struct symbol){
            .id = bpe->byte_id[byte],
            .previous = i > 0 ? (uint32_t)(i - 1) : BPE_NONE,
            .next = i + 1 < len ? (uint32_t)(i + 1) : BPE_NONE,
        };
    }
    return SKEP_OK;
}

/* The token that is the whole word; BPE_NONE if there is none. False if memory is short. */
static bool find_whole(const struct bpe *bpe, const char *bytes, size_t len, uint32_t *out)
{
    struct bytes text = {0};
    bool ok = bytes_reserve(&text, 2 * len);

    *out = BPE_NONE;
    if (ok) {
        for (size_t i = 0; i < len; i++)
            text.len += byte_alphabet_encode((uint8_t)bytes[i], (char *)text.data + text.len);
        *out = bpe_find(bpe, (const char *)text.data, text.len);
    }
    bytes_free(&text);
    return ok;
}

skep_status bpe_encode(const struct bpe *bpe, const char *bytes, size_t len, struct token_ids *out,
                       struct skep_error *err)
{
    enum { MOST = 1 << 28 }; /* positions are 32 bits, and 3 candidates a byte stay under 16 GiB */
    struct merging m = {.bpe = bpe};
    uint32_t whole = BPE_NONE;
    skep_status rc = SKEP_OK;

    if (len == 0)
        return SKEP_OK;
    if (len > MOST)
        return error_set(err, SKEP_INVALID_ARGUMENT, "a word of %zu bytes; at most %d are taken",
                         len, (int)MOST);
    if (bpe->ignore_merges) {
        if (!find_whole(bpe, bytes, len, &whole))
            return error_no_memory(err, "a word", 2 * len);
        if (whole != BPE_NONE)
            return token_ids_append(out, whole) ? SKEP_OK : error_no_memory(err, "token ids", len);
    }
    m.symbols = mem_alloc(len * sizeof(*m.symbols));
    m.heap = mem_alloc(3 * len * sizeof(*m.heap));
    if (m.symbols == NULL || m.heap == NULL) {
        rc = error_no_memory(err, "merging a word", len * sizeof(*m.symbols));
        goto out;
    }
    rc = split_bytes(bpe, bytes, len, m.symbols, err);
    if (rc != SKEP_OK)
        goto out;
    merge_word(&m, len);
    for (uint32_t i = 0; i != BPE_NONE; i = m.symbols[i].next)
        if (!token_ids_append(out, m.symbols[i].id)) {
            rc = error_no_memory(err, "token ids", len);
            goto out;
        }

out:
    mem_free(m.heap);
    mem_free(m.symbols);
    return rc;
}
