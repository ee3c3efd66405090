"""The example trainer: how well it learns, and that it ends when it is asked to while it waits for
others, whatever they do."""

import json
import os
import signal
import socket
import statistics

from swarm import PATIENCE, Swarm, main, until
from trainer import Trainer

UIDS = ["digits.0.0", "digits.0.1"]
LONG_S = 3600  # nobody waits so long
# Sooner than a node that hangs is given up by itself: what ends before was ended by the signal.
SOON_S = 25


class LongTrainer(Trainer):
    """Trains until it is told to stop."""

    def __init__(self, swarm, peer, *arguments):
        super().__init__(swarm, peer, "digits.[0:1].[0:2]", LONG_S, "--epochs", "1000000",
                         *arguments)

    def trains(self):
        return os.path.exists(self.progress_path) and os.path.getsize(self.progress_path) > 0

    def interrupt(self, number):
        self.popen.send_signal(number)
        assert self.popen.wait(SOON_S * PATIENCE) == 130, self.output()
        said = self.output()
        assert "interrupted" in said, said
        return said


def case_while_it_joins():
    """By a peer that never answers; giving up would be another exit code."""
    for number, extra in ((signal.SIGTERM, ()), (signal.SIGINT, ("--moe",))):
        with Swarm() as swarm, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            silent.settimeout(30 * PATIENCE)
            with LongTrainer(swarm, "127.0.0.1:%d" % silent.getsockname()[1], *extra) as trainer:
                silent.recv(2048)  # it asks to join
                said = trainer.interrupt(number)
            assert "answered" not in said, said


def while_its_node_hangs(number, *extra):
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        node = swarm.node("node", UIDS, [bootstrap.peer], cls="ffn", hidden=64)
        with LongTrainer(swarm, bootstrap.peer, *extra) as trainer:
            until(trainer.trains, 60, "an epoch has passed")
            node.send(signal.SIGSTOP)
            trainer.interrupt(number)


def case_while_its_node_hangs():
    while_its_node_hangs(signal.SIGTERM)


def case_while_its_node_hangs_in_a_pass_through_the_mixture():
    while_its_node_hangs(signal.SIGINT, "--moe")


def train_with(precision):
    """(losses, test accuracies in percent) of ten epochs; all but the precision is the same."""
    with Swarm() as swarm:
        bootstrap = swarm.bootstrap()
        swarm.node("node", UIDS, [bootstrap.peer], "--precision", precision, "--seed", "1",
                   cls="ffn", hidden=64)
        with LongTrainer(swarm, bootstrap.peer, "--epochs", "10", "--target", "0") as trainer:
            assert trainer.popen.wait(120 * PATIENCE) == 0, trainer.output()
            with open(trainer.progress_path) as file:
                epochs = [json.loads(line) for line in file]
    assert len(epochs) == 10, epochs
    return [e["loss"] for e in epochs], [e["accuracy"] for e in epochs]


def case_bfloat16_learns_as_well():
    """A single epoch may dip by some points in either precision, hence medians."""
    losses, exact = train_with("float32")
    rounded_losses, rounded = train_with("bfloat16")
    assert losses != rounded_losses, "both were computed in the same precision"
    a, b = statistics.median(exact[5:]), statistics.median(rounded[5:])
    assert min(a, b) >= 97 and abs(a - b) <= 1.5, (exact, rounded)


main(globals())
