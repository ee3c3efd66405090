"""Trackers in their swarm: registration, leases, joining by a tracker, other trackers."""

import json
import signal
import threading

from swarm import (SWARM, Swarm, call, find, free_port, main, refused, run, timeout_option, until,
                   until_found, write_npy)
from tvm_peer import DHT_PEERS, PENDING, PING, SUMMARY, Peer, Server


def tensors(swarm):
    x = swarm.path("x.npy")
    write_npy(x, (1, 16), range(16))
    return "--input", x, "--output", swarm.path("y.npy")


def tracker_of(process):
    """Where a node's own tracker or a `skep tracker` listens."""
    return process.facts["tracker"] if "tracker" in process.facts else process.facts["endpoint"]


def start_tracker(swarm, name, *arguments, port=0, peers=()):
    more = ["--initial-peers", ",".join(peers)] if peers else []
    if port != 0:
        more += ["--port-end", str(port + 1)]
    return swarm.start(name, "tracker", "--host", "127.0.0.1", "--port", str(port), *more, *arguments)


def find_resource(peer, key, seconds=15):
    out, _ = run("find", "--resource", key, "--initial-peers", peer, "--json",
                 timeout_option(seconds), code=(0, 3))
    return json.loads(out)


def until_free(peer, key, count):
    def published():
        rows = find_resource(peer, key)
        return rows and sum({r["tracker_peer_id"]: r["free"] for r in rows}.values()) == count
    until(published, 30, "%d free resources of %s are published" % (count, key))


def query_request(process, key, seconds=20, code=0):
    host, port = tracker_of(process).rsplit(":", 1)
    out, err = run("query-tracker", "--host", host, "--port", port, "--request", key, "--json",
                   timeout_option(seconds), code=code)
    return json.loads(out) if code == 0 else err


def until_registered(process, key, free=1):
    peer = Peer(tracker_of(process))
    until(lambda: peer.queue(key)[0] == free, 30, "%d free of %s" % (free, key))
    return peer


# ---- registration and leases

def case_a_node_registers_and_is_listed():
    with Swarm() as swarm:
        tracker = start_tracker(swarm, "tracker", "--no-dht")
        node = swarm.node("node", ["ffn.0.0", "ffn.0.1"], [], "--tracker", tracker.endpoint,
                          "--tracker-key", "bees:4")
        peer = until_registered(tracker, "bees:4")
        info = peer.summary()["server_info"]
        assert len(info) == 1, info
        assert info[0]["key"] == "server:bees:4", info
        assert info[0]["addr"] == ["127.0.0.1", node.port], info
        assert info[0]["peer_id"] == node.facts["peer_id"], info
        assert info[0]["endpoint"] == node.endpoint, info
        assert info[0]["experts"] == ["ffn.0.0", "ffn.0.1"], info
        node.stop()
        until(lambda: peer.summary()["server_info"] == [], 30, "the node has left the tracker")
        assert peer.queue("bees:4") == (0, 0)


def case_a_node_registers_with_its_own_tracker():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--tracker-key", "k")
        until_registered(node, "k")


def case_a_match_key_leases_the_node_once():
    with Swarm() as swarm:
        tracker = start_tracker(swarm, "tracker", "--no-dht")
        node = swarm.node("node", ["ffn.0.0"], [], "--tracker", tracker.endpoint, "--tracker-key",
                          "k")
        peer = until_registered(tracker, "k")
        got = query_request(tracker, "k")
        assert (got["host"], got["port"]) == ("127.0.0.1", node.port), got
        assert peer.queue("k") == (0, 0)
        wrong = ("--match-key", got["match_key"] + "x")
        said = call("ffn.0.0", *tensors(swarm), *wrong, node=node, code=1)
        assert "match key is wrong or has been used" in said, said
        call("ffn.0.0", *tensors(swarm), "--match-key", got["match_key"], node=node)
        said = call("ffn.0.0", *tensors(swarm), "--match-key", got["match_key"], node=node, code=1)
        assert "match key is wrong or has been used" in said, said
        # It puts itself back, with another key, as soon as the lease has ended.
        until_registered(tracker, "k")
        again = query_request(tracker, "k")
        assert again["match_key"] != got["match_key"]
        call("ffn.0.0", *tensors(swarm), "--match-key", again["match_key"], node=node)
        # Those who have no lease are served all the same.
        call("ffn.0.0", *tensors(swarm), node=node)
        node.stop()
        lease = node.events()[-1]["lease"]
        assert (lease["leases"], lease["refused"]) == (2, 2), lease


def case_a_node_without_a_key_cannot_be_leased():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        said = call("ffn.0.0", *tensors(swarm), "--match-key", "k", node=node, code=1)
        assert "not registered with a tracker" in said, said


def case_a_match_key_that_nobody_presents_is_replaced():
    with Swarm() as swarm:
        tracker = start_tracker(swarm, "tracker", "--no-dht")
        swarm.node("node", ["ffn.0.0"], [], "--tracker", tracker.endpoint, "--tracker-key", "k")
        until_registered(tracker, "k")
        got = query_request(tracker, "k")  # and dies with it
        until_registered(tracker, "k")
        assert query_request(tracker, "k")["match_key"] != got["match_key"]


def case_a_tracker_that_is_killed_and_restarted_hears_everything_anew():
    with Swarm() as swarm:
        port = free_port()
        first = start_tracker(swarm, "first", "--no-dht", port=port)
        node = swarm.node("node", ["ffn.0.0"], [], "--tracker", first.endpoint, "--tracker-key",
                          "k")
        until_registered(first, "k")
        waiting = Peer(first.endpoint)
        waiting.request("nothing of this kind")
        first.kill()
        try:
            waiting.receive()
            raise AssertionError("a waiting client got an answer of a dead tracker")
        except ConnectionError:
            pass
        node.wait_log("registering again")
        second = start_tracker(swarm, "second", "--no-dht", port=port)
        until_registered(second, "k")
        call("ffn.0.0", *tensors(swarm), "--match-key", query_request(second, "k")["match_key"],
             node=node)


def case_options_that_contradict_each_other_are_refused():
    with Swarm() as swarm:
        node = ("node", "--listen", "127.0.0.1:*")
        refused(2, "--tracker: needs --tracker-key", *node, "--tracker", "127.0.0.1:9190")
        refused(2, ["--tracker-key", "--no-tracker", "needs --tracker"], *node, "--no-tracker",
                "--tracker-key", "k")
        refused(2, "--tracker-listen: contradicts --no-tracker", *node, "--no-tracker",
                "--tracker-listen", "127.0.0.1:9190")
        refused(2, "--match-key: needs --endpoint", "call", "ffn.0", "--match-key", "k",
                "--initial-peers", "127.0.0.1:9")
        refused(2, "expected a UID", "find", "--initial-peers", "127.0.0.1:9")
        with_tracker = swarm.node("node", [], [], "--tracker-listen", "127.0.0.1:*")
        port = with_tracker.facts["tracker"].rsplit(":", 1)[1]
        said = refused(1, "port %s is in use" % port, *node, "--tracker-listen",
                       with_tracker.facts["tracker"])
        assert "in use" in said, said
        none = swarm.node("none", [], [], "--no-tracker")
        assert none.facts["tracker"] is None, none.facts


# ---- in the DHT

def case_what_a_tracker_holds_is_found_and_withdrawn():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        tracker = start_tracker(swarm, "tracker", peers=[bootstrap.peer])
        assert find_resource(bootstrap.peer, "rpi:4") == []
        servers = [Server(tracker.endpoint, "rpi:4", port=9000 + i) for i in range(3)]
        until_free(bootstrap.peer, "rpi:4", 3)
        rows = find_resource(bootstrap.peer, "rpi:4")
        assert sorted(r["port"] for r in rows) == [9000, 9001, 9002], rows
        for row in rows:
            assert row["host"] == "127.0.0.1", row
            assert row["tracker"] == tracker.endpoint, row
            assert row["tracker_peer_id"] == tracker.facts["peer_id"], row
            assert row["tracker_endpoint"] == tracker.facts["node_endpoint"], row
        out, _ = run("find", "--resource", "rpi:4", "--initial-peers", bootstrap.peer)
        assert "9001" in out and tracker.endpoint in out, out
        servers.pop().close()
        for server in servers:
            server.close()
        until(lambda: find_resource(bootstrap.peer, "rpi:4") == [], 30,
              "the key is gone with its last server")


def case_a_tracker_that_stops_withdraws():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        tracker = start_tracker(swarm, "tracker", peers=[bootstrap.peer])
        server = Server(tracker.endpoint, "k")
        until_free(bootstrap.peer, "k", 1)
        assert tracker.stop() == 0
        server.close()
        until(lambda: find_resource(bootstrap.peer, "k") == [], 30, "the key is withdrawn")


def case_keys_of_any_characters_are_found():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        tracker = start_tracker(swarm, "tracker", peers=[bootstrap.peer])
        keys = ["192.168.0.143:5555", "a b", "k\u00e4fer", ":", "server:x"]
        servers = [Server(tracker.endpoint, key) for key in keys]
        for key in keys:
            until_free(bootstrap.peer, key, 1)
        assert len(servers) == len(keys)


# ---- joining by a tracker

def case_a_newcomer_needs_the_address_of_a_tracker_only():
    with Swarm() as swarm:
        tracker = start_tracker(swarm, "tracker")
        url = "tracker://" + tracker.endpoint
        node = swarm.node("node", ["ffn.0.0"], [url])
        until_found(tracker.peer, "ffn.0.0", node)
        assert find(url, "ffn.0.0")["ffn.0.0"][0]["endpoint"] == node.endpoint
        # The tracker of any node will do, and for a DHT peer too.
        second = swarm.bootstrap("second", "--initial-peers",
                                 "tracker://" + node.facts["tracker"])
        until_found(second.peer, "ffn.0.0", node)
        call("ffn.0.0", *tensors(swarm), peers="tracker://" + node.facts["tracker"])
        facts = Peer(tracker.endpoint).call(DHT_PEERS)[1]
        assert facts["swarm"] == SWARM and facts["peers"], facts


def case_trackers_of_other_swarms_and_without_dht_are_told_apart():
    with Swarm() as swarm:
        other = start_tracker(swarm, "other", "--swarm", "other")
        alone = start_tracker(swarm, "alone", "--no-dht")
        node = swarm.node("node", ["ffn.0.0"], ["tracker://" + other.endpoint,
                                                "tracker://" + alone.endpoint,
                                                "tracker://127.0.0.1:%d" % free_port()])
        node.wait_log("%s: it is of another swarm" % ("tracker://" + other.endpoint))
        node.wait_log("not a tracker, or one without a DHT")
        node.wait_log("cannot connect")
        refused(4, "no DHT peer answered", "find", "ffn.0.0", "--initial-peers",
                "tracker://" + other.endpoint, timeout_option(2))
        # It was closed for that, and for nothing else.
        assert Peer(alone.endpoint).call(PING) == 0


def case_a_tracker_that_is_started_later_is_joined_by():
    with Swarm() as swarm:
        port = free_port()
        node = swarm.node("node", ["ffn.0.0"], ["tracker://127.0.0.1:%d" % port])
        node.wait_log("cannot connect")
        tracker = start_tracker(swarm, "tracker", port=port)
        until_found(tracker.peer, "ffn.0.0", node)


def case_a_private_swarm_is_joined_by_its_tracker():
    with Swarm() as swarm:
        key = swarm.path("swarm.key")
        run("keygen", "--swarm-key", key)
        tracker = start_tracker(swarm, "tracker", "--swarm-key", key)
        url = "tracker://" + tracker.endpoint
        node = swarm.node("node", ["ffn.0.0"], [url], "--swarm-key", key)
        until_found(tracker.peer, "ffn.0.0", node, extra=("--swarm-key", key))
        assert "swarm" not in Peer(tracker.endpoint).call(DHT_PEERS)[1]
        stranger = swarm.node("stranger", ["ffn.1.0"], [url])
        stranger.wait_log("it is of another swarm")
        # Trackers of it serve each other too.
        second = start_tracker(swarm, "second", "--swarm-key", key, peers=[url])
        server = Server(tracker.endpoint, "k")
        client = Peer(second.endpoint)
        client.request("k")
        assert client.granted()[2] == server.match_key


# ---- other trackers

def two_trackers(swarm, *arguments):
    bootstrap = swarm.bootstrap()
    return bootstrap, [start_tracker(swarm, name, *arguments, peers=[bootstrap.peer])
                       for name in ("here", "there")]


def case_a_request_is_served_by_another_tracker():
    with Swarm() as swarm:
        bootstrap, (here, there) = two_trackers(swarm)
        server = Server(there.endpoint, "k", port=9001)
        until_free(bootstrap.peer, "k", 1)
        client = Peer(here.endpoint)
        client.request("k")
        assert client.granted() == ["127.0.0.1", 9001, server.match_key]
        assert server.call(PENDING) == []
        # The connection goes on as if nothing had been.
        assert client.call(PING) == 0
        assert client.queue("k") == (0, 0)
        here.stop()
        assert here.events()[-1]["requests_federated"] == 1


def case_a_resource_that_comes_later_elsewhere_serves_who_waits():
    with Swarm() as swarm:
        _, (here, there) = two_trackers(swarm)
        client = Peer(here.endpoint)
        client.request("k")
        until(lambda: Peer(here.endpoint).queue("k") == (0, 1), 30, "the request waits")
        server = Server(there.endpoint, "k")
        assert client.granted()[2] == server.match_key


def case_what_comes_free_elsewhere_goes_to_the_highest_priority():
    """Whoever has come first asks around first: what its question brings is not its own."""
    with Swarm() as swarm:
        _, (here, there) = two_trackers(swarm)
        watching, clients = Peer(here.endpoint), {}
        for priority in (1, 100, 50):
            clients[priority] = Peer(here.endpoint)
            clients[priority].request("k", priority)
            until(lambda: watching.queue("k") == (0, len(clients)), 30, "it waits")
        for priority in (100, 50, 1):
            server = Server(there.endpoint, "k")
            assert clients[priority].granted()[2] == server.match_key, priority


def case_one_resource_goes_to_one_client():
    with Swarm() as swarm:
        bootstrap, trackers = two_trackers(swarm)
        trackers.append(start_tracker(swarm, "third", peers=[bootstrap.peer]))
        clients = [Peer(t.endpoint) for t in trackers[:2] for _ in range(4)]
        for client in clients:
            client.request("k")
        given, lock = [], threading.Lock()

        def take(client):
            try:
                match_key = client.granted()[2]
            except (ConnectionError, OSError):
                return
            with lock:
                given.append(match_key)
        threads = [threading.Thread(target=take, args=(c,)) for c in clients]
        for thread in threads:
            thread.start()
        servers = [Server(trackers[2].endpoint, "k", port=9000 + i) for i in range(6)]
        until(lambda: len(given) == 6, 40, "six are served")
        assert sorted(given) == sorted(s.match_key for s in servers), given
        servers += [Server(t.endpoint, "k") for t in trackers[:2]]
        for thread in threads:
            thread.join()
        assert sorted(given) == sorted(s.match_key for s in servers), given


def case_requests_do_not_go_round():
    """Both wait for the same, and look around for it: neither makes the other look for it."""
    with Swarm() as swarm:
        _, (first, second) = two_trackers(swarm, "--stats-report-interval", "1")
        clients = [Peer(first.endpoint), Peer(second.endpoint)]
        for client in clients:
            client.request("k")
        for tracker in (first, second):
            until(lambda: tracker.next_event()["pending"] == 1, 30, "it waits")
        for _ in range(4):  # they look again after 0.5, 1 and 2 s
            for tracker in (first, second):
                event = tracker.next_event()
                assert (event["requests"], event["pending"], event["requests_federated"]) == (1, 1, 0), event


def case_local_resources_come_first_and_nothing_is_taken_for_nothing():
    with Swarm() as swarm:
        bootstrap, (here, there) = two_trackers(swarm)
        other = Server(there.endpoint, "k")
        own = Server(here.endpoint, "k")
        until_free(bootstrap.peer, "k", 2)
        client = Peer(here.endpoint)
        client.request("k")
        assert client.granted()[2] == own.match_key
        assert other.call(PENDING) == [other.match_key]


def case_a_client_that_leaves_swallows_nothing():
    with Swarm() as swarm:
        _, (here, there) = two_trackers(swarm)
        client = Peer(here.endpoint)
        client.request("k")
        until(lambda: Peer(here.endpoint).queue("k") == (0, 1), 30, "the request waits")
        client.close()
        until(lambda: Peer(here.endpoint).queue("k") == (0, 0), 30, "it is gone with its client")
        server = Server(there.endpoint, "k")
        assert server.call(PENDING) == [server.match_key]
        second = Peer(there.endpoint)
        second.request("k")
        assert second.granted()[2] == server.match_key


def case_a_tracker_that_is_killed_takes_its_own_only():
    with Swarm() as swarm:
        bootstrap, (here, there) = two_trackers(swarm)
        lost = Server(there.endpoint, "k")
        until_free(bootstrap.peer, "k", 1)
        # Its record still says that it has one.
        there.kill_while(lambda: find_resource(bootstrap.peer, "k"), "others name its resource")
        lost.close()
        client = Peer(here.endpoint)
        client.request("k")
        server = Server(here.endpoint, "k")
        assert client.granted()[2] == server.match_key
        third = start_tracker(swarm, "third", peers=[bootstrap.peer])
        server = Server(third.endpoint, "k")
        client.request("k")
        assert client.granted()[2] == server.match_key


def case_a_tracker_that_cannot_be_reached_is_left_alone():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        here = start_tracker(swarm, "here", peers=[bootstrap.peer])
        away = start_tracker(swarm, "away", "--announce", "127.0.0.1:%d" % free_port(),
                             peers=[bootstrap.peer])
        out_of_reach = Server(away.endpoint, "k")
        until_free(bootstrap.peer, "k", 1)
        client = Peer(here.endpoint)
        client.request("k")
        here.wait_log("does not answer for its tracker")
        third = start_tracker(swarm, "third", peers=[bootstrap.peer])
        server = Server(third.endpoint, "k")
        assert client.granted()[2] == server.match_key
        assert out_of_reach.call(PENDING) == [out_of_reach.match_key]


def case_federation_can_be_turned_off():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        off = start_tracker(swarm, "off", "--no-federation", peers=[bootstrap.peer])
        on = start_tracker(swarm, "on", peers=[bootstrap.peer])
        other, server = Server(off.endpoint, "a"), Server(on.endpoint, "b")
        until_free(bootstrap.peer, "a", 1)
        until_free(bootstrap.peer, "b", 1)
        asker, asked = Peer(off.endpoint), Peer(on.endpoint)
        asker.request("b")
        asked.request("a")
        # What would take milliseconds must not happen; waiting for it is all there is to do.
        assert not asker.has_answer(1.5) and not asked.has_answer(1.5)
        assert other.call(PENDING) == [other.match_key]
        assert server.call(PENDING) == [server.match_key]


def case_nodes_are_leased_through_any_tracker_of_the_swarm():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], "--tracker-key", "k")
        other = swarm.node("other", [], [bootstrap.peer])
        until_free(bootstrap.peer, "k", 1)
        got = query_request(other, "k")
        assert got["port"] == node.port, got
        call("ffn.0.0", *tensors(swarm), "--match-key", got["match_key"], node=node)


def case_a_swarm_of_one_waits_patiently():
    with Swarm() as swarm:
        node = swarm.node("node", [], [])
        client = Peer(tracker_of(node))
        client.request("k")
        assert Peer(tracker_of(node)).call(SUMMARY)[0] == 0
        server = Server(tracker_of(node), "k")
        assert client.granted()[2] == server.match_key
        assert node.stop(number=signal.SIGINT) == 0


main(globals())
