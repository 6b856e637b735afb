#!/usr/bin/env bash
# From a bare Debian 12 to a running agent: installs what is missing, builds, starts the agent on a socket inside the
# build directory, and asks it. Run it as often as you like; it stops the agent that it started before.
set -euo pipefail
cd "$(dirname "$0")/.."

.ci/deps
cmake --preset release -DALLOWD_TESTS=OFF -DALLOWD_BENCH=OFF
cmake --build --preset release --target allowd allowctl

bin=$PWD/build/release/bin
dir=$PWD/build/quickstart
mkdir -p "$dir"
if [ -f "$dir/pid" ]; then
  old=$(cat "$dir/pid")
  # Only the agent that we started: process ids are used again.
  if [ "$(readlink "/proc/$old/exe" 2>/dev/null || true)" = "$bin/allowd" ]; then
    kill "$old"
    while kill -0 "$old" 2>/dev/null; do sleep 0.1; done
  fi
fi

cat >"$dir/allowd.toml" <<END
[agent]
socket = "$dir/allowd.sock"

[limits.api]
rate = "100/s"
burst = 200
END
setsid "$bin/allowd" --config "$dir/allowd.toml" </dev/null >"$dir/log" 2>&1 &
pid=$!
echo "$pid" >"$dir/pid"
export ALLOWD_SOCKET=$dir/allowd.sock
for _ in $(seq 100); do
  if "$bin/allowctl" ping >/dev/null 2>&1; then break; fi
  sleep 0.05
done

show() {
  echo "\$ allowctl $*"
  "$bin/allowctl" "$@" || true
}
echo
show ping
show allow api tenant-42
for _ in 1 2 3 4; do show allow login user-1 --rate 3/min; done
show stats

cat <<END

The agent is running as process $pid. Ask it yourself:
  export ALLOWD_SOCKET=$dir/allowd.sock PATH=$bin:\$PATH
  allowctl allow api tenant-42
Stop it with: kill $pid
END
