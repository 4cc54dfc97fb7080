#!/usr/bin/env bash
# Fuzzes the native core:  tests/fuzz/run.sh [SECONDS]   (each fuzzer; 20 if not given)
#
# Every fuzz_*.c here is a libFuzzer harness, linked with the whole core and run under AddressSanitizer and UBSan. What a
# run has learned stays in build/fuzz/corpus, so that the next one goes on from there. A crash leaves its input in
# build/fuzz/; give it to the fuzzer as an argument to see it again:  build/fuzz/fuzz_frame build/fuzz/crash-...
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds="${1:-20}"
core=topologies/fabricd/core
out=build/fuzz
flags=(-std=gnu11 -g -O1 -UNDEBUG -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize=address
       -fsanitize=undefined -Itopologies/fabricd)

[[ "$seconds" =~ ^[0-9]+$ ]] || { echo "usage: $0 [SECONDS]" >&2; exit 2; }
mkdir -p "$out"
if ! echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9; }' |
    clang -x c -fsanitize=fuzzer -o "$out/probe" - 2>"$out/probe.log"; then
    echo "error: clang has no libFuzzer here: $(head -n 1 "$out/probe.log")" >&2
    echo "  do: sudo vagrant/provision.sh --dev" >&2
    exit 1
fi

rm -f "$out/core.a"
for source in "$core"/*.c; do
    object="$out/$(basename "$source" .c).o"
    clang "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
    ar -qcS "$out/core.a" "$object"
done
ar -s "$out/core.a"

export ASAN_OPTIONS=quarantine_size_mb=4 UBSAN_OPTIONS=print_stacktrace=1
for harness in tests/fuzz/fuzz_*.c; do
    name="$(basename "$harness" .c)"
    clang "${flags[@]}" -Wall -Wextra -fsanitize=fuzzer "$harness" "$out/core.a" -o "$out/$name"
    mkdir -p "$out/corpus/$name"
    echo "$name: $seconds s"
    if ! "$out/$name" "$out/corpus/$name" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix="$out/" -print_final_stats=1 -verbosity=1 -close_fd_mask=1 2>"$out/$name.log"; then
        grep -vE '^(INFO|#[0-9]+)' "$out/$name.log" | head -n 60 >&2
        echo "error: $name failed; its input is named in $out/$name.log" >&2
        exit 1
    fi
    runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$name.log")"
    covered="$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$out/$name.log" | tail -n 1)"
    echo "$name: $runs inputs, $covered edges covered, nothing found"
done
