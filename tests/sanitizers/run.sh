#!/usr/bin/env bash
# The unit tests of topologies/ against a native core built with AddressSanitizer and UBSan.
#
# The build lies in a copy of the tree under build/sanitizers, so that the installed core stays what it is. Leaks are
# not looked for: Python itself frees little when it ends.
set -euo pipefail
cd "$(dirname "$0")/../.."

python="$PWD/.venv/bin/python"
copy=build/sanitizers
mkdir -p "$copy/tests/unit"
# Times are kept, so that nothing is rebuilt that did not change.
for tree in topologies controllers tests/unit/topologies; do
    rm -rf "${copy:?}/$tree"
    cp -a "$tree" "$copy/$tree"
done
cp -a setup.py pyproject.toml "$copy/"
rm -f "$copy"/topologies/fabricd/_core.*
cd "$copy"

echo 'building the core with -fsanitize=address,undefined'
sanitize='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer'
CFLAGS="$sanitize" LDFLAGS="$sanitize" "$python" setup.py -q build_ext --inplace >build.log 2>&1 || {
    grep -E -m5 'error' build.log >&2
    exit 1
}

# Python was not linked with the sanitizer, so it must come first; libstdc++ likewise, for its exceptions are intercepted.
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so.6)"
export LD_PRELOAD
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$PWD"
"$python" -c 'import sys, topologies.fabricd._core as core; sys.exit(not core.__file__.startswith(sys.argv[1]))' "$PWD" ||
    { echo 'error: the tests would not run on the sanitized core' >&2; exit 1; }
exec "$python" -m pytest -q -p no:cacheprovider tests/unit/topologies "$@"
