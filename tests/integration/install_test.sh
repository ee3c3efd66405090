#!/usr/bin/env bash
# Installs into a folder of its own, then builds and runs a small program against it in the two ways
# that users have, pkg-config and find_package, and the example of a plugin.
#   install_test.sh BUILD_DIR CMAKE CC CXX
set -euo pipefail
build=$1
cmake=$2
# CMake's own choice is Make, which need not be there.
export CMAKE_GENERATOR=Ninja
cc=$3
cxx=$4

for tool in pkg-config "$cmake" "$cc" "$cxx"; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/skep-install-XXXXXX")
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log"
libdir=$(dirname "$(find "$prefix" -name 'libskep.so')")
export PKG_CONFIG_PATH=$libdir/pkgconfig
export LD_LIBRARY_PATH=$libdir

# The unit starts the program that was installed, and points to manuals that are there.
unit=$prefix/lib/systemd/system/skep-node.service
grep -qxF "ExecStart=$prefix/bin/skep node --config /etc/skep/node.conf" "$unit"
[ -x "$prefix/bin/skep" ]
manual=$(sed -n 's/^Documentation=file://p' "$unit")
[ -s "$manual" ] && [ -s "$(dirname "$manual")/protocol.md" ]
[ -s "$(dirname "$manual")/decisions/README.md" ]

# Every public header stands on its own, in C and in C++.
for header in "$prefix"/include/skep/*.h; do
    name=skep/$(basename "$header")
    echo "#include <$name>" | "$cc" -std=c17 -Wall -Wextra -Wstrict-prototypes -Werror \
        $(pkg-config --cflags skep) -x c -fsyntax-only -
    echo "#include <$name>" | "$cxx" -std=c++17 -Wall -Wextra -Werror \
        $(pkg-config --cflags skep) -x c++ -fsyntax-only -
done

# Whoever writes a class of experts needs the header of experts only.
echo '#include <skep/expert.h>
static const struct skep_expert_class cls = {.name = "own"};
int main(void) { return cls.name[0] != 0 && cls.forward == 0 ? 0 : 1; }' |
    "$cc" -std=c17 -Wall -Wextra -Werror $(pkg-config --cflags skep) -x c -fsyntax-only -

mkdir "$work/user"
cat >"$work/user/user.c" <<'C'
#include <skep/skep.h>
#include <stdio.h>

int main(void)
{
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_error error;

    skep_client_options_init(&options);
    options.no_dht = true;
    if (skep_client_new(&options, &client, &error) != SKEP_OK)
        return fprintf(stderr, "%s\n", error.message), 1;
    skep_client_free(client);
    return puts(skep_status_name(SKEP_OK)) < 0;
}
C
"$cc" -std=c17 -Wall -Werror "$work/user/user.c" $(pkg-config --cflags --libs skep) -o "$work/by_pc"
[ "$("$work/by_pc")" = OK ]

# The program of the README is short, and one.
sed -n '/^```c$/,/^```$/p' "$(dirname "$0")/../../README.md" | grep -v '^```' >"$work/user/readme.c"
[ "$(wc -l <"$work/user/readme.c")" -le 30 ]
"$cc" -Wall -Wextra -Werror "$work/user/readme.c" $(pkg-config --cflags --libs skep) \
    -o "$work/by_readme"

cat >"$work/user/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(skep 0.1 REQUIRED)
add_executable(user user.c)
target_link_libraries(user PRIVATE skep::skep)
C
"$cmake" -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/user/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
[ "$("$work/user/build/user")" = OK ]

# What the documentation needs to be read where it was installed.
doc=$(dirname "$manual")
for file in README.md LICENSE examples/plugin/README.md examples/digits/digits.safetensors; do
    [ -s "$doc/$file" ] || { echo "$doc/$file is missing"; exit 1; }
done
# The header that ours need, which pkg-config cannot require, is named and is where it says.
[ -s "$(pkg-config --variable=dlpack_includedir skep)/dlpack/dlpack.h" ]

# The worked examples, as their READMEs build them: from the tree and as they were installed, against
# what was installed and nothing else.
build_example() {
    "$cmake" -S "$1" -B "$2" -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="-Wall -Wextra -Werror" \
        -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
    "$cmake" --build "$2" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
    grep -qF "$prefix/include" "$2/build.ninja" ||
        { echo "$1 was not built against $prefix/include"; exit 1; }
}
examples=$(dirname "$0")/../../examples
build_example "$examples/plugin" "$work/plugin"
build_example "$examples/digits" "$work/digits"
build_example "$doc/examples/plugin" "$work/installed-plugin"
build_example "$doc/examples/digits" "$work/installed-digits"
"$work/installed-digits/digits" --help | grep -qF -- --initial-peers
mkfifo "$work/facts"
"$prefix/bin/skep" node --no-dht --no-tracker --listen '127.0.0.1:*' --plugin "$work/plugin/adapter.so" \
    --expert-cls adapter --expert-uids lora.0 --hidden-dim 64 --intermediate-dim 8 --json \
    >"$work/facts" 2>"$work/node.log" &
node=$!
trap 'kill "$node" 2>/dev/null || true; rm -rf "$work"' EXIT
exec 3<"$work/facts" # its first line, or the end of the file if it ends
read -r -t 60 facts <&3 || { cat "$work/node.log"; exit 1; }
endpoint=$(sed -n 's/.*"endpoint": *"\([^"]*\)".*/\1/p' <<<"$facts")
"$prefix/bin/skep" call lora.0 --endpoint "$endpoint" --json | grep -q '"class": *"adapter"'
kill "$node"
wait "$node"

version=$(pkg-config --modversion skep)
"$prefix/bin/skep" --version | grep -qx "skep $version"

# The trainer of the installed examples, on the digits beside it, through a node that was installed.
exec 3<&-
"$prefix/bin/skep" node --no-tracker --listen '127.0.0.1:*' --swarm "install-$$" \
    --expert-pattern 'digits.[0:2].[0:1]' --num-experts 2 --hidden-dim 64 --json \
    >"$work/facts" 2>"$work/node.log" &
node=$!
exec 3<"$work/facts"
read -r -t 60 facts <&3 || { cat "$work/node.log"; exit 1; }
peer=$(sed -n 's/.*"initial_peers": *"\([^"]*\)".*/\1/p' <<<"$facts")
"$work/installed-digits/digits" --initial-peers "$peer" --swarm "install-$$" --epochs 1 --target 1 \
    --expert-pattern 'digits.[0:2].[0:1]' --data "$doc/examples/digits/digits.safetensors" \
    >"$work/digits.log" 2>&1 || { cat "$work/digits.log" "$work/node.log"; exit 1; }
kill "$node"
wait "$node"
echo "installed, linked and run by pkg-config and by find_package, the examples too: skep $version"
