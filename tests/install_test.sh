#!/usr/bin/env bash
# Builds a preset, installs it below a temporary directory as a packager would, and asks the installed agent:
# tests/install_test.sh [PRESET, dev unless given]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-dev}

root=$(mktemp -d)
agent=
trap '[ -z "$agent" ] || kill "$agent" 2>/dev/null || true; rm -rf "$root"' EXIT
cmake --preset "$preset" -DCMAKE_INSTALL_PREFIX=/usr
cmake --build --preset "$preset" --target allowd allowctl
DESTDIR=$root cmake --install "build/$preset" >/dev/null
for file in usr/sbin/allowd usr/bin/allowctl usr/lib/systemd/system/allowd.service usr/lib/sysusers.d/allowd.conf; do
  [ -f "$root/$file" ] || { echo "not installed: $file" >&2; exit 1; }
done
sample=$(find "$root" -name allowd.toml)
"$root/usr/sbin/allowd" check --config "$sample" >/dev/null
if command -v systemd-analyze >/dev/null; then
  systemd-analyze security --offline=true --threshold=20 "$root/usr/lib/systemd/system/allowd.service" | tail -1
fi
sed "s|^socket = .*|socket = \"$root/allowd.sock\"|" "$sample" >"$root/test.toml"
"$root/usr/sbin/allowd" --config "$root/test.toml" 2>"$root/log" &
agent=$!
export ALLOWD_SOCKET=$root/allowd.sock
for _ in $(seq 100); do
  if "$root/usr/bin/allowctl" ping >/dev/null 2>&1; then break; fi
  sleep 0.05
done
"$root/usr/bin/allowctl" allow login user-1
kill "$agent"
wait "$agent"
agent=
echo "installed agent answered and stopped cleanly"
