"""A running examples/digits, for the tests that watch it or interrupt it."""

import os
import subprocess

from swarm import GOLDEN, SETTINGS, SWARM

DIGITS = SETTINGS["SKEP_DIGITS"]


class Trainer:
    """Writes a line for each epoch to `progress_path`, and what it says to the trainer's log."""

    def __init__(self, swarm, peer, pattern, timeout_s, *arguments):
        self.progress_path = swarm.path("progress.json")
        self.output_path = swarm.path("trainer.log")
        with open(self.output_path, "wb") as output:
            self.popen = subprocess.Popen(
                [DIGITS, "--initial-peers", peer, "--swarm", SWARM,
                 "--expert-pattern", pattern,
                 "--data", os.path.join(GOLDEN, "digits.safetensors"), "--timeout", str(timeout_s),
                 "--progress", self.progress_path, *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        if kind is not None:
            print("---- trainer\n" + self.output()[-4000:])

    def output(self):
        with open(self.output_path, errors="replace") as file:
            return file.read()
