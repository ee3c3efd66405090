"""Experts that outlive their node: saved while it serves, loaded when it starts, never half."""

import os
import random
import re
import resource
import shutil
import struct
import time

from namespaces import SmallDisk, lacks_disks, only_with
from swarm import SETTINGS, HeldThread, Swarm, call, main, read_npy, refused, until, write_npy
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


def newest(folder, uid="ffn.0.0"):
    """(number, updates) of the newest; zeros if there is none."""
    return (generations(folder, uid) or [(0, 0)])[0]


def newest_path(folder, uid="ffn.0.0"):
    number, updates = generations(folder, uid)[0]
    return os.path.join(folder, uid, "checkpoint_%d_%d.safetensors" % (updates, number))


def is_saving(folder, uid="ffn.0.0"):
    path = os.path.join(folder, uid)
    return os.path.isdir(path) and any(".tmp" in name for name in os.listdir(path))


class Trainer:
    """Backward calls over one connection, one after the other."""

    def __init__(self, process, uid="ffn.0.0", hidden=HIDDEN):
        self.connection = Connection(process)
        self.uid = uid
        self.hidden = hidden
        self.stream = 1

    def step(self, seed):
        values = random.Random(seed)
        data = struct.pack("<%df" % (4 * self.hidden),
                           *(values.uniform(-1, 1) for _ in range(4 * self.hidden)))
        half = len(data) // 2
        both = [tensor("F32", (2, self.hidden), half)] * 2
        self.connection.socket.sendall(
            self.connection.headers(self.stream, self.uid, both, method="backward",
                                    id=os.urandom(16))
            + frame(DATA, self.stream, data[:half]) + frame(DATA, self.stream, data[half:])
            + frame(END, self.stream))
        self.read_answer()

    def forward(self):
        data = struct.pack("<%df" % (2 * self.hidden), *([0.5] * (2 * self.hidden)))
        self.connection.socket.sendall(
            self.connection.forward(self.stream, self.uid, (2, self.hidden), data))
        self.read_answer()

    def read_answer(self):
        answer = b""
        while True:
            kind, stream, payload = self.connection.read_frame()
            if kind == HEADERS:
                # The first field of a reply is its status, 0 for success.
                assert STATUS.search(payload).group(1) == b"\0", payload
                answer = payload
            if kind == END and stream == self.stream:
                break
        self.stream += 2
        return answer

    def longest_wait_us(self):
        """That a step of any expert has waited for a copy, as the node counts it."""
        self.connection.socket.sendall(
            self.connection.headers(self.stream, "", [], method="stats") + frame(END, self.stream))
        value = self.read_answer().split(b"checkpoint_wait_us", 1)[1]
        sizes = {0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8}
        return int.from_bytes(value[1:1 + sizes[value[0]]], "big") if value[0] > 0x7f else value[0]


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
    """A row of nodes (SKEP_TEST_LIVES: 20), each killed at some moment after its first to tenth save
    while it trains and saves: more than a hundred saves."""
    seed = int(SETTINGS.get("SKEP_TEST_SEED", random.randrange(1 << 32)))
    print("seed %d (SKEP_TEST_SEED)" % seed)
    chance = random.Random(seed)
    lives = int(SETTINGS.get("SKEP_TEST_LIVES", "20"))
    wanted = [life % 10 + 1 for life in range(lives)]
    chance.shuffle(wanted)
    saves = 0
    with Swarm() as swarm:
        folder = swarm.path("kept")
        updates = 0
        for life in range(lives):
            process = node(swarm, "life%d" % life, folder)
            assert info(process)["updates"] == updates, (life, updates)
            first = newest(folder)[0]
            trainer = Trainer(process)
            step = 0
            seen = (0, 0)

            def has_saved():
                nonlocal step, seen
                trainer.step(step)
                step += 1
                seen = max(seen, newest(folder))
                return seen[0] - first >= wanted[life]
            until(has_saved, 60, "%d saves" % wanted[life], pause=0)
            deadline = time.monotonic() + chance.uniform(0, 0.1)
            while time.monotonic() < deadline:
                has_saved()
            process.kill()
            after = newest(folder)
            # What was finished before the kill is there, and nothing is from the future.
            assert seen <= after and after[1] <= updates + step, (seen, after, updates)
            saves += after[0] - first
            updates = after[1]
        last = node(swarm, "last", folder)
        assert info(last)["updates"] == updates
        assert last.stop() == 0
        names = sorted(os.listdir(folder + "/ffn.0.0"))
        # The last kill may have come before the oldest one was removed: the next save does that.
        assert 3 <= len(names) <= 4 and "checkpoint_last" in names, names
        assert not any(".tmp" in name for name in names), names
    print("%d saves" % saves)
    assert saves >= sum(wanted), (saves, wanted)


def damage(path, how):
    with open(path, "r+b") as file:
        if how == "truncated":
            file.truncate(os.path.getsize(path) // 2)
        elif how == "empty":
            file.truncate(0)
        elif how == "foreign":
            file.write(b"\x50\x4b\x03\x04 a zip file, as torch.save makes them")
        else:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-100, os.SEEK_END)
            file.write(bytes([byte ^ 0x55]))


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


def case_experts_to_load_must_be_there():
    """A node that serves nothing is not what was asked for; nor is a folder that nobody has made."""
    with Swarm() as swarm:
        folder = swarm.path("kept")
        base = ["node", "--no-dht", "--listen", "127.0.0.1:*", "--checkpoint-dir", folder,
                "--load-experts"]
        refused(1, [folder + ": does not exist", "expected the folder of experts"], *base)
        assert not os.path.exists(folder)
        os.makedirs(folder + "/no-uid")
        refused(1, [folder + ": holds no expert that can be loaded", "expected", "no-uid"], *base)
        refused(1, "holds no expert that can be loaded", *base, "--expert-pattern", "att.[0:4]")
        # Others that are asked for are made.
        for name, more in (("uids", ["--expert-uids", "ffn.0.0"]),
                           ("pattern", ["--expert-pattern", "att.[0:4]", "--num-experts", "1"])):
            process = swarm.start(name, *base, *more, "--hidden-dim", "8")
            assert len(process.facts["experts"]) == 1, process.facts
            assert folder + ": no expert to load" in process.read_log(), process.read_log()
            process.kill()


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


def contents(folder, uid="ffn.0.0"):
    """Of the finished checkpoints."""
    path = os.path.join(folder, uid)
    read = {}
    for name in os.listdir(path):
        if NAME.match(name):
            with open(os.path.join(path, name), "rb") as file:
                read[name] = file.read()
    return read


@only_with(lacks_disks)
def case_a_full_disk_leaves_the_old_checkpoints_and_serving_goes_on():
    with Swarm() as swarm, SmallDisk(swarm.path("kept"), 512) as disk:
        first = node(swarm, "first", disk.folder, inside=disk.inside)
        trainer = Trainer(first)
        trainer.step(0)
        until(lambda: newest(disk.seen)[1] == 1, 30, "a save")
        before = contents(disk.seen)
        disk.fill()
        for i in range(50):
            trainer.step(i)
        first.wait_log("checkpoint not saved")
        assert "No space left on device" in first.read_log()
        assert info(first)["updates"] == 51
        until(lambda: not is_saving(disk.seen), 30, "nothing is left of the saves that failed",
              pause=0.001)
        assert contents(disk.seen) == before
        disk.make_room()
        first.wait_log("saved again")
        until(lambda: newest(disk.seen)[1] == 51 and len(generations(disk.seen)) == 2, 30,
              "a save of all steps")
        # Killed while the disk is full again, it goes on from what was there.
        before = contents(disk.seen)
        disk.fill()
        trainer.step(51)
        until(lambda: first.read_log().count("checkpoint not saved") == 2, 30, "a failed save")
        first.kill()
        assert contents(disk.seen) == before
        second = node(swarm, "second", disk.folder, inside=disk.inside)
        assert info(second)["updates"] == 51
        disk.make_room()
        assert second.stop() == 0


@only_with(lacks_disks)
def case_a_read_only_disk_is_named():
    with Swarm() as swarm, SmallDisk(swarm.path("kept"), 512) as disk:
        first = node(swarm, "first", disk.folder, inside=disk.inside)
        Trainer(first).step(0)
        assert first.stop() == 0
        before = contents(disk.seen)
        disk.mount("-o", "remount,ro")
        refused((1, 3), [disk.folder, "Read-only file system"], "node", "--no-dht", "--listen",
                "127.0.0.1:*", "--hidden-dim", str(HIDDEN), "--expert-uids", "ffn.0.0",
                "--checkpoint-dir", disk.folder, inside=disk.inside)
        assert contents(disk.seen) == before
        disk.mount("-o", "remount,rw")
        assert info(node(swarm, "second", disk.folder, inside=disk.inside))["updates"] == 1


def case_a_limit_on_files_is_told_and_serving_goes_on():
    """As a quota sets it."""
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
    """The thread that saves is held in the middle of writing a file, as by a disk that takes for
    ever: calls are answered, steps are taken, none of which waits, and the rest is saved later."""
    with Swarm() as swarm:
        folder = swarm.path("kept")
        process = swarm.node("node", ["ffn.0.0", "nop.1"], [], "--no-dht", "--insecure-plaintext",
                             "--checkpoint-dir", folder, "--checkpoint-period", "0.01",
                             cls="ffn", hidden=256)
        trainer = Trainer(process, hidden=256)
        steps = 0
        try:
            thread = HeldThread(process, "skep-checkpoint")
        except PermissionError as error:
            return "skipped: no thread can be held here: %s" % error
        with thread as saver:
            def is_held_while_saving():
                nonlocal steps
                trainer.step(steps)
                steps += 1
                saver.hold()
                # What it writes has been copied by then: no step waits for it, or helps.
                if is_saving(folder):
                    return True
                saver.release()
                return False
            until(is_held_while_saving, 60, "a file being written", pause=0)
            before, waited = generations(folder), trainer.longest_wait_us()
            for i in range(20):
                trainer.step(steps)
                steps += 1
                trainer.forward()
            Trainer(process, "nop.1", hidden=256).forward()
            assert info(process)["updates"] == steps
            assert is_saving(folder) and generations(folder) == before, "it was not held"
            assert trainer.longest_wait_us() == waited
            saver.release()
            until(lambda: newest(folder)[1] == steps, 20, "the last save")
        assert process.stop() == 0
        stats = process.events()[-1]
        assert stats["checkpoints_saved"] >= 2 and stats["checkpoints_failed"] == 0, stats


main(globals())
