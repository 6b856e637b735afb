# SPDX-License-Identifier: MIT
"""CONFIG.md against the code: what is documented exists with the default stated, and what exists is documented."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from certificates import Authority

ROOT = Path(__file__).resolve().parents[2]
ALLOWD = Path(os.environ.get("ALLOWD_BIN_DIR") or ROOT / "build/dev/bin") / "allowd"

# Values that differ from the defaults, so that `check` prints every key.
EVERYTHING = """
[agent]
socket = "/tmp/a.sock"
socket_mode = "0600"
socket_group = "nogroup"
admin_socket = "/tmp/b.sock"
max_connections = 7
max_keys = 8
deadline = "9ms"
shadow = true
[redis]
url = "redis://u@h:1/2"
password_file = "/f"
prefix = "p"
reconnect_max = "3s"
max_connection_age = "1h"
clock = "redis"
[prefilter]
trust = "3s"
hold = "2s"
[limits.NAME]
rate = "5/10s"
burst = 6
algorithm = "token_bucket"
on_failure = "deny"
deadline = "4ms"
scope = "host"
refund = true
shadow = true
overrides = { "k*" = { deny = true } }
plans = { p = { rate = "6/10s" } }
max_new_keys_per_second = 7
overflow = { rate = "8/10s", burst = 9 }
[limits.leased]
rate = "5/10s"
lease = "10%"
on_failure = "local"
local_share = 3
[limits.split]
rate = "5/10s"
split = 2
[limits.window]
rate = "5/10s"
algorithm = "fixed_window"
align = "clock"
[limits.tiered]
tiers = [ { name = "t", rate = "5/s" } ]
"""


# What cannot stand beside some of that.
OTHERWISE = """
[redis]
shards = [ { name = "s", url = "rediss://u:p@h:1/2" } ]
[redis.tls]
ca_file = "CERT"
cert_file = "CERT"
key_file = "KEY"
server_name = "n"
verify = false
"""
CLUSTER = """
[redis]
cluster = [ "redis://u:p@h:1" ]
"""

SENTINEL = """
[redis]
sentinel = { master = "m", nodes = [ "redis://u:p@h" ] }
"""


def documented() -> dict[str, dict[str, str]]:
    """{section: {key: the default's cell}} from CONFIG.md's tables."""
    sections: dict[str, dict[str, str]] = {}
    keys: dict[str, str] = {}
    for line in (ROOT / "agent/CONFIG.md").read_text().splitlines():
        if heading := re.match(r"## \[(.+)\]", line):
            keys = sections.setdefault(heading[1], {})
        elif line.startswith("## "):
            keys = {}  # what follows are no options
        elif row := re.match(r"\| `(\w+)` \| [^|]+ \| ([^|]+) \|", line):
            keys[row[1]] = row[2].strip()
    return sections


def check(tmp_path: Path, text: str) -> dict[str, Any]:
    config = tmp_path / "allowd.toml"
    config.write_text(text)
    result = subprocess.run([ALLOWD, "check", "--config", config], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return tomllib.loads(result.stdout)


def test_every_key_that_the_agent_has_is_documented_and_the_reverse(tmp_path: Path) -> None:
    effective = check(tmp_path, EVERYTHING)
    certificate = Authority(tmp_path).issue()
    otherwise = check(tmp_path, OTHERWISE.replace("CERT", str(certificate.cert)).replace("KEY", str(certificate.key)))
    tls = otherwise["redis"].pop("tls")
    reference = documented()
    assert set(effective["agent"]) == set(reference["agent"])
    others = [set(check(tmp_path, text)["redis"]) for text in (CLUSTER, SENTINEL)]
    assert set(effective["redis"]).union(otherwise["redis"], *others) == set(reference["redis"])
    assert set(tls) == set(reference["redis.tls"])
    assert set(effective["prefilter"]) == set(reference["prefilter"])
    assert set().union(*effective["limits"].values()) == set(reference["limits.NAME"])


def test_the_documented_defaults_are_the_agents(tmp_path: Path) -> None:
    tls = f'[redis]\nurl = "rediss://h"\n[redis.tls]\nca_file = "{Authority(tmp_path).cert}"\n'
    effective = check(tmp_path, tls + '[limits.NAME]\nrate = "5/s"\n')
    tables = {name: effective[name] for name in ("agent", "redis", "prefilter")}
    tables["redis.tls"] = effective["redis"].pop("tls")
    tables["limits.NAME"] = effective["limits"]["NAME"]
    compared = 0
    for section, keys in documented().items():
        for key, default in keys.items():
            if default.startswith("`") and default.count("`") == 2 and not default.startswith("`["):
                assert tables[section][key] == tomllib.loads(f"value = {default.strip('`')}")["value"], (section, key)
                compared += 1
    assert compared >= 8


def test_a_key_that_is_not_documented_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "allowd.toml"
    config.write_text("[agent]\nmax_conections = 5\n")
    result = subprocess.run([ALLOWD, "check", "--config", config], capture_output=True, text=True)
    assert result.returncode != 0
    assert f"{config}:2: agent.max_conections: unknown key; did you mean max_connections?" in result.stderr
