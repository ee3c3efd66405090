#!/usr/bin/python3
"""Trains a classifier of handwritten digits through a swarm, in PyTorch.

    skep node --listen '127.0.0.1:*' --dht-listen 127.0.0.1:4222 \\
        --expert-pattern 'digits.[0:4].[0:4]' --num-experts 16 --hidden-dim 64 --learning-rate 3e-4
    python3 examples/python/digits.py --initial-peers 127.0.0.1:4222

For each digit a gating network chooses the four best of a 4x4 grid of remote experts. Gating and
classifier are trained here; the experts train at their nodes, by the gradients that autograd sends
back. Nodes may come and go meanwhile. Exit codes: 0 the accuracy was reached, 1 it was not.
"""

import argparse
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import skep

HERE = Path(__file__).resolve().parent
DATA = next((p for p in (HERE.parent / "digits" / "digits.safetensors",  # installed
                         HERE.parent.parent / "tests" / "golden" / "digits.safetensors")
             if p.exists()), "digits.safetensors")
TIMEOUT_S = 2.0  # of a pass: stragglers and dead nodes cost no more
RETRIES = 5  # of a batch for which nothing answered


def load(path):
    """The tensors of a safetensors file: here all of them are bytes."""
    raw = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: torch.from_numpy(np.frombuffer(
        raw, np.uint8, spec["data_offsets"][1] - spec["data_offsets"][0],
        8 + size + spec["data_offsets"][0]).reshape(spec["shape"]).copy())
        for name, spec in header.items()}


class Classifier(nn.Module):
    """A mixture of remote experts between the pixels and a linear layer."""

    def __init__(self, dht, prefix, grid):
        super().__init__()
        self.mixture = skep.RemoteMixtureOfExperts(
            in_features=64, grid_size=grid, dht=dht, uid_prefix=prefix, k_best=4, k_min=1,
            forward_timeout=TIMEOUT_S, backward_timeout=TIMEOUT_S,
            timeout_after_k_min=TIMEOUT_S / 4, allow_zero_outputs=True)
        self.norm = nn.LayerNorm(64)
        self.output = nn.Linear(64, 10)

    def forward(self, x):
        return self.output(self.norm(self.mixture(x)))


def train_batch(model, optimizer, x, labels):
    """One step; a batch for which no expert answers is tried again. Returns the loss."""
    for attempt in range(RETRIES + 1):
        try:
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()
        except (skep.Unavailable, skep.DeadlineExceeded, skep.NotFound):
            if attempt == RETRIES:
                raise
            time.sleep(0.1)


def accuracy(model, images, labels):
    """Percent of the test digits that are recognized."""
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum())
                    for x, y in zip(images.split(128), labels.split(128)))
    return 100.0 * right / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--initial-peers", required=True, help="host:port,... of the swarm")
    parser.add_argument("--swarm", default="skep")
    parser.add_argument("--uid-prefix", default="digits.")
    parser.add_argument("--grid", default="4,4", help="sizes of the grid (default: 4,4)")
    parser.add_argument("--data", default=DATA, help="digits.safetensors")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--target", type=float, default=96.0, help="test accuracy in percent")
    parser.add_argument("--progress", help="file for one JSON line after each epoch")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    data = load(arguments.data)
    x, y = data["train.images"].float() / 16, data["train.labels"].long()
    test_x, test_y = data["test.images"].float() / 16, data["test.labels"].long()
    longest = 0.0
    with skep.DHT(arguments.initial_peers.split(","), swarm=arguments.swarm,
                  client_mode=True) as dht:
        model = Classifier(dht, arguments.uid_prefix,
                           tuple(int(n) for n in arguments.grid.split(",")))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for epoch in range(1, arguments.epochs + 1):
            started, losses = time.monotonic(), []
            for rows in torch.randperm(len(x)).split(64):
                begun = time.monotonic()
                losses.append(train_batch(model, optimizer, x[rows], y[rows]))
                longest = max(longest, time.monotonic() - begun)
            seconds = time.monotonic() - started
            percent = accuracy(model, test_x, test_y)
            print("epoch %2d: loss %.3f, test accuracy %.2f%%, %.0f samples/s"
                  % (epoch, sum(losses) / len(losses), percent, len(x) / seconds), flush=True)
            if arguments.progress:
                with open(arguments.progress, "a") as f:
                    f.write(json.dumps(
                        {"epoch": epoch, "accuracy": round(percent, 2),
                         "longest_pause_ms": round(longest * 1000),
                         "timeout_ms": round(TIMEOUT_S * 1000)}, separators=(",", ":")) + "\n")
    if percent < arguments.target:
        print("digits: %.2f%%, expected at least %g%%" % (percent, arguments.target),
              file=sys.stderr)
    return 0 if percent >= arguments.target else 1


if __name__ == "__main__":
    sys.exit(main())
