"""What is under a prefix, once and live; and which nodes there are."""

import json
import os
import select
import signal
import socket
import subprocess
import time

from swarm import PATIENCE, SKEP, Swarm, main, refused, run, timeout_option, until

GRID = ["ffn.0.0", "ffn.0.1", "ffn.1.10", "ffn.1.2"]


def find_prefix(peer, prefix, code=(0, 3), *more):
    out, _ = run("find", prefix, "--initial-peers", peer, "--json", timeout_option(15), *more,
                 code=code)
    return json.loads(out)


def until_listed(peer, prefix, uids):
    until(lambda: [e["uid"] for e in find_prefix(peer, prefix)] == uids, 40,
          "%s lists %s" % (prefix, uids))


class Watcher:
    """`skep find PREFIX --watch --json`, and what it tells."""

    def __init__(self, peer, prefix):
        self.popen = subprocess.Popen(
            [SKEP, "find", prefix, "--watch", "--json", "--initial-peers", peer],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.events = []
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()

    def read(self, seconds):
        ready, _, _ = select.select([self.popen.stdout], [], [], seconds)
        if not ready:
            return
        piece = os.read(self.popen.stdout.fileno(), 65536)
        assert piece, "the watcher ended with %s" % self.popen.wait()
        lines = (self.rest + piece).split(b"\n")
        self.rest = lines.pop()
        self.events += [json.loads(line) for line in lines]

    def until(self, event, uids, seconds):
        """Waits for this event of each of these UIDs; returns how long it took."""
        start = time.monotonic()
        while True:
            seen = {e["uid"] for e in self.events if e["event"] == event}
            if seen >= set(uids):
                self.events = []
                return time.monotonic() - start
            left = start + seconds * PATIENCE - time.monotonic()
            assert left > 0, "not %s within %s s: %s; told: %s" % (event, seconds, uids, self.events)
            self.read(left)


def case_a_prefix_is_listed():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        a = swarm.node("a", GRID[:2], [bootstrap.peer])
        b = swarm.node("b", GRID[2:] + ["att.7"], [bootstrap.peer], cls="ffn")
        ordered = ["ffn.0.0", "ffn.0.1", "ffn.1.2", "ffn.1.10"]
        until_listed(bootstrap.peer, "ffn.", ordered)
        until_listed(a.peer, "ffn.1.", ordered[2:])
        until_listed(bootstrap.peer, "att.", ["att.7"])
        found = {e["uid"]: e for e in find_prefix(bootstrap.peer, "ffn.", 0)}
        for uid, node, cls in (("ffn.0.1", a, "nop"), ("ffn.1.2", b, "ffn")):
            assert found[uid]["status"] == "OK", found
            assert [(p["peer_id"], p["endpoint"], p["class"]) for p in found[uid]["providers"]] == \
                [(node.facts["peer_id"], node.endpoint, cls)], found
        out, _ = run("find", "ffn.", "--initial-peers", bootstrap.peer)
        assert [line.split()[0] for line in out.splitlines()[1:]] == ordered, out
        assert find_prefix(bootstrap.peer, "nothing.", 3) == []
        refused(3, "nothing.", "find", "nothing.", "--initial-peers", bootstrap.peer)
        refused(2, "--watch", "find", "ffn.0.0", "--watch", "--initial-peers", bootstrap.peer)
        refused(2, "expert UID", "find", "ffn.", "ffn.0.0", "--initial-peers", bootstrap.peer)


def case_a_watched_prefix_stays_live():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        with Watcher(bootstrap.peer, "ffn.") as watcher:
            a = swarm.node("a", GRID[:2], [bootstrap.peer])
            watcher.until("appeared", GRID[:2], 30)
            b = swarm.node("b", GRID[1:], [bootstrap.peer])
            watcher.until("appeared", GRID[2:], 30)
            # Records live for a minute: what is told before was told by the node that stops.
            assert a.stop() == 0
            took = watcher.until("gone", GRID[:1], 20)
            b.kill()
            killed = time.monotonic()
            watcher.until("gone", GRID[1:], 90)
            watcher.popen.send_signal(signal.SIGINT)
            assert watcher.popen.wait(20 * PATIENCE) == 0
            return "ok, seen %.1f s after the goodbye, %.0f s after the kill" % (
                took, time.monotonic() - killed)


def case_a_watch_ends_when_its_output_is_gone():
    """With the reason; and at once, though nothing further is to be told."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        swarm.node("a", GRID[:2], [bootstrap.peer])
        until_listed(bootstrap.peer, "ffn.", GRID[:2])
        watch = ("find", "ffn.", "--watch", "--initial-peers", bootstrap.peer)
        for more in ((), ("--json",)):
            for full in (True, False):
                with open("/dev/full", "wb") as output:
                    process = subprocess.Popen([SKEP, *watch, *more], stdin=subprocess.DEVNULL,
                                               stdout=output if full else subprocess.PIPE,
                                               stderr=subprocess.PIPE)
                try:
                    if not full:
                        assert b"ffn.0.0" in process.stdout.readline()
                        process.stdout.close()
                    _, said = process.communicate(timeout=60 * PATIENCE)
                finally:
                    process.kill()
                    process.wait()
                last = said.decode().splitlines()[-1]
                why = "No space left on device" if full else "Broken pipe"
                assert (process.returncode, last) == (1, "skep: standard output: " + why), said


def case_what_serves_goes_on_without_its_output():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("a", GRID[:2], [bootstrap.peer], "--stats-report-interval", "1")
        tracker = swarm.start("tracker", "tracker", "--host", "127.0.0.1", "--port", "0", "--no-dht",
                              "--stats-report-interval", "1")
        at = ("--host", "127.0.0.1", "--port", str(tracker.facts["port"]))
        for process in (bootstrap, node, tracker):
            process.popen.stdout.close()
        for process in (node, tracker):
            process.wait_log("standard output: Broken pipe; events are lost")
        until_listed(bootstrap.peer, "ffn.", GRID[:2])
        run("query-tracker", *at)
        for process in (node, tracker, bootstrap):
            assert process.stop() == 1, process.read_log()
            log = process.read_log()
            assert log.endswith("skep: standard output: Broken pipe\n"), log
            assert log.count("events are lost") == 1, log


def case_a_goodbye_is_heard_wherever_one_watches():
    """Of many experts, under the name and under a deeper prefix, through whatever peer. Their records
    live for four minutes, so that whatever is told here is told by the node that stops."""
    many = ["ffn.%d.%d" % (i, k) for i in range(16) for k in range(16)]
    deep = [uid for uid in many if uid.startswith("ffn.3.")]
    slowest = 0
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        others = [swarm.node("other%d" % i, ["att.%d" % i], [bootstrap.peer]) for i in range(2)]
        with Watcher(bootstrap.peer, "ffn.") as top, Watcher(others[1].peer, "ffn.3.") as below:
            for number in (signal.SIGTERM, signal.SIGINT):
                node = swarm.node("many%d" % number, many, [bootstrap.peer], "--update-period",
                                  "120", "--stats-report-interval", "1")
                top.until("appeared", many, 60)
                below.until("appeared", deep, 60)
                # Its second round among peers: all of them have its records, and all bells of its
                # start have been answered.
                until(lambda: node.next_event(40).get("publish_rounds", 0) >= 2, 40,
                      "the node publishes for a second time")
                node.send(number)
                sent = time.monotonic()
                for watcher, uids in ((top, many), (below, deep)):
                    watcher.until("gone", uids, 20)
                    slowest = max(slowest, time.monotonic() - sent)
                assert node.wait() == 0
    return "ok, all seen within %.1f s of the signal" % slowest


def case_a_signal_ends_a_command_that_is_still_joining():
    """At once, as there is nothing to wait for: by the signal itself, not by its time being over."""
    commands = (("find", "ffn.", "--watch"), ("find", "ffn."), ("find", "ffn.0.0"), ("peers",),
                ("call", "ffn.0.0"))
    for command in commands:
        for number in (signal.SIGINT, signal.SIGTERM):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
                silent.bind(("127.0.0.1", 0))
                silent.settimeout(30 * PATIENCE)
                process = subprocess.Popen(
                    [SKEP, *command, "--timeout", "1h", "--initial-peers",
                     "127.0.0.1:%d" % silent.getsockname()[1]],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    silent.recv(2048)  # it asks to join
                    process.send_signal(number)
                    assert process.wait(30 * PATIENCE) == -number, (command, process.returncode)
                finally:
                    process.kill()
                    process.wait()


def case_a_name_that_nobody_serves_may_be_a_prefix():
    with Swarm() as swarm:
        node = swarm.node("node", ["ffn.0.0"], [])
        refused(3, ["expert ffn.0: no node of swarm", '"ffn.0."', '"ffn."'], "find", "ffn.0",
                "--initial-peers", node.peer)
        refused(2, ['"ffn.", with the dot, lists'], "find", "ffn", "--initial-peers", node.peer)


def peers_of(peer, *more):
    out, _ = run("peers", "--initial-peers", peer, "--json", timeout_option(15), *more,
                 code=(0, 3))
    return {p["peer_id"]: p for p in json.loads(out)}


def case_nodes_are_listed_with_their_round_trip():
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        assert peers_of(bootstrap.peer) == {}
        a = swarm.node("a", GRID[:3], [bootstrap.peer])
        b = swarm.node("b", GRID[3:], [bootstrap.peer])
        ids = {a.facts["peer_id"], b.facts["peer_id"]}
        until(lambda: set(peers_of(bootstrap.peer)) == ids, 40, "both nodes are listed")
        listed = peers_of(bootstrap.peer)
        for node, experts in ((a, 3), (b, 1)):
            entry = listed[node.facts["peer_id"]]
            assert entry["state"] == "online" and entry["experts"] == experts, entry
            assert entry["endpoint"] == node.endpoint and entry["version"], entry
            assert entry["reached"] == "OK" and 0 < entry["round_trip_ms"] < 10000, entry
            assert entry["health"]["dht_peers"] >= 1, entry
            assert entry["health"]["experts_stalled"] == 0, entry
        assert {p["reached"] for p in peers_of(bootstrap.peer, "--no-ping").values()} == \
            {"CANCELLED"}
        out, _ = run("peers", "--initial-peers", bootstrap.peer)
        assert out.splitlines()[0].split()[:3] == ["node", "state", "version"], out
        assert len(out.splitlines()) == 3, out
        b.kill_while(lambda: b.facts["peer_id"] in peers_of(bootstrap.peer), "others list b")
        entry = peers_of(bootstrap.peer)[b.facts["peer_id"]]
        assert entry["reached"] == "UNAVAILABLE" and entry["round_trip_ms"] is None, entry
        assert a.stop() == 0
        until(lambda: peers_of(bootstrap.peer)[a.facts["peer_id"]]["state"] == "offline", 20,
              "the stopped node is offline")


main(globals())
