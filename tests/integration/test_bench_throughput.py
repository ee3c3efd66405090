"""skep bench throughput: every preset of hivemind's benchmark, scaled down to a moment's work."""

import json
import re

from swarm import PATIENCE, main, refused, run

# (name, class, experts, clients, batches, rows, backward) as hivemind's benchmark_throughput.py has
# them.
PRESETS = [
    ("default", "ffn", 16, 128, 16, 2048, True),
    ("ffn_forward_backward", "ffn", 16, 128, 16, 2048, True),
    ("ffn_forward", "ffn", 16, 128, 16, 2048, False),
    ("ffn_small_batch", "ffn", 4, 128, 16, 32, False),
    ("ffn_small_batch_512clients", "ffn", 1, 512, 16, 1, True),
    ("ffn_small_batch_512clients_32handlers", "ffn", 1, 512, 16, 1, True),
    ("ffn_massive", "ffn", 16, 512, 16, 512, False),
    ("minimalistic", "ffn", 1, 1, 16, 2048, True),
    ("nop", "nop", 16, 128, 16, 2048, False),
]
SCALES = ["num-experts", "num-clients", "num-batches-per-client", "batch-size"]


def bench(*arguments):
    out, _ = run("bench", "throughput", "--hidden-dim", "16", "--json", *arguments, seconds=300)
    rows = json.loads(out)
    assert all(row["bench"] == "throughput" and row["runs"] == 1 for row in rows), out
    return rows


def check_figures(rows):
    values = {row["case"]: row["value"] for row in rows}
    assert rows[0]["unit"] == "samples/s" and rows[0]["value"] > 0, rows
    assert rows[0]["baseline"] > 0 and rows[0]["ratio"] > 0, rows
    assert values["node, start to ready"] > 0, rows
    assert values["node after the load, resident"] > 1, rows
    shares = [value for case, value in values.items() if case.startswith("of a call's time: ")]
    assert len(shares) == 3 and abs(sum(shares) - 100) < 0.1, rows
    assert all(share > -0.1 for share in shares), rows


def described(rows):
    """(class, experts, clients, batches, rows, backward) as the first row tells them."""
    m = re.match(r"(\w+) (forward\+backward|forward), (\d+) experts?, (\d+) x (\d+) x (\d+) rows",
                 rows[0]["case"])
    assert m, rows
    return (m[1], *map(int, m.group(3, 4, 5, 6)), m[2] != "forward")


def case_every_preset_runs_scaled_down():
    for name, cls, experts, clients, batches, rows, backward in PRESETS:
        small = (min(experts, 3), min(clients, 5), 2, min(rows, 8))
        scale = [text for option, n in zip(SCALES, small) for text in ("--" + option, str(n))]
        found = bench("--preset", name, *scale)
        check_figures(found)
        assert described(found) == (cls, *small, backward), (name, found[0])


def case_what_is_not_scaled_is_as_the_preset_says():
    """One option at a time is small, so that the others show."""
    for name, cls, experts, clients, batches, rows, backward in PRESETS:
        if rows * clients * batches > 1 << 20:
            rows = 4
            found = bench("--preset", name, "--batch-size", "4")
        else:
            found = bench("--preset", name)
        check_figures(found)
        assert described(found) == (cls, experts, clients, batches, rows, backward), (name, found)


def case_connections_are_as_many_as_replies_need():
    """A node keeps 64 MiB of replies at most for one connection."""
    few = ("--preset", "nop", "--num-batches-per-client", "1", "--num-experts", "1")
    assert "rows, 3 connections;" in bench(*few, "--num-clients", "3", "--batch-size",
                                           "4")[0]["case"]
    assert "rows, 8 connections;" in bench(*few, "--num-clients", "9", "--batch-size",
                                           "4")[0]["case"]
    assert "rows, 2 connections;" in bench(*few, "--num-clients", "9", "--batch-size", "4",
                                           "--num-connections", "2")[0]["case"]
    if PATIENCE > 1:
        return "ok, without the large ones: a sanitizer needs memory of its own"
    large = bench(*few, "--num-clients", "72", "--hidden-dim", "1024")
    assert "rows, 9 connections;" in large[0]["case"], large


def case_a_full_queue_is_waited_for():
    """One expert's queue holds sixteen batches: more clients than that try again."""
    found = bench("--preset", "ffn_forward", "--num-experts", "1", "--num-clients", "200",
                  "--batch-size", "8", "--num-batches-per-client", "3", "--hidden-dim", "256")
    check_figures(found)
    assert described(found)[1:4] == (1, 200, 3), found


def case_bad_options_are_refused():
    refused(2, ["preset", "ffn_small_batch_512clients_32handlers", "massive"], "bench",
            "throughput", "--preset", "massive")
    refused(2, ["num-clients", "0"], "bench", "throughput", "--num-clients", "0")


main(globals())
