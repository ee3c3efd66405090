#!/usr/bin/python3
"""Writes skep/_abi.py: structures, enumerations and prototypes of Skep's public headers for ctypes.

    python/generate.py [--check]

--check compares with the file that is there instead of writing it, and fails if they differ. The
headers are preprocessed by the C compiler and parsed by pycparser (Debian: python3-pycparser), so
whatever changes in them changes the file.
"""

import os
import re
import subprocess
import sys

from pycparser import c_ast, c_parser

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, "..", "include")
OUT = os.path.join(HERE, "skep", "_abi.py")

# Headers whose functions and structures the package uses.
HEADERS = ["skep/skep.h"]

SIMPLE = {
    "_Bool": "c_bool", "char": "c_char", "int": "c_int", "unsigned int": "c_uint",
    "float": "c_float", "double": "c_double", "short": "c_short", "long": "c_long",
    "int8_t": "c_int8", "int16_t": "c_int16", "int32_t": "c_int32", "int64_t": "c_int64",
    "uint8_t": "c_uint8", "uint16_t": "c_uint16", "uint32_t": "c_uint32",
    "uint64_t": "c_uint64", "size_t": "c_size_t", "unsigned": "c_uint",
    "unsigned char": "c_ubyte", "unsigned long": "c_ulong",
}


def preprocessed():
    """The headers' text, with the typedefs of system headers replaced by ours."""
    source = "".join('#include <%s>\n' % name for name in HEADERS)
    text = subprocess.run(
        ["cc", "-std=c17", "-E", "-I", INCLUDE, "-D__attribute__(x)=", "-D__extension__=",
         "-D__restrict=", "-D__inline=", "-D__asm__(x)=", "-D_Noreturn=",
         "-D__builtin_va_list=int", "-"],
        input=source, capture_output=True, text=True, check=True).stdout
    return text


def defines():
    """Numbers that the headers define as macros: `#define SKEP_NAME 123`."""
    out = {}
    folder = os.path.join(INCLUDE, "skep")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            for macro, number in re.findall(r"^#define (SKEP_\w+) (\d+)u?$", f.read(), re.M):
                out[macro] = int(number)
    return out


class Writer:
    """Declarations of one translation unit as lines of Python."""

    def __init__(self, unit):
        self.unit = unit
        self.structs = {}
        self.typedefs = {}
        self.constants = defines()
        self.enums = {}
        self.functions = {}
        for node in unit.ext:
            self.take(node)

    def take(self, node):
        ours = node.coord and ("/skep/" in node.coord.file or "/dlpack/" in node.coord.file)
        if isinstance(node, c_ast.Typedef):
            self.typedefs[node.name] = node.type
            self.take_type(node.type, node.name if ours else None)
        elif isinstance(node, c_ast.Decl) and ours:
            if isinstance(node.type, c_ast.FuncDecl):
                if node.name.startswith("skep_"):
                    self.functions[node.name] = node.type
            else:
                self.take_type(node.type, None)

    def take_type(self, kind, name):
        inner = kind.type if isinstance(kind, c_ast.TypeDecl) else kind
        if isinstance(inner, c_ast.Struct) and inner.decls:
            if inner.name or name:
                self.structs[inner.name or name] = inner
        elif isinstance(inner, c_ast.Enum) and inner.values:
            value = 0
            for item in inner.values.enumerators:
                if item.value is not None:
                    value = self.number(item.value)
                if item.name.startswith(("SKEP_", "kDL")):
                    self.constants[item.name] = value
                self.enums[item.name] = value
                value += 1

    def number(self, node):
        if isinstance(node, c_ast.Constant):
            return int(node.value.rstrip("uUlL"), 0)
        if isinstance(node, c_ast.ID):
            return self.enums[node.name]
        if isinstance(node, c_ast.UnaryOp) and node.op == "-":
            return -self.number(node.expr)
        if isinstance(node, c_ast.BinaryOp):
            a, b = self.number(node.left), self.number(node.right)
            return {"+": a + b, "-": a - b, "*": a * b, "<<": a << b}[node.op]
        raise ValueError("no number: %s" % node)

    def type_of(self, kind, parameter=False):
        """The ctypes expression of a C type."""
        if isinstance(kind, c_ast.TypeDecl):
            return self.type_of(kind.type, parameter)
        if isinstance(kind, c_ast.IdentifierType):
            name = " ".join(kind.names)
            if name in SIMPLE:
                return SIMPLE[name]
            if name == "void":
                return "None"
            if name in self.typedefs:
                target = self.typedefs[name]
                if isinstance(target, c_ast.TypeDecl) and isinstance(target.type, c_ast.Struct):
                    return target.type.name or name
                return self.type_of(target, parameter)
            raise ValueError("unknown type %s" % name)
        if isinstance(kind, c_ast.Enum):
            return "c_int"
        if isinstance(kind, c_ast.Struct):
            return kind.name
        if isinstance(kind, c_ast.PtrDecl):
            target = kind.type
            if isinstance(target, c_ast.FuncDecl):
                return self.function_type(target)
            inner = self.type_of(target)
            if inner == "c_char":
                return "c_char_p"
            if inner == "None":
                return "c_void_p"
            if inner in self.structs or inner.startswith(("POINTER", "c_")):
                return "POINTER(%s)" % inner
            return "c_void_p" # an opaque handle
        if isinstance(kind, c_ast.ArrayDecl):
            inner = self.type_of(kind.type)
            if parameter:
                return "POINTER(%s)" % inner
            return "%s * %d" % (inner, self.number(kind.dim))
        raise ValueError("unknown kind %s" % kind)

    def function_type(self, function):
        result = self.type_of(function.type)
        return "CFUNCTYPE(%s)" % ", ".join([result] + self.arguments(function))

    def arguments(self, function):
        if function.args is None:
            return []
        kinds = [self.type_of(a.type, parameter=True) for a in function.args.params]
        return [] if kinds == ["None"] else kinds

    def order(self):
        """Structures, each behind those that it contains."""
        done, out = set(), []

        def visit(name):
            if name in done or name not in self.structs:
                return
            done.add(name)
            for field in self.structs[name].decls:
                for inner in re.findall(r"\b\w+\b", self.type_of(field.type)):
                    visit(inner)
            out.append(name)

        for name in self.structs:
            visit(name)
        return out

    def text(self):
        lines = ['"""Written by python/generate.py from include/skep/*.h. Do not edit."""', "",
                 "# mypy: ignore-errors", "# fmt: off",
                 "from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p,",
                 "                    c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint,",
                 "                    c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)",
                 "from typing import Any, Dict", ""]
        names = [n for n in self.order() if n.startswith(("skep_", "DL"))]
        for name in names:
            lines += ["", "class %s(Structure):" % name, "    pass", ""]
        for name in names:
            lines += ["", "%s._fields_ = [" % name]
            for field in self.structs[name].decls:
                kind = self.type_of(field.type)
                if kind == "POINTER(%s)" % name and name not in names:
                    kind = "c_void_p"
                lines.append("    (%r, %s)," % (field.name, kind))
            lines += ["]"]
        lines += ["", ""]
        for name in sorted(self.constants):
            lines.append("%s = %d" % (name, self.constants[name]))
        lines += ["", "# name: (result, arguments)", "FUNCTIONS: Dict[str, Any] = {"]
        for name in sorted(self.functions):
            function = self.functions[name]
            lines.append("    %r: (%s, [%s])," % (name, self.type_of(function.type),
                                                  ", ".join(self.arguments(function))))
        lines += ["}", ""]
        return "\n".join(lines)


def main():
    unit = c_parser.CParser().parse(preprocessed())
    text = Writer(unit).text()
    if "--check" in sys.argv[1:]:
        with open(OUT, encoding="utf-8") as f:
            if f.read() != text:
                sys.exit("python/skep/_abi.py is not what include/skep says: run python/generate.py")
        return
    with open(OUT, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
