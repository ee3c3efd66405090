"""plugins/torchscript: what torch.jit.save() wrote, served and trained by a node in C."""

import os
import subprocess

import pytest

import torch
from torch import nn

import skep
from conftest import SKEP, new_swarm_name

PLUGIN = os.environ.get("TORCHSCRIPT_PLUGIN", "")
WIDTH = 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return x + self.scale * torch.tanh(self.linear(x))


def save(module, path, **extra):
    torch.jit.save(torch.jit.script(module), str(path), _extra_files=extra)
    return str(path)


def serve(nodes, path, *options):
    name = new_swarm_name()
    node = nodes(name, "--plugin", PLUGIN, "--expert-cls", "torchscript:" + path,
                 "--expert-uids", "ts.0", "--hidden-dim", str(WIDTH), *options)
    client = skep.Client(node.address, swarm=name, timeout=30)
    client.wait_joined(20)
    return node, client


OPTIMIZERS = {
    "adam": (["--weight-decay", "0.1"],
             lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
    "adamw": ([], lambda p: torch.optim.AdamW(p, lr=0.01)),
    "sgd": (["--momentum", "0.9"], lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_pytorch_does(nodes, tmp_path, name):
    torch.manual_seed(3)
    local = Block()
    path = save(local, tmp_path / "model.pt")
    options, make = OPTIMIZERS[name]
    optimizer = make(local.parameters())
    _, client = serve(nodes, path, "--optimizer", name, "--learning-rate", "0.01",
                      "--clip-grad-norm", "0.5", *options)
    with client:
        expert = client.find("ts.0")
        info = expert.fetch_info()
        assert info.cls == "torchscript" and info.parameters == WIDTH * WIDTH + WIDTH
        assert [(s.name, s.shape) for s in info.inputs] == [("x", (-1, WIDTH))]
        for _ in range(4):
            x = torch.randn(5, WIDTH, requires_grad=True)
            y = local(x)
            assert torch.allclose(expert.forward(x.detach())[0], y, atol=1e-5)
            up = torch.randn(5, WIDTH)
            y.backward(up)
            assert torch.allclose(expert.backward([x.detach()], [up])[0], x.grad, atol=1e-5)
            nn.utils.clip_grad_norm_(local.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        assert expert.fetch_info().updates == 4


def test_schedules_are_those_of_the_options(nodes, tmp_path):
    local = Block()
    path = save(local, tmp_path / "model.pt")
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / 2 if step < 2 else max(0.0, (5 - step) / 3))
    _, client = serve(nodes, path, "--optimizer", "sgd", "--learning-rate", "0.1", "--schedule",
                      "linear-with-warmup", "--num-warmup-steps", "2", "--num-training-steps", "5")
    with client:
        expert = client.find("ts.0")
        for _ in range(6):
            x, up = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
            expert.backward([x], [up])
            local(x).backward(up)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            assert torch.allclose(expert.forward(x)[0], local(x), atol=1e-5)


def test_described_inputs_and_tuples(nodes, tmp_path):
    class Two(nn.Module):
        def forward(self, x, index):
            return x * index.unsqueeze(1), x.sum(1, keepdim=True)

    path = save(Two(), tmp_path / "two.pt", **{"skep.inputs": "F32[-1,-1],I64[-1]"})
    _, client = serve(nodes, path)
    with client:
        expert = client.find("ts.0")
        x, index = torch.randn(3, 4), torch.tensor([1, 2, 3])
        scaled, total = expert.forward(x, index)
        assert torch.allclose(scaled, x * index.unsqueeze(1))
        assert torch.allclose(total, x.sum(1, keepdim=True))
        back = expert.backward([x, index], [torch.ones(3, 4), torch.ones(3, 1)])
        assert torch.allclose(back[0], index.unsqueeze(1) + torch.ones(3, 4))


def test_a_checkpoint_continues(nodes, tmp_path):
    """Two nodes one after the other train as one optimizer does: Adam's state is saved, too."""
    local = Block()
    path = save(local, tmp_path / "model.pt")
    optimizer = torch.optim.Adam(local.parameters(), lr=0.01)
    for run in range(2):
        node, client = serve(nodes, path, "--checkpoint-dir", str(tmp_path / "checkpoints"),
                             "--learning-rate", "0.01")
        with client:
            expert = client.find("ts.0")
            assert expert.fetch_info().updates == 3 * run
            for _ in range(3):
                x, up = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
                expert.backward([x], [up])
                local(x).backward(up)
                optimizer.step()
                optimizer.zero_grad()
            assert torch.allclose(expert.forward(x)[0], local(x), atol=1e-5)
        node.stop()


def test_exceptions_and_gradients_that_are_not_finite(nodes, tmp_path):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            assert bool(x[0, 0] < 100), "the first number is over 100"
            return self.linear(x)

    _, client = serve(nodes, save(Picky(), tmp_path / "picky.pt"))
    with client:
        expert = client.find("ts.0")
        with pytest.raises(skep.Internal, match="the first number is over 100"):
            expert.forward(torch.full((1, WIDTH), 101.0))
        with pytest.raises(skep.InvalidArgument, match="not finite"):
            expert.backward([torch.full((2, WIDTH), 50.0)],
                            [torch.full((2, WIDTH), 3e38)])
        assert expert.fetch_info().updates == 0
        assert expert.forward(torch.zeros(1, WIDTH))[0].shape == (1, WIDTH)


@pytest.mark.parametrize("what, message", [
    ("torchscript", "expected torchscript:model.pt"),
    ("torchscript:nosuch.pt", "nosuch.pt"),
    ("torchscript:bad.pt", "plugin class torchscript: create"),
    ("torchscript:specs.pt", "unknown type"),
    ("torchscript:count.pt", "describes 2"),
    ("torchscript:size.pt", "size \"wide\""),
])
def test_files_that_are_refused(tmp_path, what, message):
    (tmp_path / "bad.pt").write_bytes(b"not a model")
    save(Block(), tmp_path / "specs.pt", **{"skep.inputs": "F33[-1,8]"})
    save(Block(), tmp_path / "size.pt", **{"skep.inputs": "F32[-1,wide]"})
    save(Block(), tmp_path / "count.pt", **{"skep.inputs": "F32[-1,8],F32[-1,8]"})
    out = subprocess.run([SKEP, "node", "--no-dht", "--no-tracker", "--listen", "127.0.0.1:*",
                          "--plugin", PLUGIN, "--expert-cls", what, "--expert-uids", "ts.0",
                          "--hidden-dim", str(WIDTH)], capture_output=True, text=True, timeout=60,
                         cwd=tmp_path)
    assert out.returncode != 0 and message in out.stderr, out.stderr
