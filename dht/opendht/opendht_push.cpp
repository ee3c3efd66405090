/*
 * opendht_ext_push(): see opendht_ext.h. OpenDHT does the sending; what its headers lack is a call
 * that makes it do so at this moment. Its classes are declared in them whole, and what is private
 * there is reached by pointers to members, which an explicit instantiation may name.
 */
#include "dht/opendht/opendht_ext.h"

#include <memory>
#include <mutex>

#include <opendht.h>
#include <opendht/dht.h>
#include <opendht/securedht.h>

namespace
{

template <typename Tag, auto Member> struct reveal {
    friend constexpr auto member(Tag)
    {
        return Member;
    }
};

struct runner_mutex {
    friend constexpr auto member(runner_mutex);
};
struct runner_dht {
    friend constexpr auto member(runner_dht);
};
struct secure_dht {
    friend constexpr auto member(secure_dht);
};
struct tables_of_v4 {
    friend constexpr auto member(tables_of_v4);
};
struct tables_of_v6 {
    friend constexpr auto member(tables_of_v6);
};
struct scheduler_of {
    friend constexpr auto member(scheduler_of);
};
struct announce_now {
    friend constexpr auto member(announce_now);
};

template struct reveal<runner_mutex, &dht::DhtRunner::dht_mtx>;
template struct reveal<runner_dht, &dht::DhtRunner::dht_>;
template struct reveal<secure_dht, &dht::SecureDht::dht_>;
template struct reveal<tables_of_v4, &dht::Dht::dht4>;
template struct reveal<tables_of_v6, &dht::Dht::dht6>;
template struct reveal<scheduler_of, &dht::Dht::scheduler>;
template struct reveal<announce_now, &dht::Dht::searchSendAnnounceValue>;

/* Sends what waits to be put under a key to the nodes of its search that have answered. */
template <typename Tables> void push(dht::Dht &dht, Tables &tables, const dht::InfoHash &key)
{
    const auto found = tables.searches.find(key);

    if (found != tables.searches.end() && found->second)
        (dht.*member(announce_now{}))(found->second);
}

} // namespace

extern "C" void opendht_ext_push(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES])
{
    try {
        auto &r = *reinterpret_cast<dht::DhtRunner *>(runner);
        const std::lock_guard<std::mutex> lock(r.*member(runner_mutex{}));
        const auto &secure = r.*member(runner_dht{});
        auto *dht =
            secure ? dynamic_cast<dht::Dht *>(((*secure).*member(secure_dht{})).get()) : nullptr;
        if (dht == nullptr)
            return;
        const dht::InfoHash hash(key, OPENDHT_EXT_KEY_BYTES);
        ((*dht).*member(scheduler_of{})).syncTime();
        push(*dht, (*dht).*member(tables_of_v4{}), hash);
        push(*dht, (*dht).*member(tables_of_v6{}), hash);
    } catch (...) {
        /* OpenDHT sends it by itself, later. */
    }
}
