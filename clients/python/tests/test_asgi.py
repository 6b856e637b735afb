# SPDX-License-Identifier: MIT
"""The middleware by itself, with a client that answers as the test says. No server, no framework."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest
from fake_agent import LIMITED, OK

import allowd
import allowd.aio
from allowd.asgi import RateLimitMiddleware, by_address, by_path
from allowd.decision import allowed_by_policy, refused_by_policy

ALLOWED = allowd.Decision(*OK)
REFUSED = allowd.Decision(*LIMITED)
NEVER = allowd.Decision(False, 10, 0, -1, 0, "never", "local", "", 1000000, 100000)
SHADOW = allowd.Decision(True, 10, 0, 100000, 1000000, "shadow", "local", "", 1000000, 100000)


class FakeClient:
    def __init__(self, *decisions) -> None:
        self.decisions = list(decisions) or [ALLOWED]
        self.asked = []
        self.options = []

    async def allow(self, limit, key, cost, **options):
        self.asked.append((limit, key, cost))
        self.options.append(options)
        answer = self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Handler:
    """The innermost application: answers 200, and keeps the scopes it saw."""

    def __init__(self, headers=()) -> None:
        self.scopes = []
        self.headers = list(headers)

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})


def http(path="/", method="GET", client=("192.0.2.7", 1234), **more):
    return {"type": "http", "method": method, "path": path, "headers": [], "client": client, **more}


def request(app, scope):
    """The messages that the application sends."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request"}

    asyncio.run(app(scope, receive, send))
    return sent


def headers_of(sent):
    return [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]


def limited(app=None, client=None, **options):
    options.setdefault("limit", "api")
    return RateLimitMiddleware(app or Handler(), client=client or FakeClient(), **options)


def test_an_allowed_request_is_handled_and_told_its_limit():
    handler, client = Handler([(b"x-own", b"1")]), FakeClient()
    sent = request(limited(handler, client), http())
    assert client.asked == [("api", "192.0.2.7", 1)]
    assert [message.get("body") for message in sent] == [None, b"one", b"two"]
    assert headers_of(sent) == [
        ("x-own", "1"),
        ("ratelimit-policy", '"api";q=10;w=1'),
        ("ratelimit", '"api";r=9;t=1'),
    ]
    assert handler.headers == [(b"x-own", b"1")]  # a list that the application may use again


def test_a_refused_request_is_not_handled():
    handler = Handler()
    sent = request(limited(handler, FakeClient(REFUSED)), http())
    assert handler.scopes == []
    assert sent[0]["status"] == 429
    headers = dict(headers_of(sent))
    assert headers["retry-after"] == "1"
    assert headers["ratelimit"] == '"api";r=0;t=1'
    assert json.loads(sent[1]["body"])["violated-policies"] == ["api"]
    assert int(headers["content-length"]) == len(sent[1]["body"])


def test_never_has_no_retry_after():
    sent = request(limited(client=FakeClient(NEVER)), http())
    assert sent[0]["status"] == 429
    assert "retry-after" not in dict(headers_of(sent))


def test_the_answer_to_HEAD_has_no_body():
    sent = request(limited(client=FakeClient(REFUSED)), http(method="HEAD"))
    assert sent[1]["body"] == b""


def test_in_shadow_nothing_is_refused():
    handler = Handler()
    assert request(limited(handler, FakeClient(SHADOW)), http())[0]["status"] == 200
    assert len(handler.scopes) == 1


def test_open_passes_without_numbers_that_nobody_knows():
    sent = request(limited(client=FakeClient(allowed_by_policy()), headers="both"), http())
    assert (sent[0]["status"], headers_of(sent)) == (200, [])


def test_closed_is_unavailable():
    handler = Handler()
    sent = request(limited(handler, FakeClient(refused_by_policy(250_000))), http())
    assert (sent[0]["status"], dict(headers_of(sent))["retry-after"]) == (503, "1")
    assert handler.scopes == []


def test_a_mistake_of_the_configuration_is_raised():
    handler = Handler()
    with pytest.raises(allowd.AgentError):
        request(limited(handler, FakeClient(allowd.AgentError("unknown_limit", "no such limit"))), http())
    assert handler.scopes == []


@pytest.mark.parametrize("scope", [{"type": "websocket"}, {"type": "lifespan"}, http(method="OPTIONS")])
def test_what_is_not_limited_passes_untouched(scope):
    seen = []

    async def app(*arguments):
        seen.extend(arguments)

    async def receive():
        raise AssertionError

    async def send(message):
        raise AssertionError

    client, before = FakeClient(), dict(scope)
    asyncio.run(limited(app, client)(scope, receive, send))
    assert seen[0] is scope and seen[1] is receive and seen[2] is send
    assert scope == before
    assert client.asked == []


@pytest.mark.parametrize("headers", ["draft", "legacy", "both", "off"])
def test_headers_are_a_choice(headers):
    names = [name for name, _ in headers_of(request(limited(headers=headers), http()))]
    draft = ["ratelimit-policy", "ratelimit"]
    legacy = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
    assert names == {"draft": draft, "legacy": legacy, "both": draft + legacy, "off": []}[headers]


# -- Limit, key and cost


def test_limit_key_and_cost_may_depend_on_the_request():
    async def key(scope):
        return scope["user"]

    client = FakeClient()
    limit = {"name": "checkout", "rate": "100/s"}
    app = limited(client=client, limit=lambda scope: limit, key=key, cost=lambda scope: len(scope["path"]))
    request(app, http("/12", user="u1"))
    assert client.asked == [(limit, "u1", 3)]


@pytest.mark.parametrize("options", [{"limit": lambda scope: None}, {"key": lambda scope: None}])
def test_no_limit_or_no_key_is_not_limited(options):
    client = FakeClient()
    sent = request(limited(client=client, **options), http())
    assert (sent[0]["status"], headers_of(sent), client.asked) == (200, [], [])


@pytest.mark.parametrize(
    "scope, options",
    [
        (http(client=None), {}),
        (http(client=("", 0)), {}),
        ({"type": "http", "method": "GET", "path": "/"}, {}),
        (http(), {"key": lambda scope: ""}),
        (http(), {"key": lambda scope: b""}),
    ],
)
def test_who_is_not_known_shares_one_key(scope, options):
    client = FakeClient()
    request(limited(client=client, **options), scope)
    assert client.asked == [("api", "unknown", 1)]


def test_a_long_key_is_sent_as_its_hash():
    client = FakeClient()
    for key in ("k" * 1024, "ü" * 1024, b"k" * 1025):
        request(limited(client=client, key=lambda scope: key), http())
    digests = [hashlib.sha256(long).hexdigest() for long in ("ü".encode() * 1024, b"k" * 1025)]
    assert [key for _, key, _ in client.asked] == ["k" * 1024, *[f"sha256:{digest}" for digest in digests]]


def test_a_key_of_another_type_is_refused():
    with pytest.raises(TypeError, match="key must be"):
        request(
            RateLimitMiddleware(
                Handler(), limit="api", client=allowd.aio.AsyncClient("/nowhere"), key=lambda _: 0
            ),
            http(),
        )


def test_an_address_is_cut_to_its_network_and_forwarded_headers_are_not_read():
    scope = http(client=("2001:db8:1:2:3::4", 1), headers=[(b"x-forwarded-for", b"203.0.113.9")])
    assert by_address()(scope) == "2001:db8:1:2::/64"
    assert by_address(ipv6_prefix=48)(scope) == "2001:db8:1::/48"
    with pytest.raises(ValueError):
        by_address(ipv6_prefix=0)


def test_timeout_and_policy_are_passed_on():
    client = FakeClient()
    request(limited(client=client, timeout=0.01, fail="closed"), http())
    assert client.options == [{"timeout": 0.01, "fail": "closed"}]


@pytest.mark.parametrize("options", [{"headers": "all"}, {"fail": "maybe"}, {"timeout": 0}, {"limit": 5}])
def test_options_without_sense_are_refused_at_once(options):
    with pytest.raises((TypeError, ValueError)):
        limited(**options)


# -- Paths


ROUTES = by_path(
    {
        "POST /login": "login",
        "/users/{id}": "user",
        "/users/{id}/files/*": "files",
        "GET /health": None,
        "/": "front",
    },
    default="api",
)


@pytest.mark.parametrize(
    "method, path, limit",
    [
        ("POST", "/login", "login"),
        ("POST", "/login/", "login"),
        ("GET", "/login", "api"),
        ("POST", "/login/x", "api"),
        ("POST", "/Login", "api"),
        ("PUT", "/users/5", "user"),
        ("GET", "/users", "api"),
        ("GET", "/users/5/files", "files"),
        ("GET", "/users/5/files/a/b", "files"),
        ("GET", "/users/5/other", "api"),
        ("GET", "/health", None),
        ("HEAD", "/health", None),
        ("POST", "/health", "api"),
        ("GET", "/", "front"),
        ("GET", "", "front"),
        ("GET", "/x", "api"),
    ],
)
def test_the_first_pattern_that_fits_names_the_limit(method, path, limit):
    assert ROUTES(http(path, method)) == limit


@pytest.mark.parametrize(
    "path, root_path, limit",
    [
        ("/v1/login", "/v1", "login"),
        ("/v1/login", "/v1/", "login"),
        ("/login", "/v1", "login"),
        ("/v1", "/v1", "front"),
        ("/v1x/login", "/v1", "api"),
    ],
)
def test_paths_are_relative_to_where_the_application_is_mounted(path, root_path, limit):
    assert ROUTES(http(path, "POST", root_path=root_path)) == limit


@pytest.mark.parametrize("pattern", ["login", "", "POST login", "PO ST /login"])
def test_a_pattern_without_sense_is_refused(pattern):
    with pytest.raises(ValueError):
        by_path({pattern: "login"})


# -- Nesting


def test_the_same_question_is_asked_once_for_a_request():
    handler, client = Handler(), FakeClient()
    app = limited(limited(handler, client), client)
    sent = request(app, http())
    assert client.asked == [("api", "192.0.2.7", 1)]
    assert [name for name, _ in headers_of(sent)].count("ratelimit") == 1
    request(app, http())
    assert len(client.asked) == 2


def test_it_is_asked_once_though_a_middleware_between_copies_the_scope():
    client = FakeClient()
    inner = limited(client=client)

    async def copying(scope, receive, send):
        await inner(dict(scope), receive, send)

    request(limited(copying, client), http())
    assert len(client.asked) == 1


def test_another_limit_or_another_key_is_another_question():
    client = FakeClient()
    app = limited(limited(limited(client=client), client, key=lambda _: "u1"), client, limit="burst")
    sent = request(app, http())
    assert client.asked == [("burst", "192.0.2.7", 1), ("api", "u1", 1), ("api", "192.0.2.7", 1)]
    policies = [value for name, value in headers_of(sent) if name == "ratelimit-policy"]
    assert policies == ['"api";q=10;w=1', '"api";q=10;w=1', '"burst";q=10;w=1']


def test_an_inline_limit_is_another_than_the_configured_one_of_its_name():
    client = FakeClient()
    request(limited(limited(client=client), client, limit={"name": "api", "rate": "1/s"}), http())
    assert len(client.asked) == 2


def test_of_the_older_fields_the_inner_ones_remain():
    client = FakeClient(ALLOWED, allowd.Decision(*OK[:2], 3, *OK[3:]))
    app = limited(limited(client=client, limit="inner", headers="legacy"), client, headers="legacy")
    values = [value for name, value in headers_of(request(app, http())) if name == "x-ratelimit-remaining"]
    assert values == ["3"]


def test_the_first_that_refuses_answers():
    handler, client = Handler(), FakeClient(ALLOWED, REFUSED)
    sent = request(limited(limited(handler, client, limit="inner"), client), http())
    assert (sent[0]["status"], handler.scopes) == (429, [])
    assert json.loads(sent[1]["body"])["violated-policies"] == ["inner"]
    assert [value for name, value in headers_of(sent) if name == "ratelimit"] == [
        '"inner";r=0;t=1',
        '"api";r=9;t=1',
    ]


# -- The application


def test_the_handler_finds_the_decisions_by_name():
    handler = Handler()
    request(limited(limited(handler, FakeClient(SHADOW), limit={"name": "x", "rate": "1/s"})), http())
    assert handler.scopes[0]["allowd"] == {"api": ALLOWED, "x": SHADOW}


def test_an_exception_of_the_handler_passes():
    class Broken(Exception):
        pass

    async def app(scope, receive, send):
        raise Broken

    with pytest.raises(Broken):
        request(limited(app), http())


async def teapot(scope, receive, send):
    await send({"type": "http.response.start", "status": 418, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_another_answer_may_be_given_and_keeps_the_fields():
    seen = []

    def on_limited(scope, decision):
        seen.append((scope["path"], decision))
        return teapot

    sent = request(limited(client=FakeClient(REFUSED), on_limited=on_limited), http("/a"))
    assert seen == [("/a", REFUSED)]
    assert sent[0]["status"] == 418
    assert headers_of(sent) == [
        ("content-length", "0"),
        ("ratelimit-policy", '"api";q=10;w=1'),
        ("ratelimit", '"api";r=0;t=1'),
        ("retry-after", "1"),
    ]


def test_another_answer_is_for_what_is_refused_alone_and_may_be_declined():
    async def decline(scope, decision):
        return None

    assert request(limited(on_limited=lambda *_: teapot), http())[0]["status"] == 200
    sent = request(limited(client=FakeClient(REFUSED), on_limited=decline), http())
    assert sent[0]["status"] == 429
