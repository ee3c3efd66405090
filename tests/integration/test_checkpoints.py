"""Experts that outlive their node: saved while it serves, loaded when it starts, never half."""

import os
import random
import re
import resource
import shutil
import struct
import time

from swarm import Swarm, call, main, read_npy, refused, until, write_npy
from wire import Connection, DATA, END, HEADERS, frame, tensor

HIDDEN = 16
STATUS = re.compile(rb"status(.)", re.S)
NAME = re.compile(r"checkpoint_(\d+)_(\d+)\.safetensors$")


def node(swarm, name, folder, *arguments, uids=("ffn.0.0",), period="0.01", **more):
    return swarm.node(name, list(uids), [], "--no-dht", "--insecure-plaintext", "--seed", "1",
                      "--checkpoint-dir", folder, "--checkpoint-period", period, *arguments,
                      cls="ffn", hidden=HIDDEN, **more)


def info(process, uid="ffn.0.0"):
    return call(uid, "--insecure-plaintext", node=process)


def generations(folder, uid="ffn.0.0"):
    """(number, updates) of the finished checkpoints, newest first."""
    path = os.path.join(folder, uid)
    names = os.listdir(path) if os.path.isdir(path) else []
    found = [NAME.match(name) for name in names]
    return sorted(((int(m.group(2)), int(m.group(1))) for m in found if m), reverse=True)


def newest_path(folder, uid="ffn.0.0"):
    number, updates = generations(folder, uid)[0]
    return os.path.join(folder, uid, "checkpoint_%d_%d.safetensors" % (updates, number))


class Trainer:
    """Backward calls over one connection, one after the other."""

    def __init__(self, process, uid="ffn.0.0"):
        self.connection = Connection(process)
        self.uid = uid
        self.stream = 1

    def step(self, seed):
        values = random.Random(seed)
        data = struct.pack("<%df" % (4 * HIDDEN),
                           *(values.uniform(-1, 1) for _ in range(4 * HIDDEN)))
        half = len(data) // 2
        both = [tensor("F32", (2, HIDDEN), half)] * 2
        self.connection.socket.sendall(
            self.connection.headers(self.stream, self.uid, both, method="backward",
                                    id=os.urandom(16))
            + frame(DATA, self.stream, data[:half]) + frame(DATA, self.stream, data[half:])
            + frame(END, self.stream))
        while True:
            kind, stream, payload = self.connection.read_frame()
            if kind == HEADERS:
                # The first field of a reply is its status, 0 for success.
                assert STATUS.search(payload).group(1) == b"\0", payload
            if kind == END and stream == self.stream:
                break
        self.stream += 2


def case_a_stopped_node_goes_on_where_it_was():
    with Swarm() as swarm:
        folder = swarm.path("kept")
        first = node(swarm, "first", folder, period="1000")
        trainer = Trainer(first)
        for i in range(5):
            trainer.step(i)
        assert info(first)["updates"] == 5
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        write_npy(x, (2, HIDDEN), range(2 * HIDDEN))
        call("ffn.0.0", "--input", x, "--output", y, "--insecure-plaintext", node=first)
        before = read_npy(y)
        assert first.stop() == 0, first.read_log()
        assert generations(folder)[0][1] == 5, os.listdir(folder + "/ffn.0.0")
        assert os.readlink(folder + "/ffn.0.0/checkpoint_last") == os.path.basename(
            newest_path(folder))
        # Somewhere else, with only the folder copied, and another seed.
        moved = swarm.path("moved")
        shutil.copytree(folder, moved, symlinks=True)
        shutil.rmtree(folder)
        second = node(swarm, "second", moved, "--seed", "9")
        assert info(second)["updates"] == 5
        call("ffn.0.0", "--input", x, "--output", y, "--insecure-plaintext", node=second)
        assert read_npy(y) == before


def case_killed_at_any_moment_it_starts_again():
    """About a hundred saves, each node of a row killed while it saves (SKEP_TEST_LIVES: 20)."""
    seed = int(os.environ.get("SKEP_TEST_SEED", random.randrange(1 << 32)))
    print("seed %d (SKEP_TEST_SEED)" % seed)
    chance = random.Random(seed)
    saves = 0
    with Swarm() as swarm:
        folder = swarm.path("kept")
        updates = 0
        for life in range(int(os.environ.get("SKEP_TEST_LIVES", "20"))):
            process = node(swarm, "life%d" % life, folder)
            assert info(process)["updates"] == updates, (life, updates)
            numbers = generations(folder)[:1]
            trainer = Trainer(process)
            deadline = time.monotonic() + chance.uniform(0.02, 0.4)
            step = 0
            seen = (0, 0)
            while time.monotonic() < deadline or step < 2:
                trainer.step(step)
                step += 1
                seen = max(seen, (generations(folder) or [(0, 0)])[0])
            process.kill()
            after = generations(folder)
            if after:
                # What was finished before the kill is there, and nothing is from the future.
                assert seen <= after[0] and after[0][1] <= updates + step, (seen, after, updates)
                saves += after[0][0] - (numbers[0][0] if numbers else 0)
                updates = after[0][1]
        last = node(swarm, "last", folder)
        assert info(last)["updates"] == updates
        assert last.stop() == 0
        names = sorted(os.listdir(folder + "/ffn.0.0"))
        # The last kill may have come before the oldest one was removed: the next save does that.
        assert 3 <= len(names) <= 4 and "checkpoint_last" in names, names
        assert not any(".tmp" in name for name in names), names
    print("%d saves" % saves)
    assert saves > 20, saves


def damage(path, how):
    with open(path, "r+b") as file:
        if how == "truncated":
            file.truncate(os.path.getsize(path) // 2)
        elif how == "empty":
            file.truncate(0)
        elif how == "foreign":
            file.write(b"\x50\x4b\x03\x04 a zip file, as torch.save makes them")
        else:
            file.seek(os.path.getsize(path) - 100)
            file.write(b"\x55")


def case_the_one_before_a_damaged_one_is_used():
    for how, reason in (("truncated", "safetensors"), ("empty", "0 bytes"), ("foreign", "safetensors"),
                        ("flipped", "checksum")):
        with Swarm() as swarm:
            folder = swarm.path("kept")
            first = node(swarm, "first", folder)
            trainer = Trainer(first)
            trainer.step(1)
            until(lambda: generations(folder)[:1] and generations(folder)[0][1] == 1, 30, "a save")
            assert first.stop() == 0
            first = node(swarm, "again", folder, period="1000")
            Trainer(first).step(2)
            assert first.stop() == 0
            assert [g[1] for g in generations(folder)] == [2, 1], generations(folder)
            path = newest_path(folder)
            damage(path, how)
            second = node(swarm, "second", folder, period="1000")
            assert info(second)["updates"] == 1, how
            log = second.read_log()
            assert path in log and reason in log, log


def case_without_a_usable_one_it_does_not_start():
    with Swarm() as swarm:
        folder = swarm.path("kept")
        first = node(swarm, "first", folder)
        assert first.stop() == 0
        base = ["node", "--no-dht", "--listen", "127.0.0.1:*", "--checkpoint-dir", folder,
                "--expert-uids", "ffn.0.0"]
        refused(1, ["none of its checkpoints can be used, of which it has 1", "hidden_dim 16", "hidden_dim 32"], *base,
                "--expert-cls", "ffn", "--hidden-dim", "32")
        refused(1, ["ffn.0.0", "class"], *base, "--expert-cls", "swiglu", "--hidden-dim", "16")
        damage(newest_path(folder), "flipped")
        refused(1, ["none of its checkpoints can be used, of which it has 1", "checksum"], *base, "--expert-cls", "ffn",
                "--hidden-dim", "16")
        assert len(generations(folder)) == 1


def case_a_folder_is_used_by_one_node():
    with Swarm() as swarm:
        folder = swarm.path("kept")
        node(swarm, "first", folder)
        refused(1, [folder, "another process"], "node", "--no-dht", "--listen", "127.0.0.1:*",
                "--checkpoint-dir", folder, "--expert-uids", "ffn.0.1", "--hidden-dim", "16")


def case_an_unusable_folder_is_named():
    with Swarm() as swarm:
        path = swarm.path("file")
        with open(path, "w") as file:
            file.write("x")
        base = ["node", "--no-dht", "--listen", "127.0.0.1:*", "--hidden-dim", "16",
                "--expert-uids", "ffn.0.0", "--checkpoint-dir"]
        refused(1, [path, "not a folder"], *base, path)
        refused((1, 3), [swarm.path("a/b"), "make this folder"], *base, swarm.path("a/b"))
        refused(2, ["--load-experts", "--checkpoint-dir"], "node", "--load-experts")
        refused(2, ["checkpoint-period", "0"], *base, path, "--checkpoint-period", "0")
        # Nothing can be made in /proc, by root either.
        refused((1, 3), ["/proc", "write checkpoints"], *base, "/proc")


def case_what_the_folder_holds_is_hosted():
    with Swarm() as swarm:
        folder = swarm.path("kept")
        first = node(swarm, "first", folder, uids=("ffn.0.0", "ffn.0.1", "att.1"))
        assert first.stop() == 0
        os.makedirs(folder + "/ffn.x")
        os.makedirs(folder + "/.tmp")
        os.makedirs(folder + "/..ffn.0.2")
        os.makedirs(folder + "/ffn.0.9")  # its first save never ended
        os.symlink("/nowhere", folder + "/ffn.0.3")
        with open(folder + "/ffn.0.4", "w") as file:
            file.write("not a folder")
        base = ["node", "--no-dht", "--listen", "127.0.0.1:*", "--insecure-plaintext",
                "--checkpoint-dir", folder, "--load-experts"]
        process = swarm.start("all", *base)
        assert [e["uid"] for e in process.facts["experts"]] == ["att.1", "ffn.0.0", "ffn.0.1"]
        assert all(e["parameters"] == process.facts["experts"][0]["parameters"]
                   for e in process.facts["experts"])
        log = process.read_log()
        for name in ("ffn.x", ".tmp", "..ffn.0.2", "ffn.0.3", "ffn.0.4", "ffn.0.9"):
            assert name in log, (name, log)
        process.stop()
        process = swarm.start("pattern", *base, "--expert-pattern", "ffn.[0:4].[0:8]")
        assert [e["uid"] for e in process.facts["experts"]] == ["ffn.0.0", "ffn.0.1"]
        assert "att.1" in process.read_log()
        process.stop()
        process = swarm.start("more", *base, "--expert-pattern", "ffn.[0:1].[0:2]",
                              "--num-experts", "2")
        assert [e["uid"] for e in process.facts["experts"]] == ["ffn.0.0", "ffn.0.1"]
        process.stop()
        process = swarm.start("some", *base, "--expert-uids", "ffn.0.1,new.7", "--hidden-dim", "8")
        assert [e["uid"] for e in process.facts["experts"]] == ["ffn.0.1", "new.7"]
        process.stop()
        refused(1, ["..ffn.0.2"], *base, "--strict-checkpoints")


def case_a_full_disk_is_told_and_serving_goes_on():
    """A limit on the size of files stands for the full disk."""
    with Swarm() as swarm:
        folder = swarm.path("kept")
        first = node(swarm, "first", folder)
        trainer = Trainer(first)
        trainer.step(0)
        until(lambda: generations(folder) and generations(folder)[0][1] == 1, 30, "a save")
        before = generations(folder)
        # The log goes to a file as well, so there must be room for its lines.
        resource.prlimit(first.popen.pid, resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
        for i in range(50):
            trainer.step(i)
        first.wait_log("checkpoint not saved")
        assert "File too large" in first.read_log()
        assert info(first)["updates"] == 51
        assert generations(folder) == before
        until(lambda: len(os.listdir(folder + "/ffn.0.0")) == len(before) + 1, 30,
              "nothing is left of the saves that failed")
        resource.prlimit(first.popen.pid, resource.RLIMIT_FSIZE,
                         (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        first.wait_log("saved again")
        until(lambda: generations(folder)[0][1] == 51, 30, "a save of all steps")


def case_what_a_full_disk_costs_at_the_stop_is_told():
    """Also right after the same failure was told, and it is a failure of the whole."""
    with Swarm() as swarm:
        folder = swarm.path("kept")
        first = node(swarm, "first", folder, uids=("ffn.0.0", "ffn.0.1"), period="1000")
        until(lambda: generations(folder) and generations(folder, "ffn.0.1"), 30, "first saves")
        trainer = Trainer(first)
        for i in range(3):
            trainer.step(i)
        resource.prlimit(first.popen.pid, resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        assert first.stop() == 1, first.read_log()
        log = first.read_log()
        assert "ERROR" in log and "ffn.0.0: lost: 3 updates since its last checkpoint" in log, log
        assert "File too large" in log and "1 expert could not be saved" in log, log
        assert "ffn.0.1: lost" not in log and "tried again" not in log, log
        assert first.events()[-1]["event"] == "stopped"
        assert info(node(swarm, "second", folder))["updates"] == 0


def case_experts_of_a_pattern_go_on_after_a_restart():
    """Those that were kept come before new ones."""
    with Swarm() as swarm:
        folder = swarm.path("kept")

        def start(name, number, *arguments, size=HIDDEN, cls="ffn"):
            process = swarm.start(name, "node", "--listen", "127.0.0.1:*", "--no-dht",
                                  "--insecure-plaintext", "--checkpoint-dir", folder,
                                  "--expert-pattern", "ffn.[0:64].[0:64]", "--num-experts",
                                  str(number), "--expert-cls", cls, "--hidden-dim", str(size),
                                  *arguments)
            return process, [e["uid"] for e in process.facts["experts"]]
        first, uids = start("first", 2)
        trained = uids[1]
        Trainer(first, trained).step(0)
        assert first.stop() == 0
        second, again = start("second", 2)
        assert again == uids, (again, uids)
        assert info(second, trained)["updates"] == 1
        assert "pattern ffn: of 2 experts, 2 go on and 0 start anew" in second.read_log()
        assert second.stop() == 0
        third, more = start("third", 4)
        assert len(more) == 4 and set(uids) < set(more), (uids, more)
        assert info(third, trained)["updates"] == 1
        assert "pattern ffn: of 4 experts, 2 go on and 2 start anew" in third.read_log()
        assert third.stop() == 0
        fourth, fewer = start("fourth", 1)
        assert fewer == more[:1], (fewer, more)
        assert "holds 4 experts" in fourth.read_log()
        assert fourth.stop() == 0
        # One whose newest is damaged goes on from the one before.
        fifth, again = start("fifth", 4, "--checkpoint-period", "1000")
        assert again == more, (again, more)
        Trainer(fifth, trained).step(1)
        assert fifth.stop() == 0
        assert [g[1] for g in generations(folder, trained)] == [2, 1], os.listdir(folder)
        damage(newest_path(folder, trained), "flipped")
        sixth, again = start("sixth", 4)
        assert again == more, (again, more)
        assert info(sixth, trained)["updates"] == 1
        assert sixth.stop() == 0
        other, new = start("other", 2, size=8)
        assert not set(new) & set(more), (new, more)
        assert "is not hosted" in other.read_log()


def case_requests_go_on_while_it_saves():
    """Saves without a pause between them, of an expert that takes long to write, and calls."""
    with Swarm() as swarm:
        folder = swarm.path("kept")
        process = swarm.node("node", ["ffn.0.0", "nop.1"], [], "--no-dht", "--insecure-plaintext",
                             "--checkpoint-dir", folder, "--checkpoint-period", "0.01",
                             cls="ffn", hidden=256)
        x, g, y = (swarm.path(n) for n in ("x.npy", "g.npy", "y.npy"))
        write_npy(x, (2, 256), [0.01] * 512)
        write_npy(g, (2, 256), [0.01] * 512)
        for i in range(10):
            call("ffn.0.0", "--input", x, "--grad", g, "--output", y, "--insecure-plaintext",
                 node=process)
            call("ffn.0.0", "--input", x, "--output", y, "--insecure-plaintext", node=process)
        until(lambda: generations(folder)[0][1] == 10, 20, "the last save")
        assert process.stop() == 0
        stats = process.events()[-1]
        assert stats["checkpoints_saved"] >= 3 and stats["checkpoints_failed"] == 0, stats


main(globals())
