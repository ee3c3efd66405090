"""A swarm of five processes: a bootstrap peer and four nodes, each joined through another."""

import random
import subprocess

from swarm import (SETTINGS, Swarm, call, find, main, read_safetensors, until, until_found,
                   write_safetensors)

HIDDEN, ROWS, SEED = 48, 7, 1234
UIDS = {"a": ["ffn.0.0", "ffn.0.1"], "b": ["ffn.1.0"], "c": ["ffn.2.5"],
        "d": ["ffn.3.0", "ffn.3.255"]}


def start_five(swarm):
    """Each node joins through the one before it, the first through the bootstrap peer."""
    nodes = {"bootstrap": swarm.bootstrap()}
    last = nodes["bootstrap"]
    for name, uids in UIDS.items():
        last = nodes[name] = swarm.node(name, uids, [last.peer], "--seed", str(SEED), cls="ffn",
                                        hidden=HIDDEN)
    return nodes


def owner_of(nodes, uid):
    return next(nodes[name] for name, uids in UIDS.items() if uid in uids)


def case_every_uid_is_found_through_every_peer():
    with Swarm() as swarm:
        nodes = start_five(swarm)
        everything = [uid for uids in UIDS.values() for uid in uids]
        for uid in everything:
            until_found(nodes["bootstrap"].peer, uid, owner_of(nodes, uid))
        for peer in nodes.values():
            found = find(peer.peer, *everything, "ffn.9.9")
            assert found.pop("ffn.9.9") == [], found
            for uid, providers in found.items():
                owner = owner_of(nodes, uid)
                assert [(p["peer_id"], p["endpoint"], p["class"]) for p in providers] == \
                    [(owner.facts["peer_id"], owner.endpoint, "ffn")], (uid, providers)


def local_run(uid, x, grad, steps):
    """What the same expert answers in this machine's memory: hex lines, see local_expert.c."""
    out = subprocess.run([SETTINGS["SKEP_LOCAL_EXPERT"], uid, str(HIDDEN), str(SEED), x, grad,
                          str(steps)], stdout=subprocess.PIPE, check=True, timeout=120)
    return out.stdout.decode().split()


def make_tensors(swarm):
    numbers = random.Random(7)
    shape = (ROWS, HIDDEN)
    x, grad = swarm.path("x.safetensors"), swarm.path("grad.safetensors")
    for path, name in ((x, "input.0"), (grad, "grad_output.0")):
        write_safetensors(path, {name: (shape, [numbers.uniform(-1, 1)
                                                for _ in range(ROWS * HIDDEN)])})
    return x, grad


def result_of(path, name):
    dtype, shape, raw = read_safetensors(path)[name]
    assert (dtype, shape) == ("F32", [ROWS, HIDDEN]), (dtype, shape)
    return raw.hex()


def case_calls_equal_a_local_run_bit_for_bit():
    with Swarm() as swarm:
        nodes = start_five(swarm)
        x, grad = make_tensors(swarm)
        out = swarm.path("out.safetensors")
        for uid in ("ffn.0.1", "ffn.3.255"):
            owner = owner_of(nodes, uid)
            until_found(nodes["c"].peer, uid, owner)
            expected = local_run(uid, x, grad, 2)
            seen = []
            for step in range(3):
                if step:
                    answer = call(uid, "--input", x, "--grad", grad, "--output", out,
                                  peers=nodes["b"].peer)
                    seen.append(result_of(out, "grad_input.0"))
                answer = call(uid, "--input", x, "--output", out, peers=nodes["c"].peer)
                assert answer["peer_id"] == owner.facts["peer_id"], answer
                seen.append(result_of(out, "output.0"))
            for i, (got, wanted) in enumerate(zip(seen, expected)):
                assert got == wanted, "%s: result %d differs from that of the local expert" % (
                    uid, i)
            assert len(seen) == len(expected) == 5
            assert len(set(seen)) == 5, "training changed nothing"


def case_a_repeated_request_id_steps_once():
    with Swarm() as swarm:
        node = swarm.node("a", ["ffn.0.0"], [], "--seed", str(SEED), cls="ffn", hidden=HIDDEN)
        identity = swarm.path("client.key")
        x, grad = make_tensors(swarm)
        results = []

        def backward(name, request_id):
            out = swarm.path(name)
            call("ffn.0.0", "--input", x, "--grad", grad, "--output", out, "--identity", identity,
                 "--request-id", request_id, node=node)
            return result_of(out, "grad_input.0")

        def updates():
            info = call("ffn.0.0", "--peer-id", node.facts["peer_id"], node=node)
            assert info["class"] == "ffn" and info["peer_id"] == node.facts["peer_id"], info
            return info["updates"]

        assert updates() == 0
        results.append(backward("g1.safetensors", "00" * 16))
        assert updates() == 1
        results.append(backward("g2.safetensors", "00" * 16))
        assert updates() == 1, "a backward repeated under its request id stepped again"
        assert results[0] == results[1], "the repeat was answered with another result"
        # With another gradient it is another call, and no answer to this one.
        said = call("ffn.0.0", "--input", x, "--grad", x, "--output", swarm.path("no.safetensors"),
                    "--identity", identity, "--request-id", "00" * 16, node=node, code=1)
        assert "other inputs or gradients" in said and updates() == 1, said
        results.append(backward("g3.safetensors", "01" * 16))
        assert updates() == 2
        assert results[2] != results[0]


def case_every_node_that_serves_an_expert_is_listed():
    """Callers fail over in the order of a lookup, so each lookup has to name all of them."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        nodes = [swarm.node("n%d" % i, ["ffn.0.0"], [bootstrap.peer]) for i in range(3)]
        endpoints = {node.endpoint for node in nodes}

        def listed():
            return {p["endpoint"] for p in find(bootstrap.peer, "ffn.0.0")["ffn.0.0"]}
        # Nodes that are a moment old are still telling each other what they hold.
        until(lambda: all(listed() == endpoints for _ in range(10)), 30,
              "ten lookups in a row list all three")


def case_an_expert_published_alone_is_there_for_who_comes_later():
    """B19: the first node of a swarm published to nobody."""
    with Swarm() as swarm:
        first = swarm.node("first", ["ffn.0.0", "ffn.0.1", "ffn.0.2"], [])
        second = swarm.node("second", ["ffn.1.0"], [first.peer])
        for uid in ("ffn.0.0", "ffn.0.1", "ffn.0.2"):
            until_found(second.peer, uid, first)


def case_taken_uids_of_a_pattern_are_left_out():
    with Swarm() as swarm:
        first = swarm.node("a", ["g.0.0", "g.0.2", "g.1.1"], [])
        until_found(first.peer, "g.1.1", first)
        second = swarm.node("b", [], [first.peer], "--expert-pattern", "g.[0:2].[0:3]",
                            "--num-experts", "3")
        assert sorted(e["uid"] for e in second.facts["experts"]) == ["g.0.1", "g.1.0", "g.1.2"], \
            second.facts
        third = swarm.node("c", [], [second.peer], "--expert-pattern", "g.[0:2].[0:3]",
                           ready=False)
        assert third.wait() == 1, third.read_log()
        assert "pattern of g: 0 of 6 UIDs are free" in third.read_log(), third.read_log()


main(globals())
