#!/usr/bin/env bash
# What libskep exports: every function of the public headers, and no name that does not begin with skep_
# but those that OpenDHT is to call in place of its own (dht/opendht_*.cpp).
#   exports_test.sh LIBRARY INCLUDE_DIR
set -euo pipefail
library=$1
headers=$2/skep

exported=$(nm -D --defined-only "$library" | awk '{print $NF}' | sort -u)
mended="_ZNK3dht15FieldValueIndex11containedInERKS0_ _ZN3dht3Dht19connectivityChangedEt _ZN3dht3Dht9onNewNodeERKSt10shared_ptrINS_4NodeEEi _ZN3dht3Dht8periodicEPKhmNS_8SockAddrERKNSt6chrono10time_pointINS4_3_V212steady_clockENS4_8durationIlSt5ratioILl1ELl1000000000EEEEEE"
mended+=" _ZN3dht3Dht12storageStoreERKNS_4HashILm20EEERKSt10shared_ptrINS_5ValueEENSt6chrono10time_pointINSA_3_V212steady_clockENSA_8durationIlSt5ratioILl1ELl1000000000EEEEEERKNS_8SockAddrEb"
foreign=$(grep -v '^skep_' <<<"$exported" || true)
for name in $mended; do
    grep -qx "$name" <<<"$exported" || { echo "not exported: $name" >&2; exit 1; }
    foreign=$(grep -vx "$name" <<<"$foreign" || true)
done
if [ -n "$foreign" ]; then
    printf 'exported, expected only names with skep_ in front:\n%s\n' "$foreign" >&2
    exit 1
fi

# A declaration runs from SKEP_API to its semicolon; its name stands before the first bracket.
declared=$(cat "$headers"/*.h | sed 's/^#.*//' | tr '\n' ' ' |
    grep -oE 'SKEP_API[^;]*;' | grep -oE 'skep_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u)
missing=$(comm -23 <(printf '%s\n' "$declared") <(printf '%s\n' "$exported"))
if [ -n "$missing" ]; then
    printf 'declared in a public header and not exported:\n%s\n' "$missing" >&2
    exit 1
fi
count=$(wc -l <<<"$declared")
[ "$count" -ge 20 ] || { echo "only $count functions found in $headers" >&2; exit 1; }
echo "$count functions, all exported, and nothing else"
