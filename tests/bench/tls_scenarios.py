# SPDX-License-Identifier: MIT
"""What TLS to Redis costs: an agent that speaks it against one that does not, on the same Redis."""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import wire
from load import alternate, middle_ratio
from redis_sides import Side, check_sources, measured, together, wait_for_store
from scenario import Figure, Options, Result, column, say_round
from servers import BenchError, Stage, free_port

_LIMIT = '[limits.bench]\nrate = "1000000/s"\nburst = 1000000'
_LOAD = ("--connections", "64", "--depth", "16", "--keys", "10000")
_SLICES = 4
_RATE_AT_LEAST = 1 / 1.5


def redis_tls_64x16(options: Options) -> Result:
    rounds: list[dict[str, Any]] = []
    with Stage(options.bin_directory) as stage:
        cert, key = _certificate(stage.directory)
        tls_port = free_port()
        files = ("--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert))
        port = stage.start_redis("--tls-port", str(tls_port), "--tls-auth-clients", "no", *files)
        lines = f'url = "rediss://127.0.0.1:{tls_port}"\n[redis.tls]\nca_file = "{cert}"\n'
        plain_agent = stage.start_agent(_LIMIT, redis_port=port)
        tls_agent = stage.start_agent(_LIMIT, redis_lines=lines)
        for agent in (plain_agent, tls_agent):
            wait_for_store(stage, agent)
            stage.load(agent, *_LOAD, "--count", "20000")
        slice_options = ("--seconds", str(options.seconds / _SLICES), "--warmup", "0.1")
        with wire.RedisClient(port) as redis:
            for number in range(1, options.rounds + 1):
                plain_slices, tls_slices = alternate(
                    _SLICES,
                    partial(measured, redis, plain_agent, partial(stage.load, plain_agent, *_LOAD, *slice_options)),
                    partial(measured, redis, tls_agent, partial(stage.load, tls_agent, *_LOAD, *slice_options)),
                )
                plain, tls = together(plain_slices), together(tls_slices)
                check_sources(plain.load)
                check_sources(tls.load)
                say_round(number, _describe("plain", plain), _describe("TLS", tls))
                plain_loads, tls_loads = [part.load for part in plain_slices], [part.load for part in tls_slices]
                rounds.append(
                    {
                        "plain": asdict(plain),
                        "tls": asdict(tls),
                        "rate_ratio": middle_ratio(tls_loads, plain_loads, "rate"),
                        "redis_cpu_ratio": tls.redis_cpu_us / plain.redis_cpu_us,
                        "agent_cpu_ratio": tls.agent_cpu_us / plain.agent_cpu_us,
                    }
                )
    return Result(
        [
            Figure("decisions per second, TLS / plain", column(rounds, "rate_ratio"), at_least=_RATE_AT_LEAST),
            Figure("Redis CPU per decision, TLS / plain", column(rounds, "redis_cpu_ratio")),
            Figure("agent's CPU per query, TLS / plain", column(rounds, "agent_cpu_ratio")),
        ],
        rounds,
    )


def _certificate(directory: Path) -> tuple[Path, Path]:
    """One that vouches for itself."""
    cert, key = directory / "redis.pem", directory / "redis.key"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    about = ["-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    done = subprocess.run(["openssl", "req", *kind, *about], capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"openssl made no certificate: {done.stderr}")
    return cert, key


def _describe(name: str, side: Side) -> str:
    return f"{name} {side.load.rate:,.0f}/s, p50 {side.load.p50_us:,.0f}, agent CPU {side.agent_cpu_us:.2f} us"
