"""How processes end: on signals, in the middle of work, and what they leave behind."""

import os
import signal
import threading

from swarm import (Swarm, call, find, main, run, timeout_option, until, until_found, until_gone,
                   write_npy)


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def tensors(swarm, rows=1, hidden=16):
    x = swarm.path("x.npy")
    write_npy(x, (rows, hidden), [0.5] * (rows * hidden))
    return "--input", x, "--output", swarm.path("y.npy")


def everything_below(folder):
    return sorted(os.path.join(path, name) for path, folders, files in os.walk(folder)
                  for name in folders + files)


def case_each_signal_ends_it_cleanly():
    with Swarm() as swarm:
        home = swarm.path("home")
        os.mkdir(home)
        keys = swarm.path("keys")
        os.mkdir(keys)
        bootstrap = swarm.bootstrap()
        for number in STOPPING:
            node = swarm.node("node%d" % number, ["ffn.0.0"], [bootstrap.peer], "--identity",
                              os.path.join(keys, "node.key"),
                              environment={"TMPDIR": home, "HOME": home, "XDG_RUNTIME_DIR": home})
            until_found(bootstrap.peer, "ffn.0.0", node)
            call("ffn.0.0", *tensors(swarm), node=node)
            assert node.stop(5, number) == 0, node.read_log()
            last = node.events()[-1]
            assert (last["event"], last["connections"], last["calls"]) == ("stopped", 0, 1), last
            assert "node: stopped" in node.read_log(), node.read_log()
            until_gone(bootstrap.peer, "ffn.0.0")
        assert everything_below(home) == [], everything_below(home)
        assert everything_below(keys) == [os.path.join(keys, "node.key")], everything_below(keys)
        for number in STOPPING:
            peer = swarm.bootstrap("dht%d" % number)
            assert peer.stop(5, number) == 0, peer.read_log()


def case_signals_at_once_after_the_start():
    """B29, B48: also before it is ready, with and without peers; again and again."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        for i in range(10):
            peers = [[bootstrap.peer], [], ["127.0.0.1:9", "no-such-host.invalid:1"]][i % 3]
            node = swarm.node("node%d" % i, ["ffn.0.0"], peers, ready=False)
            if i % 2:
                node.wait_ready()
            else:
                # Signals before main() has its handlers in place would end any program.
                until(lambda: os.path.exists("/proc/%d/task" % node.popen.pid) and
                      len(os.listdir("/proc/%d/task" % node.popen.pid)) > 1, 20, "threads")
            assert node.stop(5) == 0, node.read_log()
            assert "not published" not in node.read_log(), node.read_log()


def case_a_signal_ends_a_start_under_way():
    """While it waits for peers, and while it makes experts."""
    with Swarm() as swarm:
        waiting = swarm.node("waiting", [], ["127.0.0.1:9"], "--expert-pattern", "ffn.[0:64]",
                             ready=False)
        until(lambda: len(os.listdir("/proc/%d/task" % waiting.popen.pid)) > 2, 20, "threads")
        assert waiting.stop(5) == 0, waiting.read_log()
        assert "stopped before it was up" in waiting.read_log(), waiting.read_log()
        assert "no peer has answered" not in waiting.read_log(), waiting.read_log()
        making = swarm.node("making", ["ffn.%d" % i for i in range(100)], [],
                            "--optimizer", "none", cls="ffn", hidden=1024, ready=False)
        until(lambda: cpu_ticks(making) > 20, 20, "it works", pause=0.005)
        assert making.stop(5) == 0, making.read_log()
        assert "stopped before it was up" in making.read_log(), making.read_log()


def case_the_work_under_way_is_finished():
    """A call that is being worked on is answered, with the node's last breath."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--drain-timeout", "60s", cls="ffn", hidden=2048)
        before = until_busy(swarm, node)
        assert node.stop(90) == 0, node.read_log()
        [(code, _, err)] = before()
        assert code == 0, (code, err)


def until_busy(swarm, node, calls=1, hidden=2048):
    """Starts calls of backward in the background and waits until the node is at work. Returns a
    function that gives their ends."""
    ends = []
    idle = cpu_ticks(node)
    x = swarm.path("x.npy")
    write_npy(x, (256, hidden), [0.01] * (256 * hidden))
    threads = [threading.Thread(target=lambda i=i: ends.append(
        run("call", "ffn.0.0", "--endpoint", node.endpoint, "--input", x, "--grad", x, "--output",
            swarm.path("g%d.npy" % i), timeout_option(120), code=None, seconds=150)))
        for i in range(calls)]
    for thread in threads:
        thread.start()
    until(lambda: ends or cpu_ticks(node) > idle + 10, 60, "the node is busy", pause=0.005)

    def end():
        for thread in threads:
            thread.join()
        return ends
    return end


def cpu_ticks(process):
    with open("/proc/%d/stat" % process.popen.pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def case_a_second_signal_ends_it_at_once():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--drain-timeout", "10m", "--max-batch-size",
                          "256", cls="ffn", hidden=2048)
        # What is queued keeps a draining node up.
        waiting = until_busy(swarm, node, 8)
        node.send(signal.SIGTERM)
        node.wait_log("node: stopping")
        node.send(signal.SIGINT)
        assert node.wait(5) == 128 + signal.SIGINT, node.read_log()
        ends = waiting()
        assert 1 in [code for code, _, _ in ends], ends


def case_who_waits_for_company_is_served_when_the_node_stops():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--drain-timeout", "10m", "--min-batch-size",
                          "100", "--batch-timeout", "60m")
        tensors(swarm)
        waiting = until_waiting(swarm, node)
        assert node.stop(20) == 0, node.read_log()
        code, _, err = waiting()
        assert code == 0, (code, err)


def until_waiting(swarm, node):
    ends = []
    thread = threading.Thread(target=lambda: ends.append(
        run("call", "ffn.0.0", "--endpoint", node.endpoint, "--input", swarm.path("x.npy"),
            "--output", swarm.path("y.npy"), timeout_option(60), code=None, seconds=90)))
    thread.start()
    until(lambda: call("ffn.0.0", node=node)["queued_tasks"] == 1, 30, "a task waits")

    def end():
        thread.join()
        return ends[0]
    return end


def case_what_cannot_be_finished_is_refused():
    """At the end of the drain timeout whoever still waits is told."""
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [], "--drain-timeout", "50ms", "--max-batch-size",
                          "256", cls="ffn", hidden=512)
        waiting = until_busy(swarm, node, 16, 512)
        until(lambda: call("ffn.0.0", node=node)["queued_tasks"] >= 2, 30, "tasks are queued", 0)
        assert node.stop(30) == 0, node.read_log()
        failures = [err for code, _, err in waiting() if code == 1]
        refused = [err for err in failures if "the node is stopping" in err]
        assert refused, failures
        # Those at work, or still being sent, were cut off.
        assert all("may or may not" in err for err in failures if err not in refused), failures


def case_clients_end_on_signals_too():
    with Swarm() as swarm:
        for number in (signal.SIGINT, signal.SIGTERM):
            client = swarm.start("find%d" % number, "find", "ffn.0.0", "--initial-peers",
                                 "127.0.0.1:9", timeout_option(120), ready=False)
            until(lambda: len(os.listdir("/proc/%d/task" % client.popen.pid)) > 2, 20, "threads")
            client.send(number)
            assert client.wait(5) in (-number, 128 + number, 1), client.read_log()


def case_descriptors_and_threads_do_not_grow():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        arguments = tensors(swarm)

        def counts():
            folder = "/proc/%d/" % node.popen.pid
            return len(os.listdir(folder + "fd")), len(os.listdir(folder + "task"))
        for _ in range(3):
            call("ffn.0.0", *arguments, node=node)
            find(node.peer, "ffn.0.0")
        settled = counts()
        for _ in range(20):
            call("ffn.0.0", *arguments, node=node)
            find(node.peer, "ffn.0.0")
        until(lambda: counts() <= settled, 20, "back to %s, is %s" % (settled, counts()))


main(globals())
