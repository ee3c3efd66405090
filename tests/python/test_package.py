"""The package itself: it matches the headers, installs, and imports what it needs only."""

import ctypes
import json
import os
import re
import subprocess
import sys

import pytest

import skep
from conftest import GOLDEN, ROOT
from skep import _abi, _library
from skep.compression import number_of

PYTHON = os.path.join(ROOT, "python")


def python(program, **more):
    environment = dict(os.environ, PYTHONPATH=PYTHON, **more)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env=environment, timeout=120)


def test_prototypes_are_those_of_the_headers():
    subprocess.run([sys.executable, os.path.join(PYTHON, "generate.py"), "--check"], check=True)


def test_structures_have_the_compilers_sizes(tmp_path):
    names = [n for n in dir(_abi) if isinstance(getattr(_abi, n), type)
             and issubclass(getattr(_abi, n), _abi.Structure) and hasattr(getattr(_abi, n), "_fields_")
             and n not in ("Structure",)]
    assert "skep_client_options" in names and "DLManagedTensor" in names
    lines, expected = [], []
    for name in names:
        kind = getattr(_abi, name)
        c = name if name.startswith("DL") else "struct " + name
        lines.append('printf("%%zu\\n", sizeof(%s));' % c)
        expected.append(ctypes.sizeof(kind))
        for field in kind._fields_:
            lines.append('printf("%%zu\\n", offsetof(%s, %s));' % (c, field[0]))
            expected.append(getattr(kind, field[0]).offset)
    source = tmp_path / "sizes.c"
    source.write_text("#include <skep/skep.h>\n#include <stddef.h>\n#include <stdio.h>\n"
                      "int main(void) { %s return 0; }\n" % "\n".join(lines))
    subprocess.run(["cc", "-I", os.path.join(ROOT, "include"), str(source), "-o",
                    str(tmp_path / "sizes")], check=True)
    out = subprocess.run([str(tmp_path / "sizes")], capture_output=True, text=True, check=True)
    assert [int(n) for n in out.stdout.split()] == expected


def test_the_number_of_the_interface_is_the_headers():
    with open(os.path.join(ROOT, "include/skep/version.h")) as f:
        assert int(re.search(r"#define SKEP_ABI (\d+)", f.read()).group(1)) == _library.ABI
    assert re.fullmatch(r"\d+\.\d+\.\d+", skep.version())
    with open(os.path.join(PYTHON, "pyproject.toml")) as f:
        assert 'version = "%s"' % skep.version() in f.read()


def test_another_library_is_refused(tmp_path):
    source = tmp_path / "other.c"
    source.write_text("unsigned skep_abi(void) { return 999; }\n")
    library = tmp_path / "libskep.so.0"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    done = python("import skep; skep.Client(no_dht=True)", SKEP_LIBRARY=str(library))
    assert "binary interface 999, expected %d" % _library.ABI in done.stderr
    done = python("import skep; skep.Client(no_dht=True)", SKEP_LIBRARY=str(tmp_path / "none.so"))
    assert "none.so: no such file" in done.stderr and "SKEP_LIBRARY" in done.stderr


def test_importing_needs_neither_torch_nor_the_library():
    done = python("import sys, skep; skep.Client; skep.NotFound; "
                  "assert 'torch' not in sys.modules; print('fine')", SKEP_LIBRARY="/nonexistent")
    assert done.stdout.strip() == "fine", done.stderr


def test_every_name_is_there():
    for name in skep.__all__:
        assert getattr(skep, name) is not None
    for name in ("Optimizer", "DecentralizedAverager"):
        with pytest.raises(NotImplementedError, match="parameters"):
            getattr(skep, name)
    with pytest.raises(AttributeError):
        skep.nonsense


def test_uids_are_those_of_the_library():
    with open(os.path.join(GOLDEN, "uids/uids.json")) as f:
        cases = json.load(f)["cases"]
    assert len(cases) >= 100
    for case in cases:
        if not case.get("may_refuse"):
            assert skep.is_valid_uid(case["text"]) == case["valid_uid"], case["text"]
            assert skep.is_valid_prefix(case["text"]) == case["valid_prefix"], case["text"]


def test_compression_names():
    for name in skep.CompressionType:
        assert number_of(name) == number_of(name.value) == number_of(name.name)


def test_types_are_checked():
    done = subprocess.run(["/usr/bin/mypy", "--config-file", os.path.join(PYTHON, "pyproject.toml"),
                           "--cache-dir", os.devnull, os.path.join(PYTHON, "skep")],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_installs(tmp_path):
    source = tmp_path / "python"
    subprocess.run(["cp", "-r", PYTHON, str(source)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--quiet",
         "--no-index", "--target", str(tmp_path / "site"), str(source)],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    environment = dict(os.environ, PYTHONPATH=str(tmp_path / "site"))
    out = subprocess.run([sys.executable, "-c", "import skep; print(skep.__file__, skep.version())"],
                         capture_output=True, text=True, env=environment, cwd=str(tmp_path))
    assert str(tmp_path / "site") in out.stdout, out.stderr
    assert (tmp_path / "site/skep/py.typed").exists()
