"""The example trainer with --moe over three nodes of which some fail: training goes on."""

import json
import signal

from swarm import PATIENCE, Swarm, call, main, until
from trainer import Trainer

PATTERN = "digits.[0:4].[0:4]"
TIMEOUT_S = 5 * PATIENCE  # of a pass
UIDS = ["digits.%d.%d" % (i, k) for i in range(4) for k in range(4)]
SHARES = [UIDS[:6], UIDS[6:11], UIDS[11:]]
# An expert sees a quarter of each batch or less, as deploy/quickstart says.
RATE = ("--learning-rate", "3e-4")


class MoeTrainer(Trainer):
    """One with --moe, and the lines it has written for its epochs."""

    def __init__(self, swarm, peer, *arguments):
        super().__init__(swarm, peer, PATTERN, TIMEOUT_S, "--moe", *arguments)

    def epochs(self):
        try:
            with open(self.progress_path) as file:
                return [json.loads(line) for line in file.read().split("\n")[:-1]]
        except FileNotFoundError:
            return []

    def until(self, condition, seconds, what):
        """Waits until the last line fulfils a condition; returns it."""
        def last():
            epochs = self.epochs()
            if epochs and condition(epochs[-1]):
                return epochs[-1]
            assert self.popen.poll() is None, "the trainer has ended:\n" + self.output()
            return None
        return until(last, seconds, what, pause=0.02)

    def until_after(self, epoch, more=2, seconds=60):
        """Waits for so many epochs more, the first of which may have begun before."""
        return self.until(lambda e: e["epoch"] >= epoch["epoch"] + more, seconds,
                          "%d epochs after number %d" % (more, epoch["epoch"]))

    def wait(self, code, seconds=120):
        assert self.popen.wait(seconds * PATIENCE) == code, self.output()


def start_nodes(swarm):
    bootstrap = swarm.bootstrap()
    nodes = [swarm.node("node%d" % i, uids, [bootstrap.peer], *RATE, cls="ffn", hidden=64)
             for i, uids in enumerate(SHARES)]
    return bootstrap, nodes


def check_pauses(epoch):
    """Every pass ends by its deadline. The margin is for a busy machine, and below a second timeout:
    none waits for two."""
    margin_ms = 800 * TIMEOUT_S
    assert epoch["timeout_ms"] == 1000 * TIMEOUT_S, epoch
    assert epoch["longest_pass_ms"] <= epoch["timeout_ms"] + margin_ms, epoch
    assert epoch["longest_pause_ms"] <= epoch["timeout_ms"] + margin_ms, epoch


def train_through_a_failure(number):
    """Ten epochs, halfway a signal for one node; what the trainer says of all epochs."""
    with Swarm() as swarm:
        bootstrap, nodes = start_nodes(swarm)
        with MoeTrainer(swarm, bootstrap.peer, "--epochs", "10") as trainer:
            trainer.until(lambda e: e["epoch"] >= 5, 60, "half of the epochs")
            nodes[1].send(number)
            trainer.wait(0)  # at least 96% of the test set
            epochs = trainer.epochs()
    assert [e["epoch"] for e in epochs] == list(range(1, 11)), epochs
    assert all(e["known"] == len(UIDS) for e in epochs), epochs  # records outlive their node
    assert epochs[-1]["accuracy"] >= 96, epochs[-1]
    check_pauses(epochs[-1])
    failing = max(e["failing"] for e in epochs)
    assert 0 < failing <= len(SHARES[1]), epochs
    # Some digits may have had no expert but those of that node, once.
    assert epochs[-1]["missing_samples"] < epochs[-1]["passes"], epochs[-1]
    return epochs


def case_a_node_is_killed_halfway():
    epochs = train_through_a_failure(signal.SIGKILL)
    return "ok, longest pause %.0f ms" % epochs[-1]["longest_pause_ms"]


def case_a_node_hangs_halfway():
    """Its connections stay open, so only the mixture's own timeouts end the waiting."""
    epochs = train_through_a_failure(signal.SIGSTOP)
    assert epochs[-1]["longest_pause_ms"] >= 1000 * TIMEOUT_S / 2, epochs[-1]


def updates(node, uid):
    return call(uid, node=node)["updates"]


def case_every_node_is_replaced():
    """First one, while the others serve; then all at once, so that for a while nobody is there."""
    with Swarm() as swarm:
        bootstrap, nodes = start_nodes(swarm)
        with MoeTrainer(swarm, bootstrap.peer, "--epochs", "1000000") as trainer:
            before = trainer.until(lambda e: e["epoch"] >= 2, 60, "two epochs")
            for round_number, gone in enumerate(([0], [0, 1, 2])):
                for i in gone:
                    nodes[i].kill()
                if len(gone) == 1:  # the others go on meanwhile
                    before = trainer.until_after(before)
                for i in gone:
                    nodes[i] = swarm.node("new%d-%d" % (round_number, i), SHARES[i],
                                          [bootstrap.peer], *RATE, cls="ffn", hidden=64)
                for i in gone:
                    until(lambda i=i: any(updates(nodes[i], uid) > 0 for uid in SHARES[i]), 60,
                          "experts of the new node %d are trained" % i)
                before = trainer.until_after(trainer.epochs()[-1])
                serving = sorted(n.facts["peer_id"][:12] for n in nodes)
                trainer.until(lambda e: sorted(e["nodes"]) == serving, 60, "seen to serve: %s" %
                              serving)
            trainer.until(lambda e: e["accuracy"] >= 96, 60, "the new experts learn")
            trainer.popen.send_signal(signal.SIGINT)
            trainer.wait(130)


def case_a_node_that_comes_back_is_asked_again():
    """The same identity, which has failed before: its back-off ends."""
    with Swarm() as swarm:
        bootstrap, nodes = start_nodes(swarm)
        identity = ("--identity", swarm.path("node.key"))
        nodes[0].stop()
        nodes[0] = swarm.node("first", SHARES[0], [bootstrap.peer], *RATE, *identity, cls="ffn",
                              hidden=64)
        with MoeTrainer(swarm, bootstrap.peer, "--epochs", "1000000") as trainer:
            trainer.until(lambda e: e["epoch"] >= 2, 60, "two epochs")
            nodes[0].kill()
            trainer.until(lambda e: e["failing"] > 0, 60, "its experts fail")
            nodes[0] = swarm.node("again", SHARES[0], [bootstrap.peer], *RATE, *identity,
                                  cls="ffn", hidden=64)
            until(lambda: any(updates(nodes[0], uid) > 0 for uid in SHARES[0]), 60,
                  "its experts are trained again")
            trainer.popen.send_signal(signal.SIGTERM)
            trainer.wait(130)


main(globals())
