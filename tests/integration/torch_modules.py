"""What PyTorch makes of exported weights, and weights that PyTorch made.

    torch_modules.py check CLASS HIDDEN FILE CHECKPOINT INPUT OUTPUT   loads FILE, exported
                                                            weights, and CHECKPOINT, as a node keeps
                                                            them, with load_state_dict and compares
                                                            forward of INPUT with OUTPUT
    torch_modules.py make CLASS HIDDEN DTYPE FILE INPUT OUTPUT   writes a state_dict as FILE, and
                                                            an input with its output

Exit code 77: PyTorch is not installed. Files are safetensors, read and written here, as Debian has
no package for them. INPUT and OUTPUT hold one tensor, "input.0" and "output.0".
"""

import json
import struct
import sys

try:
    import torch
except ImportError:
    sys.exit(77)
from torch import nn

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_file(path):
    with open(path, "rb") as file:
        raw = file.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        data = bytearray(raw[8 + size + begin:8 + size + end])
        out[name] = torch.frombuffer(data, dtype=DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def save_file(tensors, path):
    header, data = {}, b""
    for name, t in tensors.items():
        t = t.detach().contiguous()
        raw = t.view(torch.int16 if t.element_size() == 2 else torch.int32).numpy().tobytes()
        dtype = next(n for n, d in DTYPES.items() if d == t.dtype)
        header[name] = {"dtype": dtype, "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class FeedForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.LayerNorm(4 * hidden), nn.ReLU(),
            nn.Linear(4 * hidden, 4 * hidden), nn.LayerNorm(4 * hidden), nn.ReLU(),
            nn.Linear(4 * hidden, hidden))

    def forward(self, x):
        return x + self.layers(x)


class SwiGlu(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, 3 * hidden, bias=False)
        self.up_proj = nn.Linear(hidden, 3 * hidden, bias=False)
        self.down_proj = nn.Linear(3 * hidden, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Encoder(nn.TransformerEncoderLayer):
    """PyTorch's own layer; the residual around attention starts from the input, as it does there."""

    def __init__(self, hidden):
        super().__init__(hidden, 16 if hidden % 16 == 0 else 4, 4 * hidden, dropout=0.0,
                         activation="gelu", batch_first=True)


MODULES = {"ffn": FeedForward, "swiglu": SwiGlu, "transformer": Encoder}


def compare(a, b):
    error = (a - b).abs().max().item()
    limit = 1e-5 * (1 + b.abs().max().item())
    if not error <= limit:
        sys.exit("the outputs differ by %g, expected at most %g" % (error, limit))


def without_optimizer(path):
    """As docs/operations.md, "Checkpoints and weights", has it."""
    state = {k: v for k, v in load_file(path).items() if not k.startswith("optimizer.")}
    if len(state) == len(load_file(path)):
        sys.exit("%s: no optimizer's arrays beside the parameters" % path)
    return state


def check(cls, hidden, path, checkpoint, input_path, output_path):
    for state in (load_file(path), without_optimizer(checkpoint)):
        module = MODULES[cls](int(hidden))
        module.load_state_dict(state)  # strict: no name may be missing or left over
        with torch.no_grad():
            y = module(load_file(input_path)["input.0"])
        compare(load_file(output_path)["output.0"], y)


def make(cls, hidden, dtype, path, input_path, output_path):
    torch.manual_seed(3)
    hidden = int(hidden)
    module = MODULES[cls](hidden)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.to(DTYPES[dtype]).float())
    save_file({k: v.to(DTYPES[dtype]) for k, v in module.state_dict().items()}, path)
    x = torch.randn(*((3, 7, hidden) if cls == "transformer" else (5, hidden)))
    module.train()  # PyTorch's fast path for evaluation rounds otherwise
    with torch.no_grad():
        y = module(x)
    save_file({"input.0": x}, input_path)
    save_file({"output.0": y}, output_path)


if __name__ == "__main__":
    {"check": check, "make": make}[sys.argv[1]](*sys.argv[2:])
