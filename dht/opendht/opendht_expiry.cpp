/*
 * How long this node keeps a value for others. OpenDHT goes by the value's type, of which there are
 * four; a record says itself for how long it lives. It lives here for so long from the moment it
 * came, by the monotonic clock: so it ends on time whatever the clocks of its publisher and of its
 * readers show, and a publisher that died is not kept for as long as the type allows.
 *
 * Skep defines OpenDHT's own storing function again and calls the original, with a value that was
 * made earlier by the difference. The dynamic linker prefers ours, see opendht_binding.h; where it
 * does not, values live as long as their type.
 */
#include "dht/opendht/opendht_ext.h"

#include "dht/opendht/opendht_binding.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include <dlfcn.h>
#include <opendht.h>

/* dht/record/record.h, which is C: for how long a record lives; 0: it does not say. */
extern "C" uint32_t record_lifetime_s(const uint8_t *data, size_t len);
extern "C" const uint32_t record_type_lifetime_s[];

/* dht::Dht::storageStore(), as the linker knows it. */
#define STORAGE_STORE                                                                              \
    "_ZN3dht3Dht12storageStoreERKNS_4HashILm20EEERKSt10shared_ptrINS_5ValueEENSt6chrono10time_"    \
    "pointINSA_3_V212steady_clockENSA_8durationIlSt5ratioILl1ELl1000000000EEEEEERKNS_8SockAddrEb"

extern "C" __attribute__((visibility("default"))) bool
skep_opendht_storage_store(void *dht, const dht::InfoHash &key,
                           const std::shared_ptr<dht::Value> &value, dht::time_point created,
                           const dht::SockAddr &from, bool permanent) __asm__(STORAGE_STORE);

/* By how much less than its type allows a value of ours is to live. */
static std::chrono::seconds less_than_type(const dht::Value &value)
{
    const unsigned type = value.type - OPENDHT_EXT_FIRST_TYPE;

    if (value.type < OPENDHT_EXT_FIRST_TYPE || type >= OPENDHT_EXT_TYPES)
        return std::chrono::seconds(0);
    const bool is_short = value.data.empty();
    const uint32_t lifetime =
        is_short ? record_lifetime_s(reinterpret_cast<const uint8_t *>(value.user_type.data()),
                                     value.user_type.size())
                 : record_lifetime_s(value.data.data(), value.data.size());
    if (lifetime == 0 || lifetime >= record_type_lifetime_s[type])
        return std::chrono::seconds(0);
    return std::chrono::seconds(record_type_lifetime_s[type] - lifetime);
}

/* On OpenDHT's thread. */
bool skep_opendht_storage_store(void *dht, const dht::InfoHash &key,
                                const std::shared_ptr<dht::Value> &value, dht::time_point created,
                                const dht::SockAddr &from, bool permanent)
{
    static const auto original =
        reinterpret_cast<decltype(&skep_opendht_storage_store)>(dlsym(RTLD_NEXT, STORAGE_STORE));

    if (original == nullptr)
        return false;
    if (value && !permanent)
        created = std::min(created, dht::clock::now()) - less_than_type(*value);
    return original(dht, key, value, created, from, permanent);
}

extern "C" bool opendht_ext_ends_on_time(void)
{
    static const bool does = opendht_binding_is(
        STORAGE_STORE, reinterpret_cast<const void *>(&skep_opendht_storage_store));

    return does;
}
