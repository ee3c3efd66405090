#!/usr/bin/env bash
# The scripts that set Skep up: every argument is used or refused.
#   scripts_test.sh SOURCE_DIR
set -uo pipefail
source=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/skep-scripts-XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0

# In place of dpkg-query, which says that all is there, and notes what it was asked for.
mkdir "$work/bin"
cat >"$work/bin/dpkg-query" <<'SH'
#!/bin/sh
for last; do :; done
echo "$last" >>"$ASKED"
printf installed
SH
chmod +x "$work/bin/dpkg-query"
export ASKED=$work/asked PATH=$work/bin:$PATH

fail() {
    printf '%s\n' "$*" >&2
    failures=$((failures + 1))
}

# expect CODE TEXT SCRIPT ARGUMENT...: the exit code, and a text in the output of either stream.
expect() {
    local code=$1 text=$2 output seen
    shift 2
    : >"$ASKED"
    output=$("$source/$1" "${@:2}" 2>&1 </dev/null)
    seen=$?
    [ "$seen" -eq "$code" ] && grep -qF -- "$text" <<<"$output" ||
        fail "$* : exit code $seen, expected $code and \"$text\" in: $output"
}

# packages LIST...: what install-deps asks for, each once.
packages() {
    (cd "$source/deploy" && sed 's/#.*//' "$@" | tr -s ' ' '\n' | sed '/^$/d' | sort -u)
}
asked() {
    [ "$(sort "$ASKED")" = "$(packages "$@")" ] || fail "asked for other packages than those of $*"
}

expect 0 'all packages are installed' deploy/install-deps build
asked packages-build
for words in 'test' 'build test' 'test build' 'build build test'; do
    # shellcheck disable=SC2086 # words of a command line
    expect 0 'all packages are installed' deploy/install-deps $words
    asked packages-build packages-python packages-test
done
expect 0 'all packages are installed' deploy/install-deps build python
asked packages-build packages-python
expect 2 'deploy/install-deps build' deploy/install-deps
expect 2 'install-deps: nonsense: expected build, python or test' deploy/install-deps build nonsense
expect 2 'install-deps: --fast: expected build, python or test' deploy/install-deps --fast
expect 0 'deploy/install-deps build' deploy/install-deps --help
for words in '--nonsense' 'build' '--moe more'; do
    # shellcheck disable=SC2086
    expect 2 "quickstart: ${words##* }: un" deploy/quickstart $words
done
expect 2 'nonsense' .ci/run --nonsense
exit "$((failures > 0))"
