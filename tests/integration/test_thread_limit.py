"""Nodes that may start few threads: what batches need exists before a node is ready, else it ends
with exit code 1 and says why; a shortage after that does not end it."""

import os
import shutil
import subprocess

from swarm import SKEP, Swarm, call, main, read_npy, run, skip, until, write_npy

HIDDEN, ROWS = 256, 512  # products that are worth several threads
USER = 61234  # nobody else's: its limit counts the threads of the node alone
TEAM = 4  # libgomp lets threads of a team of three or more go, and wants them again
MOST_THREADS = 100  # far above what a node has
AS_USER = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
WHY = "cannot start: Resource temporarily unavailable"


def inside(threads):
    """Root is exempt from the limit, so the node runs as somebody else."""
    return ["prlimit", "--nproc=%d:%d" % (threads, threads)] + AS_USER


class Limited:
    """A node under a limit: what has become of its start, and calls to it."""

    def __init__(self, swarm, threads):
        self.swarm = swarm
        self.node = swarm.start("node-%d" % threads, "node", "--listen", "127.0.0.1:*",
                                "--expert-uids", "a.0,a.1", "--hidden-dim", str(HIDDEN),
                                ready=False,
                                inside=inside(threads),
                                environment={"OMP_NUM_THREADS": str(TEAM), "HOME": "/nowhere"})
        self.is_ready = False
        try:
            self.node.wait_ready()
            self.is_ready = True
        except AssertionError:
            assert not self.node.alive(), self.node.read_log()

    def check_refusal(self):
        code, log = self.node.wait(), self.node.read_log()
        assert code == 1 and "libgomp" not in log and "terminate called" not in log, (code, log)
        assert WHY in log, log

    def serves(self):
        x, out = self.swarm.path("x.npy"), self.swarm.path("out.npy")
        write_npy(x, (ROWS, HIDDEN), [0.5] * (ROWS * HIDDEN))
        for uid in ("a.0", "a.1"):
            call(uid, "--input", x, "--grad", x, "--output", out, node=self.node)
            call(uid, "--input", x, "--output", out, node=self.node)
            assert read_npy(out)[1] == [ROWS, HIDDEN]

    def team(self):
        """Ids of the threads that compute: those of libgomp have the name of who made them."""
        folder = "/proc/%d/task/" % self.node.popen.pid
        ids = set()
        for thread in os.listdir(folder):
            try:
                with open(folder + thread + "/comm") as f:
                    if f.read() == "skep-runtime\n":
                        ids.add(thread)
            except FileNotFoundError:
                pass  # it has ended
        return ids


def can_run():
    if os.geteuid() != 0 or not all(map(shutil.which, ("prlimit", "setpriv"))):
        return False
    done = subprocess.run(inside(MOST_THREADS) + [SKEP, "--version"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    return done.returncode == 0


def case_each_limit_either_refuses_at_the_start_or_serves():
    """From one thread up, until several have sufficed."""
    served = 0
    for threads in range(1, MOST_THREADS):
        with Swarm() as swarm:
            limited = Limited(swarm, threads)
            if not limited.is_ready:
                limited.check_refusal()
                continue
            limited.serves()
            assert limited.node.stop() == 0, limited.node.read_log()
            served += 1
            if served == 3:
                return
    raise AssertionError("a node wants %d threads" % MOST_THREADS)


def case_a_shortage_after_the_start_does_not_end_it():
    """No thread more may start, those that there are included if one should end."""
    with Swarm() as swarm:
        limited = Limited(swarm, MOST_THREADS)
        assert limited.is_ready, limited.node.read_log()
        subprocess.run(AS_USER + ["prlimit", "--nproc=1:1", "--pid",
                                  str(limited.node.popen.pid)], check=True)
        before = limited.team()
        assert len(before) == TEAM, before
        for _ in range(5):
            limited.serves()
        # None of a team was let go, which GNU OpenMP would miss in the next loop.
        assert before == limited.team(), (before, limited.team())
        assert limited.node.stop() == 0, limited.node.read_log()


if not can_run():
    skip("needs root, prlimit and setpriv, and a program that other users may run")
main(globals())
