"""Modules of PyTorch that this process hosts, called and trained by others."""

import os
import subprocess
import sys
import threading
import time

import pytest

import torch
from torch import nn

import skep
from conftest import ROOT, new_swarm_name
from skep import _host

WIDTH = 16


class Block(nn.Module):
    """An own class, with a buffer, so that its state is more than parameters."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x + self.norm(torch.relu(self.linear(x)))


def backend(name, module=None, lr=1e-2, **options):
    module = module if module is not None else Block()
    options.setdefault("args_schema", (skep.BatchTensorDescriptor(WIDTH),))
    return skep.ModuleBackend(name, module,
                              optimizer=torch.optim.Adam(module.parameters(), lr=lr), **options)


@pytest.fixture
def dht():
    with skep.DHT(swarm=new_swarm_name(), listen="127.0.0.1:*", dht_listen="127.0.0.1:*") as peer:
        yield peer


def remote(dht, uid):
    expert, = skep.get_experts(dht, [uid])
    assert expert is not None, "%s is not found" % uid
    return expert


def until(what, seconds=30):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_training_it_remotely_is_training_it_here(dht):
    torch.manual_seed(1)
    hosted, local = Block(), Block()
    local.load_state_dict(hosted.state_dict())
    schedule = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.1)
    b = backend("own.0", hosted)
    b.scheduler = schedule(b.optimizer)
    own = torch.optim.Adam(local.parameters(), lr=1e-2)
    own_schedule = schedule(own)
    with skep.Server(dht, {"own.0": b}, start=True) as server:
        assert server.experts == ["own.0"] and server.is_alive()
        expert = remote(dht, "own.0")
        assert expert.info.cls == "Block" and expert.info.parameters == b.parameter_count()
        for _ in range(5):
            x = torch.randn(8, WIDTH)
            a, c = x.clone().requires_grad_(), x.clone().requires_grad_()
            there, here = expert(a), local(c)
            assert torch.equal(there, here)
            there.pow(2).sum().backward()
            here.pow(2).sum().backward()
            assert torch.allclose(a.grad, c.grad, atol=1e-6)
            own.step()
            own.zero_grad()
            own_schedule.step()
        assert torch.allclose(hosted.linear.weight, local.linear.weight, atol=1e-6)
        assert b.optimizer.param_groups[0]["lr"] == own.param_groups[0]["lr"]
        assert dht.client.find("own.0").fetch_info().updates == 5
    assert not server.is_alive()


def test_several_inputs_and_outputs_by_name(dht):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x, *, index):
            return x * self.scale * index.unsqueeze(1), x.sum(1, keepdim=True)

    module = Two()
    b = skep.ModuleBackend(
        "own.0", module, args_schema=(skep.BatchTensorDescriptor(None),),
        kwargs_schema={"index": skep.BatchTensorDescriptor(dtype=torch.int64)},
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    assert [d.shape for d in b.outputs] == [(None, None), (None, 1)]
    with skep.Server(dht, {"own.0": b}, start=True):
        expert = remote(dht, "own.0")
        x = torch.randn(3, 4, requires_grad=True)
        index = torch.tensor([1, 2, 3])
        scaled, total = expert(x, index=index)
        assert torch.allclose(scaled, x * index.unsqueeze(1))
        assert torch.allclose(total, x.sum(1, keepdim=True))
        (scaled.sum() + 2 * total.sum()).backward()
        assert torch.allclose(x.grad, index.unsqueeze(1) + 2.0 * torch.ones(3, 4))
        with pytest.raises(TypeError, match="index is missing"):
            expert(x=x)
        with pytest.raises(skep.InvalidArgument, match="expected 2"):
            expert(x)


def test_a_failing_module_says_so_and_serves_on(dht):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            if float(x[0, 0]) > 100:
                raise RuntimeError("the first number is over 100")
            return self.linear(x)

    with skep.Server(dht, {"own.0": backend("own.0", Picky())}, start=True):
        expert = remote(dht, "own.0")
        with pytest.raises(skep.Internal, match="RuntimeError: the first number is over 100"):
            expert(torch.full((2, WIDTH), 101.0))
        assert expert(torch.zeros(2, WIDTH)).shape == (2, WIDTH)
        with pytest.raises(skep.InvalidArgument, match="expected"):
            expert(torch.zeros(2, WIDTH + 1))


def test_gradients_that_are_not_finite_take_no_step(dht):
    b = backend("own.0")
    before = b.module.linear.weight.detach().clone()
    with skep.Server(dht, {"own.0": b}, start=True):
        expert = dht.client.find("own.0")
        x = torch.randn(2, WIDTH)
        with pytest.raises(skep.InvalidArgument, match="finite"):
            expert.backward([x], [torch.full((2, WIDTH), 3e38)])
        assert torch.equal(b.module.linear.weight, before)
        assert expert.fetch_info().updates == 0
        expert.backward([x], [torch.randn(2, WIDTH)])
        assert not torch.equal(b.module.linear.weight, before)


def test_clipping(dht):
    module = nn.Linear(WIDTH, WIDTH)
    local = nn.Linear(WIDTH, WIDTH)
    local.load_state_dict(module.state_dict())
    b = skep.ModuleBackend("own.0", module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
                           args_schema=(skep.BatchTensorDescriptor(WIDTH),), clip_grad_norm=0.5)
    x = torch.randn(4, WIDTH)
    with skep.Server(dht, {"own.0": b}, start=True):
        remote(dht, "own.0")(x).sum().backward()
        local(x).sum().backward()
        nn.utils.clip_grad_norm_(local.parameters(), 0.5)
        torch.optim.SGD(local.parameters(), lr=1.0).step()
        assert torch.allclose(module.weight, local.weight, atol=1e-6)


def test_a_checkpoint_continues_the_training(tmp_path):
    """What a server saved is loaded by the next: parameters, buffers, Adam and schedule."""
    torch.manual_seed(2)
    x, states = torch.randn(4, WIDTH), []
    for _ in range(2):
        with skep.DHT(swarm=new_swarm_name(), listen="127.0.0.1:*",
                      dht_listen="127.0.0.1:*") as dht:
            b = backend("own.0")
            b.scheduler = torch.optim.lr_scheduler.ExponentialLR(b.optimizer, 0.5)
            with skep.Server(dht, {"own.0": b}, start=True, checkpoint_dir=tmp_path):
                if states:
                    assert all(torch.equal(v, states[0][k]) for k, v in b.named_state().items())
                expert = remote(dht, "own.0")
                for _ in range(3):
                    expert(x).sum().backward()
                assert expert.expert.fetch_info().updates == 3 * (len(states) + 1)
            states.append(b.named_state())
    assert states[1]["optimizer.step.linear.weight"] == 6
    assert states[1]["optimizer.scheduler.last_epoch"] == 6
    folder = tmp_path / "own.0"
    newest = sorted(folder.glob("*.safetensors"), key=os.path.getmtime)[-1]
    program = os.environ.get("SKEP_TEST_PROGRAM")
    if program:  # other tools read it, too
        out = subprocess.run([program, "export", "own.0", "--checkpoint-dir", str(tmp_path),
                              "--output", str(tmp_path / "out.safetensors")],
                             capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
    assert newest.stat().st_size > WIDTH * WIDTH * 4


def test_a_checkpoint_of_another_module_is_refused(tmp_path):
    for width, refused in ((WIDTH, False), (2 * WIDTH, True)):
        with skep.DHT(swarm=new_swarm_name(), listen="127.0.0.1:*",
                      dht_listen="127.0.0.1:*") as dht:
            b = backend("own.0", Block(width), args_schema=(skep.BatchTensorDescriptor(width),))
            if not refused:
                skep.Server(dht, {"own.0": b}, start=True, checkpoint_dir=tmp_path).shutdown()
                continue
            with pytest.raises(skep.Error, match="own.0"):
                skep.Server(dht, {"own.0": b}, start=True, checkpoint_dir=tmp_path)


def test_adding_and_removing_while_it_runs(dht):
    with skep.Server(dht, {"own.0": backend("own.0")}, start=True) as server:
        remote(dht, "own.0")
        server.add_expert("own.1", backend("own.1"))
        until(lambda: skep.get_experts(dht, ["own.1"])[0] is not None)
        expert = remote(dht, "own.1")
        assert expert(torch.zeros(1, WIDTH)).shape == (1, WIDTH)
        with pytest.raises(skep.InvalidArgument, match="added twice"):
            server.add_expert("own.1", backend("own.1"))
        server.remove_expert("own.1")
        assert server.experts == ["own.0"] and list(server.module_backends) == ["own.0"]
        with pytest.raises(skep.Error):
            expert(torch.zeros(1, WIDTH))
        with pytest.raises(skep.NotFound):
            server.remove_expert("own.1")
        with pytest.raises(ValueError, match="not an expert UID"):
            server.add_expert("own", backend("own"))


def test_many_callers_share_batches(dht):
    class Counting(Block):
        rows = []

        def forward(self, x):
            Counting.rows.append(len(x))
            return super().forward(x)

    Counting.rows = []
    b = backend("own.0", Counting())
    b.optimizer = None
    with skep.Server(dht, {"own.0": b}, start=True):
        expert = dht.client.find("own.0")
        del Counting.rows[:]
        failures = []

        def call(seed):
            x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(seed))
            for _ in range(20):
                if not torch.allclose(expert.forward(x)[0], b.forward(x)[0], atol=1e-6):
                    failures.append(seed)

        threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures and sum(Counting.rows) == 2 * 8 * 20 * 2


def test_shutdown_with_calls_under_way(dht):
    class Slow(Block):
        begun = False

        def forward(self, x):
            self.begun = True
            time.sleep(0.5)
            return super().forward(x)

    b = skep.ModuleBackend("own.0", Slow(), args_schema=(skep.BatchTensorDescriptor(WIDTH),),
                           outputs_schema=skep.BatchTensorDescriptor(WIDTH))
    server = skep.Server(dht, {"own.0": b}, start=True)
    expert = dht.client.find("own.0")
    results = []
    thread = threading.Thread(target=lambda: results.append(expert.forward(torch.ones(1, WIDTH))))
    thread.start()
    until(lambda: b.module.begun)
    server.shutdown()
    thread.join(30)
    assert not thread.is_alive() and results and results[0][0].shape == (1, WIDTH)


def test_bfloat16_and_integers_travel(dht):
    class Mixed(nn.Module):
        def forward(self, x, mask):
            return x * mask.to(x.dtype), mask.logical_not()

    b = skep.ModuleBackend("own.0", Mixed(), args_schema=(
        skep.BatchTensorDescriptor(4, dtype=torch.bfloat16),
        skep.BatchTensorDescriptor(4, dtype=torch.bool)))
    with skep.Server(dht, {"own.0": b}, start=True):
        x = torch.arange(8, dtype=torch.bfloat16).view(2, 4)
        mask = x > 3
        y, inverse = remote(dht, "own.0")(x, mask)
        assert torch.equal(y, x * mask) and torch.equal(inverse, ~mask)


if "_registered" not in skep.name_to_block:
    @skep.register_expert_class("_registered", lambda batch, width: torch.zeros(batch, width))
    class Registered(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.linear = nn.Linear(width, width)

        def forward(self, x):
            return self.linear(x)


def test_registered_classes_by_name():
    swarm = new_swarm_name()
    where = dict(swarm=swarm, listen="127.0.0.1:*", hidden_dim=WIDTH)
    with skep.background_server(expert_cls="_registered", expert_uids=["own.0", "own.1"],
                                optim_cls=lambda p: torch.optim.SGD(p, lr=0.5), **where) as info:
        with skep.DHT(info.addrs, swarm=swarm) as dht:
            a, b = skep.get_experts(dht, ["own.0", "own.1"])
            assert a.peer_id == info.peer_id and a.info.cls == "_registered"
            x = torch.randn(2, WIDTH)
            first = a(x)
            assert not torch.equal(first, b(x))  # each has weights of its own
            first.sum().backward()
            assert not torch.equal(a(x), first)
            assert a.expert.fetch_info().updates == 1
    assert not _host._holders and not _host._recipes


def test_built_in_classes_by_name_and_patterns():
    swarm = new_swarm_name()
    with skep.background_server(expert_cls="ffn", num_experts=3, expert_pattern="ffn.[0:4].[0:4]",
                                hidden_dim=WIDTH, swarm=swarm, listen="127.0.0.1:*") as info:
        with skep.DHT(info.addrs, swarm=swarm) as dht:
            until(lambda: len(dht.client.find_prefix("ffn.")) == 3)


@pytest.mark.parametrize("arguments, message", [
    (dict(expert_uids=["a.0"], expert_pattern="a.[0:2]"), "either expert_uids, or"),
    (dict(expert_pattern="a.[0:2]"), "needs num_experts"),
    (dict(expert_uids=["a.0"], num_experts=2), "1 expert_uids"),
    (dict(expert_uids=["a.0"], scheduler="cosine"), "scheduler"),
    (dict(expert_uids=["a.0"], scheduler="linear"), "num_training_steps"),
])
def test_arguments_of_create(arguments, message):
    with pytest.raises(ValueError, match=message):
        skep.Server.create(listen="127.0.0.1:*", swarm=new_swarm_name(), **arguments)


def test_a_module_may_keep_what_it_is_called_with(dht):
    class Keeping(Block):
        def __init__(self):
            super().__init__()
            self.kept = []

        def forward(self, x):
            self.kept.append(x)
            return super().forward(x)

    b = backend("own.0", Keeping())
    with skep.Server(dht, {"own.0": b}, start=True):
        expert = dht.client.find("own.0")
        del b.module.kept[:]
        for i in range(20):
            expert.forward(torch.full((1000, WIDTH), float(i)))
        assert [float(x.max()) for x in b.module.kept] == [float(i) for i in range(20)]
        assert [float(x.min()) for x in b.module.kept] == [float(i) for i in range(20)]


def test_arguments_of_backends_and_options(dht):
    with pytest.raises(TypeError, match="expected a torch.nn.Module"):
        skep.ModuleBackend("own.0", 3, args_schema=(skep.BatchTensorDescriptor(WIDTH),))
    with pytest.raises(TypeError, match="expected a BatchTensorDescriptor"):
        skep.ModuleBackend("own.0", Block(), args_schema=(WIDTH,))
    with pytest.raises(TypeError, match="expected a ModuleBackend"):
        skep.Server(dht, {"own.0": Block()})
    with pytest.raises(TypeError, match="expected a skep.DHT"):
        skep.Server(None, {})
    with pytest.raises(ValueError, match="args_schema"):
        skep.ModuleBackend("own.0", Block())
    with pytest.raises(ValueError, match="forward pass of zeros failed"):
        skep.ModuleBackend("own.0", Block(), args_schema=(skep.BatchTensorDescriptor(3),))
    with pytest.raises(TypeError, match="unknown option 'lissten'"):
        skep.Server(dht, {}, lissten="127.0.0.1:*")
    with pytest.raises(ValueError, match="registered already"):
        skep.register_expert_class("_registered", lambda b, w: torch.zeros(b, w))(Block)
    with pytest.raises(skep.InvalidArgument, match="there already"):
        skep.register_expert_class("ffn", lambda b, w: torch.zeros(b, w))(Block)


def test_a_process_that_forgets_to_shut_down_ends():
    code = """
import torch, skep
dht = skep.DHT(swarm=%r, listen="127.0.0.1:*", dht_listen="127.0.0.1:*")
b = skep.ModuleBackend("own.0", torch.nn.Linear(4, 4),
                       args_schema=(skep.BatchTensorDescriptor(4),))
server = skep.Server(dht, {"own.0": b}, start=True)
print(server.experts[0])
""" % new_swarm_name()
    environment = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                         env=environment)
    assert out.returncode == 0 and out.stdout == "own.0\n", out.stderr


def test_the_example_of_an_own_expert_learns():
    environment = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"))
    out = subprocess.run([sys.executable, os.path.join(ROOT, "examples/python/own_expert.py")],
                         capture_output=True, text=True, timeout=120, env=environment)
    assert out.returncode == 0, out.stdout + out.stderr
    assert "200 updates" in out.stdout
