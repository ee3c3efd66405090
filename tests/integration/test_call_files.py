"""`skep call` with files: both formats in and out, and what does not fit the expert."""

import os
import struct

from swarm import (GOLDEN, Swarm, call, main, read_npy, read_safetensors, run, write_npy,
                   write_safetensors)

HIDDEN = 16


def floats(count):
    return [i / 8 - 1 for i in range(count)]


def packed(values):
    return struct.pack("<%df" % len(values), *values)


def nop_node(swarm, *arguments, **more):
    return swarm.node("node", ["ffn.0.0"], [], *arguments, hidden=HIDDEN, **more)


def case_both_formats_go_both_ways():
    with Swarm() as swarm:
        node = nop_node(swarm)
        values = floats(3 * HIDDEN)
        write_npy(swarm.path("x.npy"), (3, HIDDEN), values)
        write_safetensors(swarm.path("x.safetensors"), {"input.0": ((3, HIDDEN), values)})
        # A file with one tensor may call it what it likes.
        write_safetensors(swarm.path("named.safetensors"), {"anything": ((3, HIDDEN), values)})
        for source in ("x.npy", "x.safetensors", "named.safetensors"):
            npy, st = swarm.path("y.npy"), swarm.path("y.safetensors")
            answer = call("ffn.0.0", "--input", swarm.path(source), "--output", npy, node=node)
            assert answer["tensors"] == ["[3, 16] F32"] and answer["output"] == npy, answer
            assert read_npy(npy) == ("<f4", [3, HIDDEN], packed(values))
            call("ffn.0.0", "--input", swarm.path(source), "--output", st, node=node)
            assert read_safetensors(st) == {"output.0": ("F32", [3, HIDDEN], packed(values))}


def case_a_golden_file_is_an_input():
    path = os.path.join(GOLDEN, "experts", "nop_h16_b3.safetensors")
    if not os.path.exists(path):
        return "skipped: no golden data"
    with Swarm() as swarm:
        node = nop_node(swarm)
        golden = read_safetensors(path)
        y, g = swarm.path("y.safetensors"), swarm.path("g.safetensors")
        call("ffn.0.0", "--input", path, "--output", y, node=node)
        assert read_safetensors(y)["output.0"] == golden["output.0"]
        call("ffn.0.0", "--input", path, "--grad", path, "--output", g, node=node)
        assert read_safetensors(g)["grad_input.0"] == golden["grad_input.0"]
    return None


def refused_call(swarm, node, texts, *arguments):
    out = swarm.path("refused.safetensors")
    said = call("ffn.0.0", "--output", out, *arguments, node=node, code=1)
    for text in texts:
        assert text in said, "%r expected in: %s" % (text, said)
    assert not os.path.exists(out), "a refused call left an output behind"


def case_what_does_not_fit_the_expert_is_refused():
    with Swarm() as swarm:
        node = nop_node(swarm, "--max-batch-size", "8", cls="ffn")
        good, x = swarm.path("good.npy"), swarm.path("x.npy")
        write_npy(good, (2, HIDDEN), floats(2 * HIDDEN))
        two = swarm.path("two.safetensors")
        write_safetensors(two, {"input.0": ((2, HIDDEN), floats(2 * HIDDEN)),
                                "input.1": ((2, HIDDEN), floats(2 * HIDDEN)),
                                "grad_output.0": ((2, HIDDEN), floats(2 * HIDDEN)),
                                "grad_output.1": ((2, HIDDEN), floats(2 * HIDDEN))})

        def shape(*dims, letter="f"):
            count = 1
            for n in dims:
                count *= n
            write_npy(x, dims, [0] * count if letter == "q" else floats(count), letter)
            return "--input", x

        refused_call(swarm, node, ["2 tensors", "expected 1"], "--input", two)
        gap = swarm.path("gap.safetensors")
        for names, text in ((("input.0", "input.2"), "holds input.2 but no input.1"),
                            (("input.1",), "holds input.1 but no input.0")):
            write_safetensors(gap, {name: ((2, HIDDEN), floats(2 * HIDDEN)) for name in names})
            refused_call(swarm, node, [text], "--input", gap)
        refused_call(swarm, node, ["F64", "F32"], *shape(2, HIDDEN, letter="d"), "--no-cast")
        refused_call(swarm, node, ["I64", "F32"], *shape(2, HIDDEN, letter="q"))
        refused_call(swarm, node, ["15", "16"], *shape(2, HIDDEN - 1))
        refused_call(swarm, node, ["17", "16"], *shape(2, HIDDEN + 1))
        refused_call(swarm, node, ["[16] F32", "expected [any, 16] F32"], *shape(HIDDEN))
        refused_call(swarm, node, ["[2, 1, 16] F32", "expected [any, 16] F32"],
                     *shape(2, 1, HIDDEN))
        refused_call(swarm, node, ["0 rows"], *shape(0, HIDDEN))
        refused_call(swarm, node, ["9 rows", "8"], *shape(9, HIDDEN))
        call("ffn.0.0", *shape(8, HIDDEN), "--output", swarm.path("y.npy"), node=node)

        # Gradients: as the outputs they belong to.
        grad = swarm.path("grad.npy")
        write_npy(grad, (3, HIDDEN), floats(3 * HIDDEN))
        refused_call(swarm, node, ["3", "2"], "--input", good, "--grad", grad)
        write_npy(grad, (2, HIDDEN), floats(2 * HIDDEN), "d")
        refused_call(swarm, node, ["F64", "F32"], "--input", good, "--grad", grad, "--no-cast")
        refused_call(swarm, node, ["expected"], "--input", good, "--grad", two)
        write_npy(grad, (2, HIDDEN), [float("nan")] * (2 * HIDDEN))
        refused_call(swarm, node, ["finite"], "--input", good, "--grad", grad)
        assert call("ffn.0.0", node=node)["updates"] == 0, "a refused backward trained"

        # After all of it the expert still works.
        call("ffn.0.0", "--input", good, "--grad", good, "--output", swarm.path("y.npy"), node=node)
        assert call("ffn.0.0", node=node)["updates"] == 1


def case_what_numpy_makes_by_default_is_cast_with_a_note():
    with Swarm() as swarm:
        node = nop_node(swarm)
        x, y = swarm.path("x.npy"), swarm.path("y.npy")
        values = floats(2 * HIDDEN)
        expected = ("<f4", [2, HIDDEN], packed(values))
        for letter, name in (("d", "F64"), ("e", "F16")):
            write_npy(x, (2, HIDDEN), values, letter)
            answer = call("ffn.0.0", "--input", x, "--output", y, node=node)
            assert read_npy(y) == expected, name
            assert answer["notes"] == [
                "%s: input.0 is cast from %s to F32, which the expert takes" % (x, name)], answer
            # Gradients too; the same is told to people.
            out, said = run("call", "ffn.0.0", "--endpoint", node.endpoint, "--input", x, "--grad", x,
                            "--output", y)
            assert read_npy(y) == expected and " -> " + y in out, out
            for role in ("input.0", "grad_output.0"):
                assert "note: %s: %s is cast from %s to F32" % (x, role, name) in said, said
        # Rows become columns in the file, not in the tensor.
        columns = [values[row * HIDDEN + column] for column in range(HIDDEN) for row in range(2)]
        write_npy(x, (2, HIDDEN), columns, fortran=True)
        answer = call("ffn.0.0", "--input", x, "--output", y, node=node)
        assert read_npy(y) == expected
        assert answer["notes"] == [x + ": elements are in Fortran order; sent in C order"], answer
        refused_call(swarm, node, ["Fortran order, expected C order"], "--input", x, "--no-cast")
        # What does not fit float32 is told too.
        write_npy(x, (1, HIDDEN), floats(HIDDEN - 1) + [1e300], "d")
        answer = call("ffn.0.0", "--input", x, node=node)
        assert "1 elements of input.0 are beyond what F32 holds" in answer["notes"][1], answer
        # Nothing is told of what is as it should be, and integers are no floats.
        write_npy(x, (2, HIDDEN), values)
        assert call("ffn.0.0", "--input", x, "--no-cast", "--output", y, node=node)["notes"] == []
        write_npy(x, (2, HIDDEN), [0] * (2 * HIDDEN), "q")
        refused_call(swarm, node, ["I64", "F32"], "--input", x)


def case_without_an_output_file_the_result_is_summed_up():
    with Swarm() as swarm:
        node = nop_node(swarm)
        x = swarm.path("x.npy")
        write_npy(x, (2, HIDDEN), [-1.5, 2.0] * HIDDEN)
        answer = call("ffn.0.0", "--input", x, node=node)
        assert answer["output"] is None and answer["summary"] == [
            {"name": "output.0", "shape": [2, HIDDEN], "dtype": "F32", "min": -1.5, "mean": 0.25,
             "max": 2.0, "nan": 0, "infinite": 0}], answer
        out, said = run("call", "ffn.0.0", "--endpoint", node.endpoint, "--input", x)
        assert out.splitlines()[1:] == ["output.0: [2, 16] F32, min -1.5, mean 0.25, max 2"], out
        assert said == "", said
        answer = call("ffn.0.0", "--input", x, "--grad", x, node=node)
        assert answer["summary"][0]["name"] == "grad_input.0" and answer["summary"][0]["max"] == 2.0
        # A file takes it instead.
        answer = call("ffn.0.0", "--input", x, "--output", swarm.path("y.npy"), node=node)
        assert answer["summary"] == [], answer


def case_nan_in_the_input_is_told():
    with Swarm() as swarm:
        node = nop_node(swarm)
        x = swarm.path("x.safetensors")
        inf = float("inf")
        write_safetensors(x, {"input.0": ((1, HIDDEN), floats(HIDDEN - 3) + [float("nan"), inf, -inf])})
        answer = call("ffn.0.0", "--input", x, node=node)
        assert answer["notes"] == [x + ": input.0 holds 1 NaN and 2 infinite of 16 elements"], answer
        (summary,) = answer["summary"]
        assert (summary["nan"], summary["infinite"], summary["min"]) == (1, 2, -1.0), summary
        out, said = run("call", "ffn.0.0", "--endpoint", node.endpoint, "--input", x)
        assert "note: %s: input.0 holds 1 NaN" % x in said and ", 1 NaN, 2 infinite" in out, out + said
        write_safetensors(x, {"input.0": ((1, HIDDEN), [inf] * HIDDEN)})
        (summary,) = call("ffn.0.0", "--input", x, node=node)["summary"]
        assert (summary["min"], summary["mean"], summary["max"]) == (None, None, None), summary


def case_anomalies_are_refused_when_asked_to():
    with Swarm() as swarm:
        node = nop_node(swarm, "--detect-anomalies")
        x = swarm.path("x.npy")
        for bad in (float("nan"), float("inf")):
            write_npy(x, (1, HIDDEN), floats(HIDDEN - 1) + [bad])
            refused_call(swarm, node, ["NaN or infinity"], "--input", x)


def case_unknown_experts_are_not_found():
    with Swarm() as swarm:
        node = nop_node(swarm)
        x = swarm.path("x.npy")
        write_npy(x, (1, HIDDEN), floats(HIDDEN))
        said = call("ffn.7.0", "--input", x, "--output", swarm.path("y.npy"), node=node, code=3)
        assert "ffn.7.0" in said, said
        said = call("ffn.7.0", "--input", x, "--output", swarm.path("y.npy"), peers=node.peer,
                    code=3)
        assert "ffn.7.0" in said, said


def case_broken_files_are_named():
    with Swarm() as swarm:
        node = nop_node(swarm)
        good = swarm.path("good.npy")
        write_npy(good, (1, HIDDEN), floats(HIDDEN))
        with open(good, "rb") as file:
            whole = file.read()
        cases = {"empty.npy": b"", "cut.npy": whole[:-1], "long.npy": whole + b"x",
                 "text.npy": b"hello", "empty.safetensors": b"",
                 "huge.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
                 "json.safetensors": struct.pack("<Q", 8) + b"{nothing"}
        for name, said in (("empty.npy", "neither a .npy nor a .safetensors"),
                           ("text.npy", "is a text file, expected a .npy or .safetensors file"),
                           ("empty.safetensors", "neither a .npy nor a .safetensors")):
            with open(swarm.path(name), "wb") as file:
                file.write(cases[name])
            refused_call(swarm, node, [said], "--input", swarm.path(name))
        for name, content in cases.items():
            with open(swarm.path(name), "wb") as file:
                file.write(content)
            refused_call(swarm, node, [swarm.path(name)], "--input", swarm.path(name))
            refused_call(swarm, node, [swarm.path(name)], "--input", good, "--grad",
                         swarm.path(name))
        refused_call(swarm, node, [swarm.path("absent.npy")], "--input", swarm.path("absent.npy"))
        refused_call(swarm, node, [swarm.folder], "--input", swarm.folder)


def case_an_output_that_cannot_be_written_is_named():
    with Swarm() as swarm:
        node = nop_node(swarm, cls="ffn")
        x = swarm.path("x.npy")
        write_npy(x, (1, HIDDEN), floats(HIDDEN))
        os.mkdir(swarm.path("folder.npy"))
        for out in (swarm.path("no/such/folder/y.npy"), swarm.path("no/y.safetensors"),
                    swarm.path("folder.npy")):
            said = call("ffn.0.0", "--input", x, "--output", out, node=node, code=1)
            assert out in said, said
        # A backward whose gradients would be lost is not even begun.
        call("ffn.0.0", "--input", x, "--grad", x, "--output", swarm.path("no/g.npy"), node=node,
             code=1)
        assert call("ffn.0.0", node=node)["updates"] == 0


main(globals())
