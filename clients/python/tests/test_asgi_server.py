# SPDX-License-Identifier: MIT
"""The middleware in FastAPI and Starlette applications, served by uvicorn, asking the real agent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest
from asgi_apps import Handlers, closing, fastapi_app, served, starlette_app
from fake_agent import PATIENCE
from real_agent import RealAgent, needs_the_daemon

from allowd import Client
from allowd.aio import AsyncClient
from allowd.asgi import RateLimitMiddleware, by_path

http_sfv = pytest.importorskip("http_sfv")
httpx = pytest.importorskip("httpx")

from starlette.applications import Starlette  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.responses import PlainTextResponse  # noqa: E402
from starlette.routing import Mount, Route  # noqa: E402

pytestmark = needs_the_daemon

LIMITS = """
[limits.api]
rate = "1/day"
burst = 3

[limits.login]
rate = "1/hour"
burst = 2

[limits.fast]
rate = "2/s"
burst = 2

[limits.many]
rate = "1/day"
burst = 50

[limits.watched]
rate = "1/day"
burst = 1
shadow = true
"""
DAY = 86_400


@pytest.fixture
def daemon(tmp_path):
    with RealAgent(tmp_path, LIMITS) as agent:
        yield agent


@pytest.fixture(params=[fastapi_app, starlette_app], ids=["fastapi", "starlette"])
def serve(request, daemon):
    """Serves the application with these options of the middleware."""
    with contextlib.ExitStack() as stack:

        def start(fail="closed", timeout=PATIENCE, server_options=None, **options):
            # Fails closed, so that a decision which the agent did not make is never taken for "allowed".
            client = AsyncClient(daemon.path, timeout=timeout, fail=fail)
            handlers = Handlers()
            app = request.param(handlers, client, **options)
            http = stack.enter_context(served(app, **(server_options or {})))
            http.handlers = handlers
            return http

        yield start


def field(response, name):
    """The only item of a list field, as its value and its parameters."""
    parsed = http_sfv.List()
    parsed.parse(response.headers[name].encode("ascii"))
    [item] = parsed
    return item.value, dict(item.params)


def test_a_burst_passes_and_the_next_is_refused(serve):
    http = serve(limit="api")
    for remaining in (2, 1, 0):
        response = http.get("/")
        assert (response.status_code, response.json()) == (200, {"text": "hello"})
        assert field(response, "RateLimit-Policy") == ("api", {"q": 3, "w": 3 * DAY})
        name, parameters = field(response, "RateLimit")
        assert (name, parameters["r"]) == ("api", remaining)
        assert DAY - PATIENCE < parameters["t"] <= DAY
        assert "Retry-After" not in response.headers

    response = http.get("/")
    assert response.status_code == 429
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.json()["type"].endswith("#quota-exceeded")
    assert response.json()["violated-policies"] == ["api"]
    assert field(response, "RateLimit")[1]["r"] == 0
    assert DAY - PATIENCE < int(response.headers["Retry-After"]) <= DAY
    assert int(response.headers["Retry-After"]) >= field(response, "RateLimit")[1]["t"]
    assert http.handlers.handled == 3


def test_who_waits_for_retry_after_passes(serve):
    http = serve(limit="fast")
    response = http.get("/")
    while response.status_code == 200:
        response = http.get("/")
    assert response.headers["Retry-After"] == "1"
    time.sleep(1)
    assert http.get("/").status_code == 200


def test_a_cost_that_never_passes_says_no_time(serve):
    http = serve(limit="api", cost=4)
    response = http.get("/")
    assert response.status_code == 429
    assert "Retry-After" not in response.headers
    assert field(response, "RateLimit")[1]["r"] == 3
    assert field(response, "RateLimit-Policy")[1]["q"] == 3


def test_in_shadow_a_request_passes_with_the_numbers_of_its_refusal(serve, daemon):
    http = serve(limit="watched")
    for _ in range(3):
        response = http.get("/")
        assert (response.status_code, response.json()) == (200, {"text": "hello"})
        assert field(response, "RateLimit-Policy") == ("watched", {"q": 1, "w": DAY})
        name, parameters = field(response, "RateLimit")
        assert (name, parameters["r"]) == ("watched", 0)
        assert DAY - PATIENCE < parameters["t"] <= DAY
        assert "Retry-After" not in response.headers
    assert http.handlers.handled == 3
    with Client(daemon.path, timeout=PATIENCE) as client:
        assert client.stats()["decisions"]["watched"] == {"ok/local": 1, "shadow/local": 2}


def test_the_older_fields(serve):
    headers = serve(limit="api", headers="legacy").get("/").headers
    assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("3", "2")
    assert DAY - PATIENCE < int(headers["X-RateLimit-Reset"]) <= DAY
    assert "RateLimit" not in headers


def test_two_routes_have_two_limits_and_others_none(serve):
    http = serve(limit=by_path({"POST /login": "login", "/users/{user}": "api"}))
    assert [http.post("/login").status_code for _ in range(3)] == [200, 200, 429]
    assert [http.get("/users/7").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert http.get("/users/8").status_code == 429
    for _ in range(5):
        response = http.get("/")
        assert response.status_code == 200
        assert "RateLimit" not in response.headers


def test_an_inline_limit(serve):
    http = serve(limit={"name": "pages", "rate": "1/day", "burst": 1})
    assert [http.get("/").status_code for _ in range(2)] == [200, 429]
    assert field(http.get("/"), "RateLimit-Policy") == ("pages", {"q": 1, "w": DAY})


def test_the_handler_sees_the_decision(serve):
    http = serve(limit="api")
    assert [http.get("/users/7").json() for _ in range(2)] == [{"remaining": 2}, {"remaining": 1}]


def test_OPTIONS_passes_without_asking(serve):
    http = serve(limit="api")
    for _ in range(5):
        response = http.options("/")
        assert response.status_code != 429
        assert "RateLimit" not in response.headers
    assert field(http.get("/"), "RateLimit")[1]["r"] == 2


def user_of(scope):
    """An application's own identity: the header X-User, None for staff."""
    user = dict(scope["headers"]).get(b"x-user", b"").decode()
    return None if user == "staff" else user


def test_keys_are_counted_apart_None_is_not_counted_and_the_unknown_share_one(serve):
    http = serve(limit="login", key=user_of)

    def statuses(user, times=3):
        return [http.get("/", headers={"X-User": user}).status_code for _ in range(times)]

    assert statuses("alice") == [200, 200, 429]
    assert statuses("bob") == [200, 200, 429]
    assert statuses("staff", 5) == [200] * 5
    assert [http.get("/").status_code, http.get("/").status_code] == [200, 200]
    assert statuses("") == [429, 429, 429]
    assert statuses("unknown", 1) == [429]


def test_a_forwarded_address_counts_if_the_server_trusts_who_forwards_it(serve):
    def statuses(http):
        return [http.get("/", headers={"X-Forwarded-For": f"203.0.113.{i}"}).status_code for i in range(4)]

    trusting = serve(limit="api", server_options={"proxy_headers": True, "forwarded_allow_ips": "127.0.0.1"})
    assert statuses(trusting) == [200] * 4
    assert statuses(serve(limit="api", server_options={"proxy_headers": False})) == [200, 200, 200, 429]


def test_a_mistake_of_the_configuration_is_an_error_and_not_a_pass(serve):
    http = serve(limit="no-such-limit")
    assert http.get("/").status_code == 500
    assert http.handlers.handled == 0


def test_another_answer_of_the_application(serve):
    def sorry(scope, decision):
        return PlainTextResponse(f"sorry, {decision.verdict}", 420)

    http = serve(limit={"name": "one", "rate": "1/day"}, on_limited=sorry)
    assert http.get("/").status_code == 200
    response = http.get("/")
    assert (response.status_code, response.text) == (420, "sorry, limited")
    assert field(response, "RateLimit")[1]["r"] == 0
    assert int(response.headers["Retry-After"]) > 1


def test_a_stream_passes_piece_by_piece(serve):
    http = serve(limit="api")
    with http.stream("GET", "/stream") as response:
        assert field(response, "RateLimit")[1]["r"] == 2
        pieces = response.iter_raw()
        assert next(pieces) == b"first"
        http.handlers.released.set()
        assert list(pieces) == [b"second"]


def test_a_broken_handler_is_an_error_of_the_server_and_charged(serve):
    http = serve(limit="api")
    # The server closes a connection whose handler failed, so that the next request must not find it open.
    assert http.get("/broken", headers={"Connection": "close"}).status_code == 500
    assert field(http.get("/"), "RateLimit")[1]["r"] == 1


def test_requests_at_once_share_one_budget_exactly(serve):
    http = serve(limit="many")

    async def main():
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(
            base_url=http.base_url, timeout=PATIENCE, limits=limits, trust_env=False
        ) as many:
            return await asyncio.gather(*[many.get("/") for _ in range(200)])

    responses = asyncio.run(main())
    passed = [response for response in responses if response.status_code == 200]
    assert len(passed) == http.handlers.handled == 50
    assert sorted(field(response, "RateLimit")[1]["r"] for response in passed) == list(range(50))
    assert {response.status_code for response in responses} == {200, 429}


# -- Without an agent


def test_without_an_agent_open_passes_and_says_nothing(serve, daemon):
    http = serve(limit="api", fail="open", headers="both")
    assert "RateLimit" in http.get("/").headers
    daemon.kill()
    for _ in range(5):
        response = http.get("/")
        assert response.status_code == 200
        assert not [name for name in response.headers if "ratelimit" in name]


def test_without_an_agent_closed_is_unavailable(serve, daemon):
    http = serve(limit="api", fail="closed")
    daemon.kill()
    response = http.get("/")
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert response.headers["Content-Type"] == "application/problem+json"
    assert not [name for name in response.headers if "ratelimit" in name]
    assert http.handlers.handled == 0


@pytest.mark.parametrize("fail, meanwhile", [("open", 200), ("closed", 503)])
def test_an_agent_killed_and_started_again_under_requests(serve, daemon, fail, meanwhile):
    http = serve(limit={"name": "plenty", "rate": "100000/s"}, fail=fail)
    url = f"{http.base_url}/"
    seen, stop = [], threading.Event()

    def ask():
        with httpx.Client(timeout=PATIENCE, trust_env=False) as own:
            while not stop.is_set():
                response = own.get(url)
                seen.append((response.status_code, "RateLimit" in response.headers))

    def wait_for(answer):
        start, give_up = len(seen), time.monotonic() + PATIENCE
        while answer not in seen[start:]:
            assert time.monotonic() < give_up, f"no {answer}"
            time.sleep(0.01)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            wait_for((200, True))
            daemon.kill()
            wait_for((meanwhile, False))
            daemon.start()
        wait_for((200, True))
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert set(seen) == {(200, True), (meanwhile, False)}


# -- Where it stands


def test_of_mounted_applications_each_has_its_limit(daemon):
    async def hello(request):
        return PlainTextResponse("hello")

    client = AsyncClient(daemon.path, timeout=PATIENCE, fail="closed")

    def limited(limit):
        return [Middleware(RateLimitMiddleware, limit=limit, client=client)]

    app = Starlette(
        routes=[
            Mount("/v1", routes=[Route("/a", hello), Route("/b", hello)], middleware=limited("api")),
            Mount("/v2", routes=[Route("/a", hello)], middleware=limited(by_path({"/a": "login"}))),
            Route("/c", hello, middleware=limited("fast")),
            Route("/free", hello),
        ],
        lifespan=closing(client),
    )
    with served(app) as http:
        assert field(http.get("/v1/a"), "RateLimit")[0] == "api"
        assert field(http.get("/v1/b"), "RateLimit")[1]["r"] == 1
        assert field(http.get("/v2/a"), "RateLimit")[0] == "login"
        assert field(http.get("/c"), "RateLimit")[0] == "fast"
        assert "RateLimit" not in http.get("/free").headers


def test_of_two_middlewares_alike_one_asks(daemon):
    client = AsyncClient(daemon.path, timeout=PATIENCE, fail="closed")
    app = fastapi_app(Handlers(), client, limit="api")
    app.add_middleware(RateLimitMiddleware, client=client, limit="api")
    with served(app) as http:
        response = http.get("/")
        assert response.headers.get_list("RateLimit-Policy") == [f'"api";q=3;w={3 * DAY}']
        assert field(http.get("/"), "RateLimit")[1]["r"] == 1


README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_of_the_readme(daemon, monkeypatch):
    monkeypatch.setenv("ALLOWD_SOCKET", daemon.path)
    [example] = [
        block.partition("```")[0]
        for block in README.read_text("utf-8").split("```python\n")
        if "FastAPI(" in block.partition("```")[0]
    ]
    # Its default deadline is short for a busy machine.
    example = example.replace("AsyncClient()", f'AsyncClient(timeout={PATIENCE}, fail="closed")')
    module = {"__name__": "example"}
    exec(compile(example, "README.md", "exec"), module)
    with served(module["app"]) as http:
        assert [http.post("/login").status_code for _ in range(3)] == [200, 200, 429]
        assert http.get("/items/7").json() == {"item": 7, "remaining": 2}
        assert "RateLimit" not in http.get("/health").headers
