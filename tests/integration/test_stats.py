"""skep stats: what a running node counts, asked by peer id and by address."""

import json

from swarm import Swarm, call, main, refused, run, timeout_option, until_found, write_npy

HIDDEN = 16


def start(swarm):
    peer = swarm.bootstrap().peer
    node = swarm.node("node", ["ffn.0.0"], [peer], hidden=HIDDEN)
    until_found(peer, "ffn.0.0", node)
    return peer, node


def stats(*arguments):
    out, _ = run("stats", *arguments, "--json")
    return json.loads(out)


def rows(out):
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["counter", "value"], out
    assert all(len(line) == 2 for line in lines), out
    return dict(lines[1:])


def case_counters_move_by_the_calls_that_are_made():
    with Swarm() as swarm:
        peer, node = start(swarm)
        given = swarm.path("in.npy")
        write_npy(given, (3, HIDDEN), [1] * 3 * HIDDEN)
        before = stats("--endpoint", node.endpoint)
        for _ in range(2):
            call("ffn.0.0", "--input", given, "--output", swarm.path("out.npy"), node=node)
        after = stats("--endpoint", node.endpoint)
        assert after["forward"]["tasks"] == before["forward"]["tasks"] + 2, after
        assert after["forward"]["examples"] == before["forward"]["examples"] + 6, after
        assert after["backward"]["tasks"] == 0 and after["experts"] == 1, after
        assert after["state"] == "online" and after["forward"]["stalled"] is False, after
        assert len(after["tracker"]["waits"]) == 14, after
        # The table has each of them, with the same value where nothing moves it.
        out, _ = run("stats", "--endpoint", node.endpoint)
        table = rows(out)
        assert table["forward.examples"] == str(after["forward"]["examples"]), out
        assert table["forward.stalled"] == "no" and table["peer_id"] == after["peer_id"], out
        assert "tracker.waits.13" in table and "lease.registered" in table, out


def case_a_node_is_named_by_the_first_digits_of_its_peer_id():
    with Swarm() as swarm:
        peer, node = start(swarm)
        peer_id = stats("--endpoint", node.endpoint)["peer_id"]
        for name in (peer_id, peer_id[:12]):
            found = stats(name, "--initial-peers", peer)
            assert found["peer_id"] == peer_id and found["experts"] == 1, found
        other = ("0" if peer_id[0] != "0" else "1") + peer_id[1:]
        refused(3, "node %s: none of the swarm's" % other, "stats", other,
                "--initial-peers", peer)
        # Every node of the listing is told from the others by its whole peer id.
        again = swarm.node("again", ["ffn.0.1", "ffn.0.2"], [peer], hidden=HIDDEN)
        until_found(peer, "ffn.0.1", again)
        found = stats(stats("--endpoint", again.endpoint)["peer_id"], "--initial-peers", peer)
        assert found["experts"] == 2, found


def case_digits_that_several_peer_ids_begin_with_are_refused():
    with Swarm() as swarm:
        peer = swarm.bootstrap().peer
        keys = {}  # one of seventeen keys begins as another does
        for i in range(17):
            path = swarm.path("key%d" % i)
            out, _ = run("keygen", "--identity", path, "--json")
            digit = json.loads(out)["peer_id"][0]
            if digit in keys:
                break
            keys[digit] = path
        for i, key in enumerate((keys[digit], path)):
            node = swarm.node("node%d" % i, ["ffn.0.%d" % i], [peer], "--identity", key)
            until_found(peer, "ffn.0.%d" % i, node)
        refused(1, "node %s: several peer ids begin so" % digit, "stats", digit,
                "--initial-peers", peer)


def case_a_node_that_has_stopped_is_said_to_have():
    with Swarm() as swarm:
        peer, node = start(swarm)
        peer_id = stats("--endpoint", node.endpoint)["peer_id"]
        endpoint = node.endpoint
        node.stop()
        refused(1, "it has stopped", "stats", peer_id, "--initial-peers", peer)
        refused(1, endpoint, "stats", "--endpoint", endpoint, timeout_option(5))


def case_arguments_that_name_no_node_or_two_are_refused():
    refused(2, "NODE or --endpoint is needed", "stats")
    refused(2, "contradicts --endpoint", "stats", "ab", "--endpoint", "127.0.0.1:1")
    refused(2, "NODE xyz, expected a peer id", "stats", "xyz", "--initial-peers", "127.0.0.1:1")
    refused(2, "--initial-peers is needed", "stats", "ab")


main(globals())
