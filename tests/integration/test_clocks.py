"""Nodes and clients whose wall clock is wrong: by minutes, and by hours."""

from swarm import SETTINGS, Swarm, call, find, main, refused, run, until_found, write_npy


def shifted(seconds):
    """The environment of a process whose clock is so far ahead."""
    return {"LD_PRELOAD": SETTINGS["SKEP_SHIFTED_CLOCK"], "CLOCK_SHIFT_S": str(seconds)}


def providers(swarm_peer, uid, environment):
    out, _ = run("find", uid, "--initial-peers", swarm_peer, environment=environment)
    return out


def case_minutes_do_no_harm_and_the_slow_node_hears_of_it():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        slow = swarm.node("slow", ["ffn.0.0"], [bootstrap.peer], environment=shifted(-300))
        until_found(bootstrap.peer, "ffn.0.0", slow)
        fast = swarm.node("fast", ["ffn.0.1"], [bootstrap.peer], environment=shifted(90))
        until_found(bootstrap.peer, "ffn.0.1", fast)
        # A client that is 90 s fast, of both; and the node that is slow has a look at the fast one.
        for uid, node in (("ffn.0.0", slow), ("ffn.0.1", fast)):
            for seconds in (90, -300, 0):
                assert node.endpoint in providers(bootstrap.peer, uid, shifted(seconds)), (
                    uid, seconds)
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        write_npy(x, (1, 16), range(16))
        answer = call("ffn.0.0", "--input", x, "--output", y, peers=bootstrap.peer,
                      environment=shifted(90))
        assert answer["peer_id"] == slow.facts["peer_id"], answer
        slow.wait_log("ahead of")
        assert slow.stop() == 0, slow.read_log()
        assert fast.stop() == 0, fast.read_log()


def case_hours_are_refused_and_said():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        good = swarm.node("good", ["ffn.0.1"], [bootstrap.peer])
        until_found(bootstrap.peer, "ffn.0.1", good)
        node = swarm.node("node", ["ffn.0.0"], [bootstrap.peer], environment=shifted(-7200))
        # The storing peer says what it refuses and why, the node is found by nobody, and whoever
        # looks for it reads that it is there.
        bootstrap.wait_log("s ago by our clock")
        assert node.facts["peer_id"][:12] in bootstrap.read_log(), bootstrap.read_log()
        said = ["a record of peer " + node.facts["peer_id"][:12], "s ago by this machine's clock"]
        refused(3, said, "find", "ffn.0.0", "--initial-peers", bootstrap.peer)
        x = swarm.path("x.npy")
        write_npy(x, (1, 16), range(16))
        refused(3, said, "call", "ffn.0.0", "--input", x, "--output", swarm.path("y.npy"),
                "--initial-peers", bootstrap.peer)
        # It sees the records of others, and that its clock and theirs differ.
        node.wait_log("ahead by this machine's clock")
        # One with the same wrong clock finds it: whose clock is wrong, nobody else can tell.
        assert node.endpoint in providers(node.peer, "ffn.0.0", shifted(-7200))
        assert not find(bootstrap.peer, "ffn.0.0")["ffn.0.0"]


main(globals())
