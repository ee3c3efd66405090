/*
 * Most of the C++ of Skep (the rest: opendht_push.cpp, opendht_socket.cpp, opendht_expiry.cpp): see
 * opendht_ext.h for why it exists. `dht_runner` of the C bindings is dht::DhtRunner under another
 * name (opendht c/opendht.cpp), so both may be used on one object. Every function catches
 * everything: an exception through C frames would end the process.
 */
#include "dht/opendht/opendht_ext.h"

#include "dht/opendht/opendht_binding.h"
#include "dht/opendht/opendht_socket.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <opendht.h>

/*
 * OpenDHT compares which fields two answers of a query have, not what is in them, so that whatever
 * a second node answers passes for a repetition of what the first one did (its pull request 889
 * mends that). The comparison it meant, in place of its own: see opendht_binding.h.
 */
__attribute__((visibility("default"))) bool
dht::FieldValueIndex::containedIn(const FieldValueIndex &other) const
{
    return std::all_of(index.begin(), index.end(), [&other](const auto &field) {
        const auto same = other.index.find(field.first);
        return same != other.index.end() && same->second == field.second;
    });
}

/* Of dht::Dht, whose class is in none of OpenDHT's installed headers, as the linker knows them. */
dht::NodeStats skep_opendht_stats(const void *dht,
                                  sa_family_t family) __asm__("_ZNK3dht3Dht13getNodesStatsEt");
extern "C" __attribute__((visibility("default"))) void
skep_opendht_connectivity_changed(void *dht,
                                  sa_family_t family) __asm__("_ZN3dht3Dht19connectivityChangedEt");

/*
 * OpenDHT's own connectivityChanged(), unless there are peers that answer. It calls that by itself
 * whenever all peers of a search are dead, and takes all peers for neither dead nor alive then. Who
 * has sent pings under hundreds of ids that answer nothing could keep a node waiting for these for
 * ever: they must stay dead. The dynamic linker prefers this one; the next it knows is OpenDHT's.
 * On OpenDHT's thread.
 */
void skep_opendht_connectivity_changed(void *dht, sa_family_t family)
{
    static const auto original = reinterpret_cast<void (*)(void *, sa_family_t)>(
        dlsym(RTLD_NEXT, "_ZN3dht3Dht19connectivityChangedEt"));

    if (original != nullptr && skep_opendht_stats(dht, family).good_nodes == 0)
        original(dht, family);
}

namespace
{

/* The same function as the linker knows it, so that its address can be asked for. */
constexpr const char *contained_in_symbol = "_ZNK3dht15FieldValueIndex11containedInERKS0_";
extern "C" bool skep_opendht_contained_in(
    const dht::FieldValueIndex *,
    const dht::FieldValueIndex &) __asm__("_ZNK3dht15FieldValueIndex11containedInERKS0_");

/* Ids of value types on the wire: "SK" and the index. Others' types start at 0 and are few. */
constexpr dht::ValueType::Id first_type = OPENDHT_EXT_FIRST_TYPE;
/* The types that OpenDHT defines itself; a plain `dhtnode` puts with type 0. */
constexpr dht::ValueType::Id foreign_types = 16;

dht::DhtRunner *unwrap(dht_runner *runner)
{
    return reinterpret_cast<dht::DhtRunner *>(runner);
}

bool is_ours(const dht::Value &value)
{
    return value.type >= first_type && value.type < first_type + OPENDHT_EXT_TYPES;
}

/*
 * Whether a value is only an id, a type and its content: data, or a user type if it is short.
 * Owners and signatures of OpenDHT's own are neither used nor checked here, so a stranger could
 * hang kilobytes on them.
 */
bool is_plain(const dht::Value &value)
{
    return is_ours(value) && !value.owner && (value.user_type.empty() || value.data.empty()) &&
           value.user_type.size() <= OPENDHT_EXT_SHORT_BYTES && value.signature.empty() &&
           value.cypher.empty() && !value.recipient && value.seq == 0;
}

/* The content of a plain value. */
struct content {
    const uint8_t *data;
    size_t len;

    explicit content(const dht::Value &value)
        : data(value.data.empty() ? reinterpret_cast<const uint8_t *>(value.user_type.data())
                                  : value.data.data()),
          len(value.data.empty() ? value.user_type.size() : value.data.size())
    {
    }
};

/* The policies of one runner, bound to C functions. */
struct policies {
    opendht_ext_store_fn store;
    opendht_ext_edit_fn edit;
    opendht_ext_show_fn show;
    void *arg;

    bool may_store(const dht::InfoHash &key, std::shared_ptr<dht::Value> &value,
                   uint32_t lifetime_s) const
    {
        if (value == nullptr || !is_plain(*value)) {
            store(arg, key.data(), 0, nullptr, 0);
            return false;
        }
        const content bytes(*value);
        if (!store(arg, key.data(), value->id, bytes.data, bytes.len))
            return false;
        place(key, value, lifetime_s);
        return true;
    }

    bool may_edit(const dht::InfoHash &key, const dht::Value *old,
                  std::shared_ptr<dht::Value> &next, uint32_t lifetime_s) const
    {
        if (old == nullptr || next == nullptr || !is_plain(*next)) {
            edit(arg, key.data(), 0, nullptr, 0, nullptr, 0);
            return false;
        }
        const content before(*old), after(*next);
        /* What is stored already may come again in the other place, to live on. */
        const bool is_same =
            before.len == after.len &&
            (after.len == 0 || std::memcmp(before.data, after.data, after.len) == 0);
        if (!is_same &&
            !edit(arg, key.data(), next->id, before.data, before.len, after.data, after.len))
            return false;
        place(key, next, lifetime_s);
        return true;
    }

    /* Short values come as user types, which queries show; where there are many, as data. */
    void place(const dht::InfoHash &key, std::shared_ptr<dht::Value> &value,
               uint32_t lifetime_s) const
    {
        if (value->user_type.empty() ||
            show(arg, key.data(), value->id, value->user_type.size(), lifetime_s))
            return;
        const content bytes(*value);
        value = std::make_shared<dht::Value>(value->type, bytes.data, bytes.len, value->id);
    }
};

dht::ValueType make_type(dht::ValueType::Id id, const std::string &name, uint32_t lifetime_s,
                         const policies &p)
{
    return dht::ValueType(
        id, name, std::chrono::seconds(lifetime_s),
        [p, lifetime_s](dht::InfoHash key, std::shared_ptr<dht::Value> &value,
                        const dht::InfoHash &,
                        const dht::SockAddr &) { return p.may_store(key, value, lifetime_s); },
        [p, lifetime_s](dht::InfoHash key, const std::shared_ptr<dht::Value> &old,
                        std::shared_ptr<dht::Value> &next, const dht::InfoHash &,
                        const dht::SockAddr &) {
            return p.may_edit(key, old.get(), next, lifetime_s);
        });
}

void register_types(dht::DhtRunner &runner, const opendht_ext_config &config)
{
    const policies p{config.store, config.edit, config.show, config.arg};

    for (unsigned i = 0; i < OPENDHT_EXT_TYPES; i++)
        runner.registerType(make_type(static_cast<dht::ValueType::Id>(first_type + i),
                                      "skep " + std::to_string(config.type_lifetime_s[i]),
                                      config.type_lifetime_s[i], p));
    /* may_store() says no to anything not of our types, so this is the refusal of theirs. */
    for (dht::ValueType::Id id = 0; id < foreign_types; id++)
        runner.registerType(make_type(id, "foreign " + std::to_string(id), 1, p));
}

/*
 * OpenDHT falls back to one constant of its own for values whose type nobody registered, and that
 * stores anything. There is no call to change it, so the constant's policies are replaced; it is
 * set up at run time, so it lies in writable memory.
 */
void replace_fallback_policies()
{
    auto &fallback = const_cast<dht::ValueType &>(dht::ValueType::USER_DATA);

    fallback.storePolicy = [](dht::InfoHash, std::shared_ptr<dht::Value> &, const dht::InfoHash &,
                              const dht::SockAddr &) { return false; };
    fallback.editPolicy = [](dht::InfoHash, const std::shared_ptr<dht::Value> &,
                             std::shared_ptr<dht::Value> &, const dht::InfoHash &,
                             const dht::SockAddr &) { return false; };
}

dht::DhtRunner::Config make_config(const opendht_ext_config &config)
{
    dht::DhtRunner::Config out;
    auto &node = out.dht_config.node_config;

    node.network = config.network_id;
    if (config.node_id != nullptr)
        node.node_id = dht::InfoHash(config.node_id, OPENDHT_EXT_KEY_BYTES);
    node.is_bootstrap = config.is_bootstrap;
    node.maintain_storage = config.maintain_storage;
    node.max_req_per_sec = config.max_req_per_sec;
    node.max_peer_req_per_sec = config.max_peer_req_per_sec;
    node.max_store_size = static_cast<ssize_t>(config.storage_limit_bytes);
    out.threaded = true;
    out.peer_discovery = false;
    out.peer_publish = false;
    if (config.bind4 != nullptr)
        out.bind4 = dht::SockAddr(config.bind4, config.bind4_len);
    if (config.bind6 != nullptr)
        out.bind6 = dht::SockAddr(config.bind6, config.bind6_len);
    return out;
}

/*
 * OpenDHT holds back gets and puts while it knows only peers that have not answered a request of
 * its own ("connecting"). The first node of a swarm gets into that state when somebody joins it,
 * and stays there until its next round of maintenance, 5 to 25 s later. A change of connectivity
 * brings that round forward. Once a spell: a peer that does not answer is dropped by OpenDHT.
 */
void hurry_when_connecting(dht::DhtRunner &runner)
{
    auto connecting = std::make_shared<bool>(false);

    runner.setOnStatusChanged([&runner, connecting](dht::NodeStatus v4, dht::NodeStatus v6) {
        const bool now = std::max(v4, v6) == dht::NodeStatus::Connecting;
        if (now && !*connecting)
            runner.connectivityChanged();
        *connecting = now;
    });
}

void copy_text(char *out, size_t bytes, const char *text)
{
    const size_t len = std::min(std::strlen(text), bytes - 1);
    std::memcpy(out, text, len);
    out[len] = '\0';
}

/*
 * The calls of one operation, shared by the copies OpenDHT makes of its closures. The last copy to
 * go releases it, which is how an operation that OpenDHT drops without a word still ends.
 */
class operation
{
  public:
    explicit operation(const opendht_ext_calls &c) : calls(c)
    {
    }
    operation(const operation &) = delete;
    operation &operator=(const operation &) = delete;
    ~operation()
    {
        calls.release(calls.arg);
    }

    bool values(const std::vector<std::shared_ptr<dht::Value>> &found) const
    {
        bool more = true;
        for (const auto &value : found) {
            if (!value || !is_plain(*value))
                continue;
            const content bytes(*value);
            more = calls.value(calls.arg, value->id, bytes.data, bytes.len);
            if (!more)
                break;
        }
        return reply() && more;
    }
    /* The same of what a query found: ids and user types. */
    bool fields(const std::vector<std::shared_ptr<dht::FieldValueIndex>> &found) const
    {
        bool more = true;
        for (const auto &one : found) {
            if (!one)
                continue;
            const auto id = one->index.find(dht::Value::Field::Id);
            const auto user_type = one->index.find(dht::Value::Field::UserType);
            if (id == one->index.end() || user_type == one->index.end())
                continue;
            const dht::Blob bytes = user_type->second.getBlob();
            more = calls.value(calls.arg, id->second.getInt(), bytes.data(), bytes.size());
            if (!more)
                break;
        }
        return reply() && more;
    }
    void done(bool ok) const
    {
        calls.done(calls.arg, ok);
    }

  private:
    bool reply() const
    {
        return calls.reply == nullptr || calls.reply(calls.arg);
    }

    const opendht_ext_calls calls;
};

/* The operation of these calls; released already, and NULL, if memory is short. */
std::shared_ptr<operation> make_operation(const opendht_ext_calls &calls)
{
    operation *op = new (std::nothrow) operation(calls);
    if (op == nullptr) {
        calls.release(calls.arg);
        return nullptr;
    }
    try {
        return std::shared_ptr<operation>(op); /* deletes op if it throws */
    } catch (...) {
        return nullptr;
    }
}

/*
 * Who listens; shared by the copies OpenDHT makes of its closure, as operations are. The future of
 * its token lives here, so that it goes with the last of those copies: OpenDHT has given up its own
 * end of it long before, in the operation that began the listen. Whoever drops a future earlier
 * leaves it to OpenDHT to free the state behind it, ordered by nothing but the reference count
 * inside that library, which ThreadSanitizer does not see.
 */
class listener
{
  public:
    listener(void (*h)(void *), void (*r)(void *), void *a) : notify(h), release(r), arg(a)
    {
    }
    listener(const listener &) = delete;
    listener &operator=(const listener &) = delete;
    ~listener()
    {
        release(arg);
    }
    void ring() const
    {
        notify(arg);
    }

    std::shared_future<size_t> token; /* of the thread that starts and stops the listen */

  private:
    void (*notify)(void *);
    void (*release)(void *);
    void *arg;
};

} // namespace

struct opendht_ext_listen {
    dht::InfoHash key;
    std::shared_ptr<listener> who;
};

extern "C" {

void opendht_ext_refuse_unknown_types(void)
{
    static std::once_flag once;

    try {
        std::call_once(once, replace_fallback_policies);
    } catch (...) {
        /* Out of memory: unknown types are stored as before, within the storage limit. */
    }
}

bool opendht_ext_run(dht_runner *runner, const struct opendht_ext_config *config, char *why,
                     size_t why_bytes)
{
    try {
        dht::DhtRunner &r = *unwrap(runner);
        hurry_when_connecting(r);
        const dht::DhtRunner::Config c = make_config(*config);
        dht::DhtRunner::Context context;
        context.sock = opendht_socket_new(c.bind4, c.bind6, *config);
        r.run(c, std::move(context));
        register_types(r, *config);
        return true;
    } catch (const std::exception &e) {
        copy_text(why, why_bytes, e.what());
    } catch (...) {
        copy_text(why, why_bytes, "unknown exception");
    }
    return false;
}

void opendht_ext_delete(dht_runner *runner)
{
    try {
        if (runner != nullptr)
            unwrap(runner)->join();
    } catch (...) {
        /* What join() left running, the destructor ends. */
    }
    delete unwrap(runner);
}

void opendht_ext_put(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                     uint64_t value_id, unsigned type_index, const uint8_t *data, size_t len,
                     const struct opendht_ext_calls *calls)
{
    try {
        const auto op = make_operation(*calls);
        if (!op)
            return;
        const bool is_short = len <= OPENDHT_EXT_SHORT_BYTES;
        auto value =
            std::make_shared<dht::Value>(static_cast<dht::ValueType::Id>(first_type + type_index),
                                         data, is_short ? 0 : len, value_id);
        if (is_short)
            value->user_type.assign(reinterpret_cast<const char *>(data), len);
        unwrap(runner)->put(
            dht::InfoHash(key, OPENDHT_EXT_KEY_BYTES), std::move(value),
            dht::DoneCallback(
                [op](bool ok, const std::vector<std::shared_ptr<dht::Node>> &) { op->done(ok); }));
    } catch (...) {
        /* Unwinding released the operation, which ends it with failure. */
    }
}

void opendht_ext_get(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                     const struct opendht_ext_calls *calls)
{
    try {
        const auto op = make_operation(*calls);
        if (!op)
            return;
        unwrap(runner)->get(
            dht::InfoHash(key, OPENDHT_EXT_KEY_BYTES),
            dht::GetCallback([op](const std::vector<std::shared_ptr<dht::Value>> &values) {
                return op->values(values);
            }),
            dht::DoneCallback(
                [op](bool ok, const std::vector<std::shared_ptr<dht::Node>> &) { op->done(ok); }),
            dht::Value::Filter([](const dht::Value &value) { return is_ours(value); }));
    } catch (...) {
        /* As in opendht_ext_put(). */
    }
}

bool opendht_ext_can_query(void)
{
    static const bool can = opendht_binding_is(
        contained_in_symbol, reinterpret_cast<const void *>(&skep_opendht_contained_in));

    return can;
}

void opendht_ext_query(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                       const struct opendht_ext_calls *calls)
{
    try {
        const auto op = make_operation(*calls);
        if (!op)
            return;
        dht::Select select;
        select.field(dht::Value::Field::Id).field(dht::Value::Field::UserType);
        unwrap(runner)->query(
            dht::InfoHash(key, OPENDHT_EXT_KEY_BYTES),
            dht::QueryCallback(
                [op](const std::vector<std::shared_ptr<dht::FieldValueIndex>> &found) {
                    return op->fields(found);
                }),
            dht::DoneCallback(
                [op](bool ok, const std::vector<std::shared_ptr<dht::Node>> &) { op->done(ok); }),
            dht::Query(std::move(select)));
    } catch (...) {
        /* As in opendht_ext_put(). */
    }
}

struct opendht_ext_listen *opendht_ext_listen_start(dht_runner *runner,
                                                    const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                                                    void (*notify)(void *), void (*release)(void *),
                                                    void *arg)
{
    listener *l = new (std::nothrow) listener(notify, release, arg);
    if (l == nullptr) {
        release(arg);
        return nullptr;
    }
    try {
        const std::shared_ptr<listener> shared(l); /* deletes l if it throws */
        auto out = std::make_unique<opendht_ext_listen>();
        out->key = dht::InfoHash(key, OPENDHT_EXT_KEY_BYTES);
        out->who = shared;
        shared->token =
            unwrap(runner)
                ->listen(out->key,
                         dht::ValueCallback(
                             [shared](const std::vector<std::shared_ptr<dht::Value>> &, bool) {
                                 shared->ring();
                                 return true;
                             }),
                         dht::Value::Filter([](const dht::Value &v) { return is_ours(v); }))
                .share();
        return out.release();
    } catch (...) {
        return nullptr; /* unwinding released the listener */
    }
}

bool opendht_ext_listen_stop(dht_runner *runner, struct opendht_ext_listen *listen)
{
    try {
        const auto &token = listen->who->token;
        if (token.wait_for(std::chrono::seconds(0)) != std::future_status::ready ||
            token.get() == 0)
            return false;
        unwrap(runner)->cancelListen(listen->key, token.get());
    } catch (...) {
        /* It ends with the runner. */
    }
    delete listen;
    return true;
}

void opendht_ext_listen_free(struct opendht_ext_listen *listen)
{
    delete listen;
}

void opendht_ext_contact(dht_runner *runner, const struct sockaddr *address, socklen_t len)
{
    try {
        unwrap(runner)->bootstrap(dht::SockAddr(address, len));
    } catch (...) {
        /* A contact is a hint; the caller asks again while peers are missing. */
    }
}

void opendht_ext_hurry(dht_runner *runner)
{
    try {
        unwrap(runner)->connectivityChanged();
    } catch (...) {
        /* The round comes by itself, later. */
    }
}

void opendht_ext_introduce(dht_runner *runner)
{
    try {
        dht::InfoHash near = unwrap(runner)->getNodeId();
        dht::InfoHash random = dht::InfoHash::getRandom();
        std::copy(random.begin() + OPENDHT_EXT_KEY_BYTES / 2, random.end(),
                  near.begin() + OPENDHT_EXT_KEY_BYTES / 2);
        unwrap(runner)->get(
            near,
            dht::GetCallback([](const std::vector<std::shared_ptr<dht::Value>> &) { return true; }),
            dht::DoneCallback());
    } catch (...) {
        /* It will become known by and by. */
    }
}

void opendht_ext_read_stats(dht_runner *runner, struct opendht_ext_stats *out)
{
    *out = {};
    try {
        dht::DhtRunner &r = *unwrap(runner);
        const dht::NodeStats v4 = r.getNodesStats(AF_INET);
        const dht::NodeStats v6 = r.getNodesStats(AF_INET6);
        const auto stored = r.getStoreSize();
        out->good_nodes = v4.good_nodes + v6.good_nodes;
        out->dubious_nodes = v4.dubious_nodes + v6.dubious_nodes;
        out->storage_bytes = stored.first;
        out->storage_values = stored.second;
    } catch (...) {
        *out = {};
    }
}

size_t opendht_ext_known_peers(dht_runner *runner, struct sockaddr_storage *out, socklen_t *lens,
                               size_t cap)
{
    try {
        const std::vector<dht::NodeExport> nodes = unwrap(runner)->exportNodes();
        const size_t count = std::min(cap, nodes.size());
        for (size_t i = 0; i < count; i++) {
            out[i] = nodes[i].ss;
            lens[i] = nodes[i].sslen;
        }
        return count;
    } catch (...) {
        return 0;
    }
}

size_t opendht_ext_public_addresses(dht_runner *runner, sa_family_t family,
                                    struct sockaddr_storage *out, size_t cap)
{
    try {
        const std::vector<dht::SockAddr> seen = unwrap(runner)->getPublicAddress(family);
        size_t count = 0;
        for (const dht::SockAddr &address : seen) {
            if (count == cap)
                break;
            if (address.getFamily() != family || address.getLength() > sizeof(*out))
                continue;
            std::memset(&out[count], 0, sizeof(*out));
            std::memcpy(&out[count++], address.get(), address.getLength());
        }
        return count;
    } catch (...) {
        return 0;
    }
}

} // extern "C"
