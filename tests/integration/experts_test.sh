#!/usr/bin/env bash
# Options of experts on the command line, plugins, and the benchmarks of experts (that they run and
# print rows, never how fast).
#   experts_test.sh SKEP PLUGIN
set -uo pipefail
skep=$1
plugin=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/skep-experts-XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    printf '%s\n' "$*" >&2
    failures=$((failures + 1))
}

# refused CODE TEXT OPTION...: a node with these options does not start, and says why.
refused() {
    local code=$1 text=$2 output seen
    shift 2
    output=$("$skep" node --listen '127.0.0.1:*' --no-dht --expert-uids t.0 --hidden-dim 16 "$@" 2>&1 \
        </dev/null)
    seen=$?
    if [ "$seen" -ne "$code" ] || ! grep -qF -- "$text" <<<"$output"; then
        fail "skep node $*: exit code $seen, expected $code and \"$text\" in: $output"
    fi
}

refused 2 'expected one of adam|adamw|sgd|none' --optimizer rmsprop
refused 2 'expected one of none|constant-with-warmup|linear-with-warmup' --schedule cosine
refused 2 '--schedule linear-with-warmup: needs --num-training-steps' --schedule linear-with-warmup
refused 2 'expected one of float32|bfloat16' --precision float16
refused 2 'beta1: 1, expected 0 or more and below 1' --beta1 1
refused 2 '--eps' --eps 0
refused 2 'a multiple of 4 (the heads)' --expert-cls transformer --hidden-dim 18
refused 1 'expected at most 1000 bytes (max_memory)' --max-memory 1000
refused 1 'expected at most 1 KiB (max_memory)' --max-memory 1K
refused 1 'expected at most 1 MiB (max_memory)' --hidden-dim 256 --max-memory 1M
refused 1 '17 experts need' --expert-pattern 'p.[0:64]' --num-experts 16 --max-memory 1M
refused 1 'not a shared object that loads here' --plugin "$0"
refused 1 "$work/absent.so: cannot read" --plugin "$work/absent.so"
refused 2 'expected float32 for class adapter' --plugin "$plugin" --expert-cls adapter --precision bfloat16

# rows COUNT ARGUMENT...: a benchmark prints so many rows, each with the fields that programs read.
rows() {
    local count=$1 output
    shift
    output=$("$skep" bench "$@" --json 2>"$work/log") || fail "skep bench $*: $(cat "$work/log")"
    python3 - "$count" "$output" <<'PYTHON' || fail "skep bench $*: $output"
import json, sys
rows = json.loads(sys.argv[2])
assert len(rows) == int(sys.argv[1]), len(rows)
for row in rows:
    assert set(row) == {"bench", "case", "value", "unit", "baseline", "ratio", "runs"}, row
    assert row["value"] is not None and row["runs"] == 1, row
PYTHON
}

export OMP_NUM_THREADS=1
small='--hidden-dim 16 --runs 1'
rows 1 experts $small --only '32 rows, float32'
rows 1 experts $small --only 'backward, 512 rows, float32'
rows 1 experts $small --only 'transformer forward, 8 x 128, float32'
rows 1 experts $small --only 'Adam step'
rows 1 experts $small --only made
"$skep" bench experts $small --only nonesuch >/dev/null 2>&1 && fail 'a case that is none was measured'
load='--hidden-dim 8 --batch-size 4 --num-batches-per-client 2'
rows 6 throughput --preset minimalistic $load
rows 6 throughput $load --num-clients 8 --num-experts 3 --precision bfloat16
rows 6 throughput --preset nop $load --num-clients 5 --num-connections 2
[ "$failures" -eq 0 ]
