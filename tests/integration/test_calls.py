"""`skep call` with several nodes of one UID, with compression on both sides, and against the clock,
over processes."""

import struct

from slow_wire import SlowReplies
from swarm import (Swarm, call, find, is_named, main, read_npy, refused, run, until, until_found,
                   write_npy)

HIDDEN, ROWS = 256, 256
NUMBERS = HIDDEN * ROWS


def write_input(path):
    values = [i % 1025 / 512 - 1 for i in range(NUMBERS)]  # float32 holds each
    write_npy(path, (ROWS, HIDDEN), values)
    return values


def worst_error(path, values):
    kind, shape, raw = read_npy(path)
    assert (kind, shape) == ("<f4", [ROWS, HIDDEN]), (kind, shape)
    return max(abs(a - b) for a, b in zip(struct.unpack("<%df" % NUMBERS, raw), values))


def traffic(node):
    """Stops the node; bytes in and out for each number of a call."""
    assert node.stop() == 0
    stats = node.events()[-1]
    return stats["bytes_in"] / NUMBERS, stats["bytes_out"] / NUMBERS


def one_call(node_options, call_options, backward=False):
    """One call over a node of its own. Returns the answer, the worst error, and bytes a number."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], *node_options, hidden=HIDDEN)
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        values = write_input(x)
        if backward:
            call_options = (*call_options, "--grad", x)
        answer = call("ffn.0.0", "--input", x, "--output", y, *call_options, node=node)
        return answer["compression"], worst_error(y, values), traffic(node)


def expect(result, compression, largest_error, bytes_in, bytes_out):
    name, error, seen = result
    assert name == compression, "the answer came in %s, expected %s" % (name, compression)
    assert error <= largest_error, (error, largest_error)
    assert abs(seen[0] - bytes_in) < 0.3 and abs(seen[1] - bytes_out) < 0.3, (
        "%.2f bytes a number in and %.2f out, expected %s and %s" % (*seen, bytes_in, bytes_out))


def case_both_sides_may_ask_for_compression():
    expect(one_call([], []), "none", 0, 4, 4)
    # The node's wish holds for who does not say; the caller's holds both ways.
    expect(one_call(["--compression", "float16"], []), "float16", 0.001, 4, 2)
    expect(one_call([], ["--compression", "uniform8"]), "uniform8", 0.05, 1, 1)
    expect(one_call(["--compression", "float16"], ["--compression", "blockwise8"]), "blockwise8",
           0.05, 1, 1)
    expect(one_call(["--compression", "float16"], ["--compression", "none"]), "none", 0, 4, 4)


def case_gradients_have_a_compression_of_their_own():
    # Up go input and gradient, back comes a gradient.
    expect(one_call(["--grad-compression", "bfloat16"], [], backward=True), "bfloat16", 0.01, 8, 2)
    expect(one_call(["--compression", "uniform8"], ["--grad-compression", "float16"],
                    backward=True), "float16", 0.001, 6, 2)
    expect(one_call([], ["--compression", "uniform8"], backward=True), "none", 0, 5, 4)


def case_a_stopped_process_is_overtaken():
    """One of two nodes gets SIGSTOP: its sockets are open, and silent."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        nodes = [swarm.node(name, ["ffn.0.0"], [bootstrap.peer], hidden=HIDDEN)
                 for name in ("first", "second")]
        until(lambda: len(find(bootstrap.peer, "ffn.0.0")["ffn.0.0"]) == 2, 30,
              "both nodes are found")
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        values = write_input(x)
        nodes[0].freeze_while(lambda: is_named(bootstrap.peer, "ffn.0.0", nodes[0]),
                              "others name the stopped node")

        def call_once():  # each time one of the two is asked first, by lot
            answer = call("ffn.0.0", "--input", x, "--output", y, "--hedge-after", "300ms",
                          peers=bootstrap.peer)
            assert answer["peer_id"] == nodes[1].facts["peer_id"], answer
            assert answer["requests"] == 1 + answer["hedges"], answer
            assert worst_error(y, values) == 0
            return answer["hedges"] == 1

        until(call_once, 60, "the stopped node is asked first, and overtaken")
        nodes[0].thaw()


def case_hedging_is_for_forward_calls_to_a_swarm():
    with Swarm() as swarm:
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        write_input(x)
        files = ("--input", x, "--output", y, "--hedge-after", "100ms")
        refused(2, "never sent twice", "call", "ffn.0.0", *files, "--grad", x, "--initial-peers",
                "127.0.0.1:1")
        refused(2, "--endpoint", "call", "ffn.0.0", *files, "--endpoint", "127.0.0.1:1")


def case_the_time_limit_is_of_all_of_it():
    """Joining takes as long as one reply of the DHT, and finding an expert the same or more: each
    ends within the limit, both together do not."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], hidden=HIDDEN)
        until_found(node.peer, "ffn.0.0", node)
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        write_input(x)
        with SlowReplies(node.peer, 2) as slow:
            for command in (["call", "ffn.0.0", "--input", x, "--output", y], ["call", "ffn.0.0"],
                            ["find", "ffn.0.0"]):
                run(*command, "--initial-peers", slow.peer, "--timeout", "3800ms", code=4)
            call("ffn.0.0", "--input", x, "--output", y, peers=slow.peer, seconds=60)


main(globals())
