#!/usr/bin/env bash
# The program's manners: help, versions, messages and exit codes of bad usage.
#   cli_test.sh SKEP
set -uo pipefail
skep=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/skep-cli-XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0

# expect CODE TEXT ARGUMENT...: the exit code, and a text in the output of either stream.
expect() {
    local code=$1 text=$2 output seen
    shift 2
    output=$("$skep" "$@" 2>&1 </dev/null)
    seen=$?
    if [ "$seen" -ne "$code" ] || ! grep -qF -- "$text" <<<"$output"; then
        printf 'skep %s: exit code %s, expected %s and "%s" in:\n%s\n' "$*" "$seen" "$code" \
            "$text" "$output" >&2
        failures=$((failures + 1))
    fi
}

expect 2 'Usage: skep COMMAND'
expect 0 'Usage: skep COMMAND' --help
for command in help -h 'help --help' 'help -h' 'help help' '--help help' '--help --help'; do
    # shellcheck disable=SC2086 # words of a command line
    expect 0 'Usage: skep COMMAND' $command
done
for command in 'bench -h' 'bench help' 'help bench'; do
    # shellcheck disable=SC2086
    expect 0 'throughput  a node under' $command
done
expect 0 'skep bench rpc [OPTIONS]' help bench rpc
expect 0 'skep node [OPTIONS]' --help node
for library in skep OpenDHT libsodium oneDNN libuv msgpack-c jansson; do
    expect 0 "$library " --version
done
for command in -v -V 'node -v' 'node --version --listen x:1' 'find --version' 'call a.0 -V' 'bench -v' \
    'bench rpc -v' 'help -v' 'keygen -v extra'; do
    # shellcheck disable=SC2086
    expect 0 'libsodium ' $command
done
for command in 'node -h' 'node x -h' 'help node --help' 'help node -h'; do
    # shellcheck disable=SC2086
    expect 0 'skep node [OPTIONS]' $command
done
expect 0 'skep bench rpc [OPTIONS]' bench help rpc
# Nothing is ignored behind what is asked for.
for command in '-v extra' 'help extra' 'help help extra' 'help node extra' 'help node --help extra' \
    'help bench rpc extra' 'bench --help extra more' 'bench -v extra' 'help -v extra'; do
    # shellcheck disable=SC2086
    expect 2 '"extra": un' $command
done
expect 2 'did you mean keygen?' keygne
expect 2 '"nonsense": unknown command' help nonsense
expect 2 'no benchmark "nonsense"' help bench nonsense
expect 2 'expected a UID, a prefix such as "ffn.", or --resource KEY' find

# A switch this build does not have is refused, never ignored.
expect 2 '--peer-to-peer: unknown option' keygen --peer-to-peer
expect 2 'expected --identity or --swarm-key' keygen
expect 2 '"extra": unexpected argument' keygen extra
echo 'identty = x' >"$work/conf"
expect 2 "$work/conf:1: \"identty\": unknown option of skep keygen, did you mean identity?" \
    keygen --config "$work/conf"
printf 'help = yes\n' >"$work/conf"
expect 2 "$work/conf:1: \"help\": cannot be set in a file" keygen --config "$work/conf"
expect 0 'ffn_small_batch_512clients_32handlers,' bench throughput --help
expect 2 'no argument, expected UID' call
for ending in npy pt pth; do
    expect 2 "--output w.$ending: is going to be a safetensors file" \
        export a.0 --checkpoint-dir "$work" --output "w.$ending"
done
expect 2 '"ffn.", with the dot, lists what is under it' find ffn --initial-peers 127.0.0.1:9
expect 2 '--priority: needs --request' query-tracker --priority 3
expect 2 '--expert-batch-size: needs --num-experts' bench dht --expert-batch-size 3
expect 2 '--num-bulk: does nothing with --num-experts' bench dht --num-experts 64 --num-bulk 3
expect 2 '--precision: does nothing with --preset nop' \
    bench throughput --preset nop --precision bfloat16

# A variable is of no command, of this one, or of another.
expect_with() {
    local setting=$1
    shift
    export "${setting?}"
    expect "$@"
    unset "${setting%%=*}"
}
expect_with SKEP_INITAL_PEERS=127.0.0.1:9 0 'did you mean SKEP_INITIAL_PEERS?' \
    keygen --identity "$work/first.key"
expect_with SKEP_PRIORITY=high 2 'SKEP_PRIORITY: "high", expected a whole number' query-tracker
if SKEP_INITIAL_PEERS=127.0.0.1:9 "$skep" keygen --swarm-key "$work/first.swarm" 2>&1 |
    grep -q WARN; then
    echo 'a variable of other commands was warned about' >&2
    failures=$((failures + 1))
fi
expect 2 'cannot open' keygen --config "$work/absent"

expect 0 'identity of peer ' keygen --identity "$work/node.key"
expect 1 "$work/node.key" keygen --identity "$work/node.key"
expect 0 'key of a private swarm' keygen --swarm-key "$work/swarm.key"
expect 0 '"peer_id": "' keygen --identity "$work/json.key" --swarm-key "$work/json.swarm" --json
expect 1 '"identity": "' keygen --identity "$work/other.key" --swarm-key "$work/swarm.key" --json
[ "$(stat -c %a "$work/node.key" "$work/swarm.key" | sort -u)" = 600 ] || {
    echo 'key files have other modes than 600' >&2
    failures=$((failures + 1))
}
# Standard output that takes nothing is a failure, told by its own name, however long the text is.
full() {
    local why=$1 said
    shift
    said=$("$@" 2>&1 >&3)
    if [ $? -ne 1 ] || [ "${said##*$'\n'}" != "skep: standard output: $why" ]; then
        printf '%s: standard output failed, and was said: %s\n' "$*" "$said" >&2
        failures=$((failures + 1))
    fi
} 3>/dev/full
full 'No space left on device' "$skep" --version
full 'No space left on device' "$skep" help node
full 'No space left on device' "$skep" keygen --identity "$work/full.key"
full 'Bad file descriptor' bash -c '"$0" help node >&-' "$skep"

# The scripts say how they are used, from wherever they are called.
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
script() {
    local code=$1 text=$2 folder=$3 output seen
    shift 3
    output=$(cd "$source_dir/$folder" && "$@" 2>&1 </dev/null)
    seen=$?
    if [ "$seen" -ne "$code" ] || ! grep -qF -- "$text" <<<"$output" || grep -q 'sed:' <<<"$output"; then
        printf '%s: exit code %s, expected %s and "%s" in:\n%s\n' "$*" "$seen" "$code" "$text" \
            "$output" >&2
        failures=$((failures + 1))
    fi
}
for folder in . deploy; do
    path=./install-deps
    [ "$folder" = deploy ] || path=./deploy/install-deps
    script 2 'install-deps build' "$folder" "$path"
    script 2 'install-deps build' "$folder" "$path" nonsense
    script 0 'install-deps build' "$folder" "$path" --help
done
script 2 'install-deps: nonsense: expected build, python or test' . ./deploy/install-deps nonsense
script 0 'tests/run --quick' . ./tests/run --help
script 2 'tests/run --quick' tests ./run --nonsense
script 2 'tests/run: --nonsense: unknown option' tests ./run --nonsense
script 2 'tests/run: foo: unexpected argument' . ./tests/run --quick foo
script 2 'tests/run: an empty argument' . ./tests/run ''
script 0 'deploy/quickstart --moe' deploy ./quickstart --help
script 2 'quickstart: --bogus: unknown option' . ./deploy/quickstart --bogus
script 2 'deploy/quickstart --moe' deploy ./quickstart --bogus
script 2 'quickstart: extra: unexpected argument' . ./deploy/quickstart --moe extra

# A test that passes only at the second try is no secret: tests/run in a tree of its own, with the
# real ctest and tests that end as wanted.
tree=$work/tree
mkdir -p "$tree/tests" "$tree/deploy" "$tree/build/release" "$tree/bin"
cp "$source_dir/tests/run" "$tree/tests/run"
printf '#!/bin/sh\n' | tee "$tree/deploy/install-deps" >"$tree/bin/cmake"
cat >"$tree/shaky" <<EOF
#!/bin/sh
[ -e "$tree/tried" ] && exit 0
: >"$tree/tried"
echo "words of the first try"
exit 1
EOF
chmod +x "$tree/deploy/install-deps" "$tree/bin/cmake" "$tree/shaky"
run_tree() {
    PATH=$tree/bin:$PATH "$tree/tests/run" --quick
}
cat >"$tree/build/release/CTestTestfile.cmake" <<EOF
add_test(steady "true")
add_test(shaky "$tree/shaky")
add_test(broken "sh" "-c" "echo words of the broken one; exit 1")
EOF
if ! command -v ctest >"$work/out" 2>&1; then
    echo 'ctest is not installed: tests/run is not tried'
elif output=$(run_tree) || [ "$(tail -2 <<<"$output")" != \
    'WARNING: passed only at the second try: shaky (release)
2 passed, 1 failed' ] || ! tail -6 <<<"$output" | grep -q 'words of the first try' ||
    tail -6 <<<"$output" | grep -q 'words of the broken one'; then
    printf 'tests/run: expected a warning above the count, with what was said, in:\n%s\n' \
        "$output" >&2
    failures=$((failures + 1))
elif sed -i /broken/d "$tree/build/release/CTestTestfile.cmake" && output=$(run_tree) && ! {
    [ "$(tail -1 <<<"$output")" = '2 passed, 0 failed' ] && ! grep -q WARNING <<<"$output"; }; then
    printf 'tests/run: expected no warning where all pass at once, in:\n%s\n' "$output" >&2
    failures=$((failures + 1))
fi

# Every command has a help.
for command in $("$skep" help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p'); do
    [ "$command" = help ] || expect 0 'Usage:' help "$command"
    [ "$command" = help ] || expect 2 '--no-such-option' "$command" --no-such-option
done
[ "$failures" -eq 0 ]
