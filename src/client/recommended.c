/* What nodes recommend. */
#include "client/recommended.h"

#include <stddef.h>

#include "client/latency.h"

/* Of the node, whichever its expert: no method and no expert are called "". */
static const char ANY_EXPERT[] = "";

static uint64_t key_of(const uint8_t *peer_id, const char *uid)
{
    return latency_key(peer_id, "", uid);
}

static struct recommended_entry *find(struct recommended *r, uint64_t key)
{
    struct recommended_entry *set = r->entries[(key ^ (key >> 32)) % RECOMMENDED_SETS];

    for (size_t i = 0; i < RECOMMENDED_WAYS; i++)
        if (set[i].key == key) {
            set[i].used = ++r->uses;
            return &set[i];
        }
    return NULL;
}

static struct recommended_entry *find_or_make(struct recommended *r, uint64_t key)
{
    struct recommended_entry *set = r->entries[(key ^ (key >> 32)) % RECOMMENDED_SETS];
    struct recommended_entry *entry = find(r, key);

    if (entry != NULL)
        return entry;
    entry = &set[0];
    for (size_t i = 1; i < RECOMMENDED_WAYS; i++)
        if (set[i].used < entry->used)
            entry = &set[i];
    *entry = (struct recommended_entry){.key = key, .used = ++r->uses};
    return entry;
}

void recommended_learn(struct recommended *r, const uint8_t peer_id[static PEER_ID_BYTES],
                       const char *uid, bool of_gradients, enum tensor_encoding encoding)
{
    uint8_t setting = (uint8_t)tensor_encoding_setting(encoding);

    find_or_make(r, key_of(peer_id, uid))->settings[of_gradients] = setting;
    find_or_make(r, key_of(peer_id, ANY_EXPERT))->settings[of_gradients] = setting;
}

enum skep_compression recommended_find(struct recommended *r,
                                       const uint8_t peer_id[static PEER_ID_BYTES], const char *uid,
                                       bool of_gradients)
{
    const struct recommended_entry *entry = find(r, key_of(peer_id, uid));

    if (entry == NULL || entry->settings[of_gradients] == SKEP_COMPRESSION_DEFAULT)
        entry = find(r, key_of(peer_id, ANY_EXPERT));
    return entry != NULL ? (enum skep_compression)entry->settings[of_gradients]
                         : SKEP_COMPRESSION_DEFAULT;
}
