"""An expert of a plugin that takes its time, or never comes back: its node serves the others, and
takes it off the swarm."""

import json
import os
import subprocess

from swarm import (PATIENCE, SETTINGS, SKEP, Swarm, call, find, main, read_npy, refused, run, until,
                   until_found, until_gone, write_npy)

PLUGIN = SETTINGS["SKEP_TEST_PLUGIN"]
HIDDEN = 4


class Stalling:
    """A node of two experts, and what to send them: 13 in front blocks the pass."""

    def __init__(self, swarm, *arguments, stall_ms=1500 * PATIENCE):
        self.fifo, self.entered = swarm.path("fifo"), swarm.path("entered")
        os.mkfifo(self.fifo)
        self.good, self.bad, self.out, self.other = (
            swarm.path(n + ".npy") for n in ("good", "bad", "out", "other"))
        write_npy(self.good, (1, HIDDEN), [1, 2, 3, 4])
        write_npy(self.bad, (1, HIDDEN), [13, 2, 3, 4])
        self.peer = swarm.bootstrap().peer
        self.node = swarm.node("node", ["b.0", "b.1"], [self.peer], "--plugin", PLUGIN,
                               "--stall-timeout", "%dms" % stall_ms, "--drain-timeout",
                               "1s", *arguments, cls="blocks", hidden=HIDDEN,
                               environment={"SKEP_TEST_FIFO": self.fifo,
                                            "SKEP_TEST_ENTERED": self.entered})
        self.calls = []
        until_found(self.peer, "b.0", self.node)
        until_found(self.peer, "b.1", self.node)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        for done in self.calls:
            done.kill()
            done.wait()
            done.stderr.close()

    def start_call(self, *arguments):
        done = subprocess.Popen([SKEP, "call", "b.0", "--endpoint", self.node.endpoint,
                                 "--timeout", "%ds" % (60 * PATIENCE), "--output", self.other,
                                 *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)
        self.calls.append(done)
        return done

    def block(self, *arguments):
        """A call that blocks b.0, and one that waits behind it. Returns both."""
        first = self.start_call("--input", self.bad, *arguments)
        until(lambda: os.path.exists(self.entered), 20, "a pass that blocks")
        second = self.start_call("--input", self.good)
        return first, second

    def release(self, more=""):
        """Lets the pass go on."""
        os.close(os.open(self.fifo + more, os.O_WRONLY))

    def serves(self, uid):
        call(uid, "--input", self.good, "--grad", self.good, "--output", self.out, node=self.node)
        call(uid, "--input", self.good, "--output", self.out, node=self.node)
        assert read_npy(self.out)[1] == [1, HIDDEN]

    def stalled(self, uid):
        return call(uid, node=self.node)["stalled"]


def ended(done, seconds=20):
    """Waits for a call; returns (exit code, what it said)."""
    said = done.communicate(timeout=seconds * PATIENCE)[1].decode()
    return done.returncode, said


def case_an_expert_that_blocks_for_ever_costs_itself_only():
    for arguments in ((), ("--grad",)):
        with Swarm() as swarm, Stalling(swarm, "--checkpoint-dir", swarm.path("kept")) as s:
            assert not s.stalled("b.0")
            first, second = s.block(*(arguments and ("--grad", s.bad)))
            code, said = ended(second)
            assert code == 1 and "stalled: its last batch takes too long" in said, (code, said)
            s.node.wait_log("taken off the swarm")
            # It says so of itself, and takes no more calls; the other one is as before.
            until(lambda: s.stalled("b.0"), 30, "info tells of the stall")
            assert not s.stalled("b.1")
            out, _ = run("call", "b.0", "--endpoint", s.node.endpoint)
            assert "STALLED" in out, out
            (entry,) = json.loads(run("peers", "--endpoint", s.node.endpoint, "--json")[0])
            assert entry["health"]["experts_stalled"] == 1 and entry["experts"] == 2, entry
            refused(1, "stalled: its last batch takes too long", "call", "b.0", "--endpoint", s.node.endpoint,
                    "--input", s.good, "--output", s.out)
            for _ in range(3):
                s.serves("b.1")
            until_gone(s.peer, "b.0")
            assert find(s.peer, "b.1")["b.1"]
            assert first.poll() is None
            # The node stops all the same, and keeps what the experts have learned.
            assert s.node.stop() == 0, s.node.read_log()
            stopped = s.node.events()[-1]
            assert stopped["stalls"] == 1, stopped
            assert "an expert is still at work" in s.node.read_log()
            assert ended(first)[0] == 1
            kept = os.listdir(swarm.path("kept") + "/b.1")
            assert any(name.startswith("checkpoint_3_") for name in kept), kept


def case_an_expert_that_comes_back_is_published_again():
    with Swarm() as swarm, Stalling(swarm) as s:
        first, _ = s.block()
        until_gone(s.peer, "b.0")
        s.release()
        assert ended(first) == (0, ""), ended(first)
        until(lambda: not s.stalled("b.0"), 30, "info tells of the recovery")
        s.serves("b.0")
        until_found(s.peer, "b.0", s.node)
        assert s.node.stop() == 0
        assert "an expert is still at work" not in s.node.read_log()


def case_who_leases_the_node_goes_before_those_who_came_first():
    """A pass is under way and one waits that would block too: if that went first, the holder would
    have no answer."""
    with Swarm() as swarm, Stalling(swarm, "--tracker-key", "k", "--max-batch-size", "1",
                                    stall_ms=0) as s:
        def until_waiting(count):
            until(lambda: call("b.0", node=s.node)["queued_tasks"] == count, 20,
                  "%d calls wait" % count)
        os.mkfifo(s.fifo + "2")
        blocks_too = swarm.path("too.npy")
        write_npy(blocks_too, (1, HIDDEN), [14, 2, 3, 4])
        blocking = s.start_call("--input", s.bad)
        until(lambda: os.path.exists(s.entered), 20, "a pass that blocks")
        waiting = s.start_call("--input", blocks_too)
        until_waiting(1)
        host, port = s.node.facts["tracker"].rsplit(":", 1)
        got = json.loads(run("query-tracker", "--host", host, "--port", port, "--request", "k",
                             "--json")[0])
        holder = s.start_call("--input", s.good, "--match-key", got["match_key"])
        until_waiting(2)
        s.release()
        assert ended(holder) == (0, "")
        assert waiting.poll() is None
        s.release("2")
        assert ended(blocking) == (0, "") and ended(waiting) == (0, "")


def case_a_pass_under_way_keeps_no_other_expert_waiting():
    """And who gives up behind it, by its limit or by leaving, keeps no place in the queue."""
    with Swarm() as swarm, Stalling(swarm, stall_ms=0) as s:
        def until_waiting(count):
            until(lambda: call("b.0", node=s.node)["queued_tasks"] == count, 20,
                  "%d calls wait" % count)
        first, leaves = s.block()
        until_waiting(1)
        for _ in range(3):
            s.serves("b.1")
        refused(4, "", "call", "b.0", "--endpoint", s.node.endpoint, "--timeout", "500ms",
                "--input", s.good, "--output", s.out)
        until_waiting(1)
        leaves.kill()
        until_waiting(0)
        assert first.poll() is None
        s.release()
        assert ended(first) == (0, "")
        s.serves("b.0")


main(globals())
