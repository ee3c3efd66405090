/* See publisher_round.h. */
#include "dht/publish/publisher_round.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

bool publisher_round_reserve(struct publisher_round *round, size_t cap)
{
    assert(round->cap == 0);
    round->records = mem_calloc(cap, sizeof(*round->records));
    round->declarations = mem_calloc(cap, sizeof(*round->declarations));
    round->statements = mem_calloc(cap, sizeof(*round->statements));
    if (round->records != NULL && round->declarations != NULL && round->statements != NULL) {
        round->cap = cap;
        return true;
    }
    publisher_round_fini(round);
    return false;
}

void publisher_round_fini(struct publisher_round *round)
{
    for (size_t i = 0; i < round->count; i++)
        record_free(&round->records[i]);
    mem_free(round->statements);
    mem_free(round->declarations);
    mem_free(round->records);
    round->statements = NULL;
    round->declarations = NULL;
    round->records = NULL;
    round->cap = round->count = 0;
}

bool statement_is_known(const struct statement *s, const struct publisher_round *round)
{
    return s->until_s + (int64_t)round->clock_skew_s > round->now_s;
}

bool statement_is_due(const struct statement *s, const struct publisher_round *round, bool alive,
                      bool urgent)
{
    if (round->scope == PUBLISH_CHANGED && !s->failed && !urgent)
        return false;
    if (alive)
        return true;
    /* A withdrawal: nobody can find it, or everybody knows. */
    return statement_is_known(s, round) && (!s->gone || s->failed);
}

struct record *publisher_round_next(struct publisher_round *round)
{
    assert(round->count < round->cap);
    struct record *record = &round->records[round->count];
    memset(record, 0, sizeof(*record));
    return record;
}

void publisher_round_add(struct publisher_round *round, const uint8_t key[static RECORD_KEY_BYTES])
{
    struct declaration *d = &round->declarations[round->count];

    *d = (struct declaration){.record = &round->records[round->count]};
    memcpy(d->key, key, RECORD_KEY_BYTES);
    round->statements[round->count++] = NULL;
}

/*
 * A record that says "gone" has to outlive the one it contradicts, or that one would come back to
 * life for its last seconds; and readers take records for as long after their end as clocks may
 * differ.
 */
static int64_t gone_until(const struct statement *s, const struct publisher_round *round)
{
    int64_t until = s->until_s + round->clock_skew_s;
    int64_t least = round->now_s + RECORD_MIN_LIFETIME_S;
    int64_t most = round->now_s + RECORD_MAX_LIFETIME_S;

    until = until > least ? until : least;
    return until < most ? until : most;
}

void publisher_round_say(struct publisher_round *round, struct statement *s, bool alive,
                         const uint8_t key[static RECORD_KEY_BYTES])
{
    struct record *record = &round->records[round->count];

    record->expires_at = alive ? round->now_s + round->lifetime_s : gone_until(s, round);
    s->gone = !alive;
    if (alive)
        s->until_s = record->expires_at;
    s->failed = true; /* until the outcome is known */
    s->under_way++;
    publisher_round_add(round, key);
    round->statements[round->count - 1] = s;
    round->said++;
}

void publisher_round_note(struct publisher_round *round)
{
    for (size_t i = 0; i < round->count; i++) {
        struct statement *s = round->statements[i];
        if (s == NULL)
            continue;
        s->failed = round->declarations[i].outcome != SKEP_OK;
        s->under_way--;
        round->failed += s->failed;
    }
}
