"""Nodes whose state cannot be written: keys and checkpoints on a read-only mount, as containers have
them. Each node has a mount namespace of its own."""

import json
import os
import shutil
import subprocess

from swarm import Swarm, call, main, read_safetensors, refused, run, skip, write_safetensors

# Binds a folder (or a file) to itself and takes the right to write from that mount alone.
MOUNT = ('set -e; for p in $1; do mount --bind "$p" "$p"; mount -o remount,bind,ro "$p"; done; '
         'shift; exec "$@"')
HIDDEN = 8


def inside(*paths):
    return ["unshare", "--mount", "sh", "-c", MOUNT, "sh", " ".join(paths)]


def check_rights():
    if shutil.which("unshare") is None:
        skip("no unshare")
    with Swarm() as swarm:
        probe = subprocess.run(inside(swarm.folder) + ["touch", swarm.path("x")],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if b"Read-only" not in probe.stdout:
        skip("no mounts here: " + probe.stdout.decode())


def node(swarm, name, *arguments, **more):
    return swarm.start(name, "node", "--no-dht", "--listen", "127.0.0.1:*", *arguments, **more)


def case_an_identity_on_a_read_only_mount_is_used_by_one():
    with Swarm() as swarm:
        secrets = swarm.path("secrets")
        key = secrets + "/node.key"
        run("keygen", "--identity", key)
        peer_id = node(swarm, "before", "--identity", key)
        first_id = peer_id.facts["peer_id"]
        # Held by a node that can write there: the lock file says so.
        refused(1, [key, "in use by process %d" % peer_id.popen.pid], "node", "--no-dht",
                "--identity", key, "--listen", "127.0.0.1:*", inside=inside(secrets))
        assert peer_id.stop() == 0
        for mounted in (secrets, key):  # the folder, or the file alone
            first = node(swarm, "first", "--identity", key, inside=inside(mounted))
            assert first.facts["peer_id"] == first_id
            assert os.listdir(secrets) == ["node.key"] or mounted == key
            with open(key) as file:
                digits = file.read()[:8]
            for who in (inside(secrets), ()):
                said = refused(1, [key, "in use by process (unknown)"] if mounted == secrets else key,
                               "node", "--no-dht", "--identity", key, "--listen", "127.0.0.1:*",
                               inside=who)
                assert digits not in said, said
            assert first.stop() == 0
        last = node(swarm, "last", "--identity", key)
        assert last.facts["peer_id"] == first_id
        assert last.stop() == 0
        # A key that is not there cannot be made.
        refused(1, [secrets + "/other.key", "Read-only"], "node", "--no-dht", "--identity",
                secrets + "/other.key", "--listen", "127.0.0.1:*", inside=inside(secrets))


def make_experts(swarm, folder, *more):
    """Two experts that have learned something."""
    maker = node(swarm, "maker", "--checkpoint-dir", folder, "--expert-uids", "ffn.0.0,ffn.0.1",
                 "--hidden-dim", str(HIDDEN), *more)
    x, g = swarm.path("x.safetensors"), swarm.path("g.safetensors")
    values = [i / 8 for i in range(HIDDEN)]
    write_safetensors(x, {"input.0": ((1, HIDDEN), values)})
    write_safetensors(g, {"grad_output.0": ((1, HIDDEN), values)})
    call("ffn.0.0", "--input", x, "--grad", g, "--output", swarm.path("dx.safetensors"), node=maker)
    y = output(swarm, maker)
    assert maker.stop() == 0
    return y


def output(swarm, of):
    y = swarm.path("y.safetensors")
    call("ffn.0.0", "--input", swarm.path("x.safetensors"), "--output", y, node=of)
    return read_safetensors(y)["output.0"]


def contents(folder):
    return sorted((where, tuple(sorted(files))) for where, _, files in os.walk(folder))


def case_experts_that_do_not_learn_are_served_from_a_read_only_folder():
    with Swarm() as swarm:
        folder = swarm.path("kept")
        want = make_experts(swarm, folder)
        before = contents(folder)
        served = ("--checkpoint-dir", folder, "--load-experts", "--optimizer", "none")
        nodes = [node(swarm, "ro%d" % i, *served, inside=inside(folder)) for i in range(2)]
        nodes.append(node(swarm, "named", "--checkpoint-dir", folder, "--expert-uids", "ffn.0.0",
                          "--hidden-dim", str(HIDDEN), "--optimizer", "none", inside=inside(folder)))
        nodes.append(node(swarm, "pattern", "--checkpoint-dir", folder, "--expert-pattern",
                          "ffn.[0:1].[0:2]", "--num-experts", "2", "--hidden-dim", str(HIDDEN),
                          "--optimizer", "none", inside=inside(folder)))
        for served_by in nodes:
            assert output(swarm, served_by) == want
            # A gradient is given, and nothing changes by it that had to be saved.
            call("ffn.0.0", "--input", swarm.path("x.safetensors"), "--grad",
                 swarm.path("g.safetensors"), "--output", swarm.path("dx.safetensors"),
                 node=served_by)
        for served_by in nodes:
            assert served_by.stop() == 0
            assert "lost" not in served_by.read_log(), served_by.read_log()
        assert contents(folder) == before
        # What would have to be saved is refused.
        base = ("node", "--no-dht", "--listen", "127.0.0.1:*", "--checkpoint-dir", folder)
        for more in (("--load-experts",), ("--load-experts", "--optimizer", "sgd"),
                     ("--load-experts", "--optimizer", "none", "--expert-uids", "new.1",
                      "--hidden-dim", "8")):
            refused(1, [folder, "Read-only file system"], *base, *more, inside=inside(folder))
        assert contents(folder) == before


def case_experts_saved_as_not_learning_need_no_option():
    with Swarm() as swarm:
        folder = swarm.path("kept")
        want = make_experts(swarm, folder, "--optimizer", "none")
        loaded = node(swarm, "loaded", "--checkpoint-dir", folder, "--load-experts",
                      inside=inside(folder))
        assert output(swarm, loaded) == want
        assert loaded.stop() == 0


def case_several_nodes_share_a_folder_unless_they_learn():
    with Swarm() as swarm:
        folder = swarm.path("kept")
        want = make_experts(swarm, folder)
        with open(folder + "/ffn.0.0/checkpoint_9_9.safetensors.tmp.1.1", "w") as file:
            file.write("of a save under way")
        before = contents(folder)
        served = ("--checkpoint-dir", folder, "--load-experts", "--optimizer", "none")
        nodes = [node(swarm, "s%d" % i, *served) for i in range(3)]
        assert [output(swarm, n) for n in nodes] == [want] * 3
        assert contents(folder) == before  # what another process may be writing is left alone
        learner = node(swarm, "learner", "--checkpoint-dir", folder, "--load-experts")
        nodes.append(node(swarm, "late", *served))
        assert output(swarm, nodes[-1]) == want
        refused(1, [folder, "another process"], "node", "--no-dht", "--listen", "127.0.0.1:*",
                "--checkpoint-dir", folder, "--load-experts")
        # One that has something to save needs the folder for itself.
        refused(1, [folder, "another process"], "node", "--no-dht", "--listen", "127.0.0.1:*",
                *served, "--expert-uids", "new.1", "--hidden-dim", "8")
        for process in nodes + [learner]:
            assert process.stop() == 0


check_rights()
main(globals())
