#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test: tests/run.sh [STEP...]
#   dev      (the default) the development build and all tests
#   asan     the same under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan     under ThreadSanitizer, those of them in which other threads work: look-ups, files, TLS handshakes
#   fuzz     every fuzz target for $FUZZ_SECONDS (60)
#   format   clang-format agrees with every source file
#   install  cmake --install of the development build, and the installed agent answers
#   package  the same of the release build, whose link-time optimisation takes minutes
# Starts its own Redis servers on free ports, and leaves nothing running.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=("$@")
if [ ${#steps[@]} -eq 0 ]; then steps=(dev); fi
.ci/deps test

if [ ! -x build/venv/bin/python ]; then python3 -m venv build/venv; fi
build/venv/bin/python -m pip install -q -r tests/requirements.txt
# The tests import the Python client from its sources.
venv=$PWD/build/venv/bin/python

# Most of the tests mostly wait, so more of them run at a time than there are processors.
jobs=$((2 * $(nproc)))

build() {
  local preset=$1
  shift
  local bench=OFF
  if [ "$preset" = dev ]; then bench=ON; fi
  cmake --preset "$preset" -DPython3_EXECUTABLE="$venv" -DALLOWD_TESTS=ON -DALLOWD_BENCH="$bench" -DCMAKE_INSTALL_PREFIX=/usr
  cmake --build --preset "$preset" "$@"
}

for step in "${steps[@]}"; do
  echo "== $step"
  case "$step" in
    dev)
      build dev
      ctest --preset dev -j"$jobs"
      ;;
    # A sanitizer slows the agent several times over: fewer random histories, nothing that is Python alone, and of the
    # faults only the proxy's.
    asan)
      build asan
      PROPERTY_STEPS="${PROPERTY_STEPS:-20000}" ALLOWD_HISTORIES="${ALLOWD_HISTORIES:-800}" ctest --preset asan -j"$jobs" \
        -E '^(python_client|property_judge|property_oracle|e2e_check|chaos_[^p].*)$'
      ;;
    tsan)
      threaded=(loop tls redis_link)
      build tsan --target allowd allowctl "${threaded[@]/#/test_}"
      ctest --preset tsan -j"$jobs" -R '^(loop|tls|redis_link|e2e_tls|e2e_redis_names|e2e_redis_sign_in|chaos_proxy_tls)$'
      ;;
    fuzz) tests/fuzz/run.sh "${FUZZ_SECONDS:-60}" ;;
    format) git ls-files '*.cc' '*.h' | xargs clang-format-14 --dry-run --Werror ;;
    install) tests/install_test.sh dev ;;
    package) tests/install_test.sh release ;;
    *)
      echo "no such step: $step" >&2
      exit 2
      ;;
  esac
done
