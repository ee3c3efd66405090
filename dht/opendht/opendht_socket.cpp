/*
 * The socket that OpenDHT sends through. It counts what is sent, marks what a client sends, and,
 * with two functions of OpenDHT replaced, keeps it from asking peers that are gone (liveness.h).
 *
 * OpenDHT has no call by which a peer is given up. But it does so itself, at once and completely,
 * if the system finds no route to the peer (EHOSTUNREACH): pending requests to it end, searches go
 * on with others, nobody hears of it from us. So that is what this socket answers.
 *
 * Threads: what is replaced here runs with OpenDHT's lock held, and so does sendTo().
 */
#include "dht/opendht/opendht_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include <dlfcn.h>
#include <opendht/dht_interface.h>
#include <opendht/node.h>
#include <opendht/routing_table.h>

#include "dht/opendht/liveness.h"

/* Of dht::Dht, as the linker knows them: private ones, and ones that this file replaces. */
#define SEND_CACHED_PING "_ZN3dht3Dht14sendCachedPingERNS_6BucketE"
#define FIND_NODE "_ZNK3dht3Dht8findNodeERKNS_4HashILm20EEEt"
#define PING_NODE "_ZN3dht3Dht8pingNodeENS_8SockAddrEOSt8functionIFvbEE"
#define ON_NEW_NODE "_ZN3dht3Dht9onNewNodeERKSt10shared_ptrINS_4NodeEEi"
#define PERIODIC                                                                                   \
    "_ZN3dht3Dht8periodicEPKhmNS_8SockAddrERKNSt6chrono10time_pointINS4_3_V212steady_clockE"       \
    "NS4_8durationIlSt5ratioILl1ELl1000000000EEEEEE"

void skep_opendht_send_cached_ping(void *dht, dht::Bucket &bucket) __asm__(SEND_CACHED_PING);
std::shared_ptr<dht::Node> skep_opendht_find_node(const void *dht, const dht::InfoHash &id,
                                                  sa_family_t family) __asm__(FIND_NODE);
void skep_opendht_ping_node(void *dht, dht::SockAddr address,
                            dht::DoneCallbackSimple &&done) __asm__(PING_NODE);
extern "C" __attribute__((visibility("default"))) void
skep_opendht_on_new_node(void *dht, const std::shared_ptr<dht::Node> &node,
                         int confirm) __asm__(ON_NEW_NODE);
__attribute__((visibility("default"))) dht::time_point
skep_opendht_periodic(void *dht, const uint8_t *data, size_t len, dht::SockAddr from,
                      const dht::time_point &now) __asm__(PERIODIC);

namespace
{

uint64_t now_us()
{
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(dht::clock::now().time_since_epoch())
            .count());
}

using held_node = std::shared_ptr<dht::Node>;

void forget(void *held)
{
    delete static_cast<held_node *>(held);
}

class skep_socket : public dht::net::UdpSocket
{
  public:
    skep_socket(const dht::SockAddr &bind4, const dht::SockAddr &bind6,
                const opendht_ext_config &config)
        : UdpSocket(bind4, bind6), sent(config.sent), arg(config.arg), client(config.is_client),
          liveness(liveness_new(forget), liveness_free)
    {
        if (!liveness)
            throw std::bad_alloc();
    }

    int sendTo(const dht::SockAddr &to, const uint8_t *data, size_t len, bool replied) override
    {
        if (is_question(data, len)) {
            if (giving_up || !liveness_asks(liveness.get(), to.get(), is_ping(data, len), now_us()))
                return EHOSTUNREACH;
        } else {
            note_asker(to);
        }
        uint8_t marked[MAX_DATAGRAM];
        if (client && mark(data, len, marked)) {
            data = marked;
            len += sizeof(client_mark);
        }
        const int error = UdpSocket::sendTo(to, data, len, replied);
        if (error == 0 && sent != nullptr)
            sent(arg, len);
        return error;
    }

    /* A datagram before OpenDHT reads it. It says nothing of clients, so that what they answer does
     * not come to take() below. */
    void note_client(const uint8_t *data, size_t len, const dht::SockAddr &from)
    {
        if (len > sizeof(client_mark) && from.getFamily() != AF_UNSPEC &&
            std::memcmp(data + len - sizeof(client_mark), client_mark, sizeof(client_mark)) == 0 &&
            liveness_is_gone(liveness.get(), from.get()))
            liveness_forget(liveness.get(), from.get());
    }

    /* False: the peer is gone, and others do not know yet. */
    bool take(void *dht, const held_node &node, int confirm)
    {
        const sockaddr *address = node->getAddr().get();

        if (confirm == 0 && !liveness_is_named(liveness.get(), address, now_us())) {
            hold(dht, node, false);
            give_up(dht, node);
            return false;
        }
        if (confirm != 0)
            liveness_hears(liveness.get(), address, confirm == 2, now_us());
        hold(dht, node, confirm == 2);
        return true;
    }

    /* OpenDHT revives whoever sends something; who is gone has to answer first. */
    void taken(void *dht, const held_node &node)
    {
        if (liveness_is_gone(liveness.get(), node->getAddr().get()))
            give_up(dht, node);
    }

    /* Returns whether anything was sent or given up. */
    bool look(dht::DhtInterface *dht)
    {
        liveness_action actions[LIVENESS_MAX_ACTIONS];
        const size_t count = liveness_due(liveness.get(), now_us(), actions);

        for (size_t i = 0; i < count; i++) {
            /* A copy: the table may change while OpenDHT sends. */
            const held_node node = *static_cast<held_node *>(actions[i].held);
            if (actions[i].what == liveness_action::LIVENESS_GIVE_UP)
                give_up(dht, node);
            else if (actions[i].what == liveness_action::LIVENESS_PING || is_routed(dht, *node))
                ping(dht, node);
        }
        return ask_for_own_address(dht) || count > 0;
    }

    dht::time_point next_look() const
    {
        const uint64_t next = liveness_next_us(liveness.get());
        return next == UINT64_MAX ? dht::time_point::max()
                                  : dht::time_point(std::chrono::microseconds(next));
    }

  private:
    static constexpr size_t MAX_DATAGRAM = 65536;
    static constexpr std::chrono::seconds ASK_ADDRESS_AGAIN{1};
    /* Of the map that a message is: "s" for true. */
    static constexpr uint8_t client_mark[] = {0xA1, 's', 0xC3};

    opendht_ext_sent_fn sent;
    void *arg;
    const bool client;
    std::unique_ptr<struct liveness, void (*)(struct liveness *)> liveness;
    bool giving_up{false};
    /* Somebody who has asked us, while nobody has told us our address. */
    dht::SockAddr asker;
    bool has_asker{false};
    bool knows_address{false};
    dht::time_point asked_address{};

    /* A message is a map; that of a question begins with "a", its arguments. */
    static bool is_question(const uint8_t *data, size_t len)
    {
        return len > 3 && (data[0] & 0xF0) == 0x80 && data[1] == 0xA1 && data[2] == 'a';
    }

    static bool is_ping(const uint8_t *data, size_t len)
    {
        static constexpr uint8_t ping[] = {0xA1, 'q', 0xA4, 'p', 'i', 'n', 'g'};
        return memmem(data, len, ping, sizeof(ping)) != nullptr;
    }

    static bool mark(const uint8_t *data, size_t len, uint8_t out[MAX_DATAGRAM])
    {
        if (len == 0 || len > MAX_DATAGRAM - sizeof(client_mark) || data[0] < 0x80 ||
            data[0] >= 0x8F)
            return false;
        std::memcpy(out, data, len);
        out[0]++;
        std::memcpy(out + len, client_mark, sizeof(client_mark));
        return true;
    }

    void hold(void *dht, const held_node &node, bool replied)
    {
        void **slot = liveness_slot(liveness.get(), node->getAddr().get());

        if (slot == nullptr)
            return;
        auto *held = static_cast<held_node *>(*slot);
        if (held == nullptr) {
            *slot = new (std::nothrow) held_node(node);
        } else if (*held != node) {
            /* Another peer answers there now. */
            const held_node before = std::exchange(*held, node);
            if (replied && before->id != node->id)
                give_up(dht, before);
        }
    }

    static void ping(void *dht, const held_node &node)
    {
        dht::Bucket only;

        only.cached = node;
        skep_opendht_send_cached_ping(dht, only);
    }

    void give_up(void *dht, const held_node &node)
    {
        if (node->isExpired())
            return;
        giving_up = true;
        ping(dht, node);
        giving_up = false;
    }

    /* Those in the routing table are named to others; others are asked when they are needed. */
    static bool is_routed(const void *dht, const dht::Node &node)
    {
        return skep_opendht_find_node(dht, node.id, node.getFamily()) != nullptr;
    }

    void note_asker(const dht::SockAddr &to)
    {
        if (knows_address)
            return;
        asker = to;
        has_asker = true;
    }

    /* Clients are in no routing table, so a node that only they know pings one to learn it. */
    bool ask_for_own_address(dht::DhtInterface *dht)
    {
        if (knows_address || !has_asker)
            return false;
        has_asker = false;
        const auto told = dht->getPublicAddress(0);
        knows_address = std::any_of(told.begin(), told.end(),
                                    [](const auto &address) { return !address.isLoopback(); });
        /* What somebody on this machine sees says nothing new. */
        if (knows_address || (!told.empty() && asker.isLoopback()) ||
            dht::clock::now() < asked_address + ASK_ADDRESS_AGAIN)
            return false;
        asked_address = dht::clock::now();
        skep_opendht_ping_node(dht, asker, {});
        return true;
    }
};

skep_socket *socket_of(void *dht)
{
    /* dht::Dht is final and has no other base. */
    return dynamic_cast<skep_socket *>(static_cast<dht::DhtInterface *>(dht)->getSocket());
}

template <typename Function> Function original(const char *symbol)
{
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol));
}

} // namespace

std::unique_ptr<dht::net::DatagramSocket> opendht_socket_new(const dht::SockAddr &bind4,
                                                             const dht::SockAddr &bind6,
                                                             const opendht_ext_config &config)
{
    return std::make_unique<skep_socket>(bind4, bind6, config);
}

/* A peer was named to us (0), sent us something (1) or replied (2). */
void skep_opendht_on_new_node(void *dht, const std::shared_ptr<dht::Node> &node, int confirm)
{
    static const auto theirs =
        original<void (*)(void *, const std::shared_ptr<dht::Node> &, int)>(ON_NEW_NODE);
    skep_socket *socket = socket_of(dht);

    if (socket != nullptr && !socket->take(dht, node, confirm))
        return;
    if (theirs != nullptr)
        theirs(dht, node, confirm);
    if (socket != nullptr)
        socket->taken(dht, node);
}

/* OpenDHT's turn of work: takes a datagram, if there is one, and does what is due. */
dht::time_point skep_opendht_periodic(void *dht, const uint8_t *data, size_t len,
                                      dht::SockAddr from, const dht::time_point &now)
{
    static const auto theirs = original<dht::time_point (*)(
        void *, const uint8_t *, size_t, dht::SockAddr, const dht::time_point &)>(PERIODIC);
    skep_socket *socket = socket_of(dht);

    if (socket != nullptr)
        socket->note_client(data, len, from);
    dht::time_point next = theirs(dht, data, len, std::move(from), now);
    if (socket == nullptr)
        return next;
    if (socket->look(static_cast<dht::DhtInterface *>(dht)))
        next = theirs(dht, nullptr, 0, dht::SockAddr(), dht::clock::now());
    return std::min(next, socket->next_look());
}
