#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the fuzz targets and runs each for a while: tests/fuzz/run.sh [SECONDS, 60 unless given]
# Ends with an error as soon as one crashes; the input that did it is then in build/fuzz/artifacts.
set -euo pipefail
seconds=${1:-60}
cd "$(dirname "$0")/../.."

cmake --preset fuzz
cmake --build --preset fuzz --target fuzzers

mkdir -p build/fuzz/artifacts
for target in fuzz_request fuzz_reply fuzz_resp; do
  echo "== $target, $seconds s"
  # What is found is kept in the build directory; the committed corpus is only read.
  mkdir -p "build/fuzz/corpus/$target"
  build/fuzz/bin/$target -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=20000 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/artifacts/$target-" \
    "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target"
done
