#!/usr/bin/env bash
# `skep dht` as people run it: joining, stopping, restarting from saved peers, bad usage, a port in
# use; and `skep bench dht` in small.
#   dht_test.sh SKEP
set -uo pipefail
skep=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/skep-dht-XXXXXX")
pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    wait 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
failures=0
fail() {
    echo "$*" >&2
    failures=$((failures + 1))
}

# await SECONDS COMMAND...: until it succeeds.
await() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -ge "$end" ] && return 1
        sleep 0.05
    done
}

# start NAME ARGUMENT...: a peer, ready when this returns; its pid in $pid, its peer line in $peer.
start() {
    local name=$1
    shift
    "$skep" dht --json "$@" >"$work/$name.out" 2>"$work/$name.err" &
    pid=$!
    pids+=("$pid")
    await 30 grep -q '"event":"ready"' "$work/$name.out" || fail "$name is not ready"
    peer=$(sed -n 's/.*"initial_peers":"\([^"]*\)".*/\1/p' "$work/$name.out")
}

# stop NAME PID SIGNAL: it ends in order, with exit code 0.
stop() {
    kill -"$3" "$2"
    await 10 sh -c "! kill -0 $2" || fail "$1 does not end on SIG$3"
    wait "$2" || fail "$1 ended with code $? on SIG$3"
    grep -q '"event":"stopped"' "$work/$1.out" || fail "$1 said nothing at its end"
}

start first --listen '127.0.0.1:*' --identity "$work/first.key"
first_pid=$pid first_peer=$peer
grep -qF -- "--initial-peers $first_peer" "$work/first.err" || fail "no line by which others join"
[ "$(stat -c %a "$work/first.key")" = 600 ] || fail "the identity is not 0600"

start second --listen '127.0.0.1:*' --initial-peers "$first_peer" --peers-file "$work/peers"
second_pid=$pid
await 30 grep -q 'connected to' "$work/second.err" || fail "second did not join"
stop second "$second_pid" TERM
grep -qxF "$first_peer" "$work/peers" || fail "the first peer was not saved"

start again --listen '127.0.0.1:*' --peers-file "$work/peers"
again_pid=$pid
await 30 grep -q 'connected to' "$work/again.err" || fail "did not join by saved peers"
stop again "$again_pid" INT

# One key file, one process; and the port is taken.
"$skep" dht --listen '127.0.0.1:*' --identity "$work/first.key" >"$work/out" 2>&1
[ $? -eq 1 ] && grep -qF "first.key" "$work/out" || fail "a second peer of one identity started"
"$skep" dht --listen "$first_peer" >"$work/out" 2>&1
[ $? -eq 1 ] && grep -qF "${first_peer##*:}" "$work/out" || fail "a port in use was not named"
"$skep" dht --initial-peers 'nonsense' >"$work/out" 2>&1
[ $? -eq 2 ] && grep -qF '"nonsense"' "$work/out" || fail "a bad peer is not bad usage"

# A dead peer of the list: it starts all the same and ends at once.
start lonely --listen '127.0.0.1:*' --initial-peers "127.0.0.1:9"
stop lonely "$pid" INT
stop first "$first_pid" TERM

"$skep" bench dht --num-peers 8 --num-lookups 10 --runs 1 --num-bulk 20 --json >"$work/bench" ||
    fail "bench dht failed"
for word in '"bench"' '"ratio"' 'lookups/s' 'killed'; do
    grep -qF -- "$word" "$work/bench" || fail "bench dht printed no $word"
done
grep '20 UIDs at once, uncached' "$work/bench" | grep -q '"baseline": [1-9]' ||
    fail "bench dht compared its bulk lookups with nothing"
"$skep" bench moe --num-peers 4 --grid-size 3 --runs 1 --num-searches 1 --num-batches 2 --num-passes 2 \
    --json >"$work/bench" || fail "bench moe failed"
for word in '"ratio"' 'beam search, 27 experts, cold, 4 peers' 'watched' 'forward, 64 samples'; do
    grep -qF -- "$word" "$work/bench" || fail "bench moe printed no $word"
done
"$skep" bench moe --num-peers 4 --num-nodes 5 >"$work/out" 2>&1
[ $? -eq 2 ] && grep -qF '5' "$work/out" || fail "more nodes than peers were not bad usage"

# Experts of a grid in batches, in small: everything is stored and found again, and what it took is
# told, beside the bare calls.
"$skep" bench dht --num-peers 10 --num-experts 24 --expert-batch-size 8 --json >"$work/bench" ||
    fail "bench dht of a grid failed"
python3 - "$work/bench" <<'PYTHON' || fail "bench dht of a grid: $(cat "$work/bench")"
import json, sys
rows = {row["case"]: row for row in json.load(open(sys.argv[1]))}
def row(text):
    return next(rows[case] for case in rows if case.startswith("10 peers: " + text))
for text in ("records stored", "experts found"):
    assert row(text)["value"] == row(text)["baseline"] == 100, text
assert row("prefixes found")["value"] == 100
assert "(of 24)" in row("experts found")["case"]
for operation in ("declare", "get"):
    for what in ("mean time", "packets", "bytes", "CPU time"):
        cost = row(f"{operation} an expert, {what}")
        assert cost["value"] > 0 and cost["baseline"] > 0, cost
PYTHON
"$skep" bench dht --num-experts 24 --expert-batch-size 0 >"$work/out" 2>&1
[ $? -eq 2 ] && grep -qF -- '--expert-batch-size' "$work/out" || fail "a batch of 0 is not bad usage"
[ "$failures" -eq 0 ]
