#!/usr/bin/python3
"""A PyTorch module of one's own as an expert: one process hosts it, another trains it.

    python3 examples/python/own_expert.py          starts both, and shows the loss fall
    python3 examples/python/own_expert.py serve    only hosts; prints how to train
    python3 examples/python/own_expert.py train HOST:PORT
"""

import subprocess
import sys

import torch
from torch import nn

import skep

SWARM, UID, WIDTH = "own-expert", "gated.0", 32


class GatedBlock(nn.Module):
    """Any module will do: its inputs and outputs have the batch as dimension 0."""

    def __init__(self, width):
        super().__init__()
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.value(x) * torch.sigmoid(self.gate(x))


def serve():
    """Hosts the module until standard input ends."""
    torch.manual_seed(0)
    module = GatedBlock(WIDTH)
    backend = skep.ModuleBackend(UID, module,
                                 args_schema=(skep.BatchTensorDescriptor(WIDTH),),
                                 optimizer=torch.optim.Adam(module.parameters(), lr=1e-2))
    with skep.DHT(swarm=SWARM, listen="127.0.0.1:*", dht_listen="127.0.0.1:*") as dht:
        with skep.Server(dht, {UID: backend}, start=True) as server:
            print(server.peer_info.addrs[0], flush=True)
            sys.stdin.read()


def train(peer):
    """Teaches the remote module to turn vectors around, and prints the loss."""
    torch.manual_seed(1)
    with skep.DHT([peer], swarm=SWARM, client_mode=True) as dht:
        expert, = skep.get_experts(dht, [UID])
        if expert is None:
            sys.exit("own_expert: nobody serves %s" % UID)
        first = last = None
        for step in range(200):
            x = torch.randn(64, WIDTH)
            loss = (expert(x) - x.flip(1)).pow(2).mean()
            loss.backward()  # the node takes a step of its Adam
            first, last = first if first is not None else loss.item(), loss.item()
            if step % 50 == 0 or step == 199:
                print("step %3d: loss %.4f" % (step, loss.item()), flush=True)
        print("%d updates at the node %s" % (expert.expert.fetch_info().updates,
                                             expert.peer_id[:12]))
        return 0 if last < first / 2 else 1


def both():
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        return train(server.stdout.readline().strip())
    finally:
        server.communicate()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    elif len(sys.argv) == 3 and sys.argv[1] == "train":
        sys.exit(train(sys.argv[2]))
    elif len(sys.argv) == 1:
        sys.exit(both())
    else:
        sys.exit(__doc__)
