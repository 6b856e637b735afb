# SPDX-License-Identifier: MIT
"""Limits the requests of an ASGI application: Starlette, FastAPI or any other.

    from allowd.asgi import RateLimitMiddleware

    app.add_middleware(RateLimitMiddleware, limit="api")

What it answers, as every middleware of allowd does, is written in ``clients/README.md``.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import (
    Any,
    Awaitable,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    MutableMapping,
    Optional,
    Set,
    Tuple,
    TypeVar,
    Union,
)

from .address import canonical_address
from .aio import AsyncClient
from .call import Key, Limit, checked_policy, checked_timeout
from .decision import Decision
from .http_answer import HEADER_STYLES, Header, limit_headers, refusal, retry_after

__all__ = ["RateLimitMiddleware", "by_address", "by_path"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")
MaybeAwaitable = Union[T, Awaitable[T]]

UNKNOWN = "unknown"
"""The one key of all requests that have an empty one."""
SCOPE_KEY = "allowd"
"""Where the handler finds the decisions made for its request: ``scope["allowd"]``, by the limit's name."""

_GUARD_KEY = "allowd.asked"
_MAX_KEY_BYTES = 1024


def by_address(ipv6_prefix: int = 64) -> Callable[[Scope], str]:
    """The key is the client's address, an IPv6 one cut to its network; empty where the server knows none.

    It is the peer of the connection, as the server tells it. Behind a proxy let the server tell the
    forwarded one, which only it can trust (uvicorn: ``--proxy-headers --forwarded-allow-ips``).
    """
    if not 0 < ipv6_prefix <= 128:
        raise ValueError(f"ipv6_prefix must be 1 to 128 bits, not {ipv6_prefix}")

    def key(scope: Scope) -> str:
        client = scope.get("client")
        return canonical_address(client[0], ipv6_prefix) if client and client[0] else ""

    return key


def by_path(
    routes: Mapping[str, Optional[Limit]], default: Optional[Limit] = None
) -> Callable[[Scope], Optional[Limit]]:
    """The limit is that of the first pattern that fits the request, else ``default``; None is no limit.

    A pattern is a path, in which ``{name}`` stands for one segment and a last ``/*`` for all that is below,
    with a method before it or for all methods: ``"POST /login"``, ``"/users/{id}"``, ``"/api/*"``. A
    trailing slash makes no difference, and HEAD counts as GET. Paths are relative to where the middleware
    stands (``root_path``).
    """
    patterns = [(_Pattern(pattern), limit) for pattern, limit in routes.items()]

    def limit_of(scope: Scope) -> Optional[Limit]:
        segments = _segments(_path_of(scope))
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        for pattern, limit in patterns:
            if pattern.fits(method, segments):
                return limit
        return default

    return limit_of


class RateLimitMiddleware:
    """Asks allowd before each HTTP request is handled, and answers those that are refused.

    An ASGI application around another one. Whatever is no HTTP request, and OPTIONS, passes untouched; the
    handler of a refused request is not called; responses and exceptions of the others pass as they are,
    with header fields of the limit added.

    ``limit``     A configured name, an inline limit, or ``limit(scope)`` that gives one, or None: not limited.
    ``client``    An AsyncClient, shared with others and closed by its owner; by default one of its own.
    ``key``       ``key(scope)``: whose request it is; None: not limited. An empty one is ``"unknown"``, the same
                  for all that have none. More than 1,024 bytes are sent as their SHA-256.
    ``cost``      A number or ``cost(scope)``.
    ``headers``   ``"draft"``: RateLimit and RateLimit-Policy, ``"legacy"``: X-RateLimit-Limit, -Remaining and
                  -Reset, ``"both"``, or ``"off"``. Retry-After is sent in any case.
    ``on_limited``  ``on_limited(scope, decision)`` gives another answer than the problem document: an ASGI
                  application, as any Starlette Response is, or None for the document after all. Retry-After
                  and the fields of the limit are added to it.
    ``timeout``, ``fail``  Override the client's own.

    The callables may be coroutine functions. They run before the application, so they see what middleware
    outside of this one has left in the scope, but no route.

    Decisions are left in ``scope["allowd"]``, a dict by the limit's name. A request that two middlewares
    would ask about alike, with the same limit and key, is asked about and charged once, by the outer one;
    different limits are all asked, from the outside in, and the first that refuses answers.

    Errors: the caller's mistakes, such as an unknown limit, are raised (``allowd.AgentError``).
    """

    def __init__(
        self,
        app: App,
        *,
        limit: Union[Limit, Callable[[Scope], MaybeAwaitable[Optional[Limit]]]],
        client: Optional[AsyncClient] = None,
        key: Optional[Callable[[Scope], MaybeAwaitable[Optional[Key]]]] = None,
        cost: Union[int, Callable[[Scope], MaybeAwaitable[int]]] = 1,
        headers: str = "draft",
        on_limited: Optional[Callable[[Scope, Decision], MaybeAwaitable[Optional[App]]]] = None,
        timeout: Optional[float] = None,
        fail: Optional[str] = None,
    ) -> None:
        if headers not in HEADER_STYLES:
            raise ValueError(f"headers must be one of {', '.join(HEADER_STYLES)}, not {headers!r}")
        if not callable(limit) and not isinstance(limit, (str, Mapping)):
            raise TypeError(f"limit must be a name, a mapping or a callable, not {type(limit).__name__}")
        self._app = app
        self._limit = limit
        self._client = AsyncClient() if client is None else client
        self._key = by_address() if key is None else key
        self._cost = cost
        self._headers = headers
        self._on_limited = on_limited
        self._timeout = None if timeout is None else checked_timeout(timeout)
        self._fail = None if fail is None else checked_policy(fail)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            return await self._app(scope, receive, send)
        limit = await _value(self._limit, scope)
        key = None if limit is None else await _value(self._key, scope)
        if limit is None or key is None:
            return await self._app(scope, receive, send)
        key = _sendable(key)
        name = limit if isinstance(limit, str) else str(limit.get("name", ""))
        if not _is_first(scope, (isinstance(limit, str), name, key)):
            return await self._app(scope, receive, send)

        decision = await self._client.allow(
            limit, key, await _value(self._cost, scope), timeout=self._timeout, fail=self._fail
        )
        decisions: Dict[str, Decision] = scope.setdefault(SCOPE_KEY, {})
        decisions[name] = decision
        fields = limit_headers(name, decision, self._headers)
        if decision.allowed:
            await self._app(scope, receive, _adding(fields, send) if fields else send)
        else:
            await self._refuse(name, decision, fields, scope, receive, send)

    async def _refuse(
        self,
        name: str,
        decision: Decision,
        fields: List[Header],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        other = None if self._on_limited is None else self._on_limited(scope, decision)
        if inspect.isawaitable(other):
            other = await other
        if other is not None:
            seconds = retry_after(decision)
            if seconds is not None:
                fields = [*fields, ("Retry-After", str(seconds))]
            return await other(scope, receive, _adding(fields, send))
        answer = refusal(name, decision)
        headers = _encoded([*answer.headers, *fields])
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})


async def _value(given: Any, scope: Scope) -> Any:
    """What was given, or what the callable that was given makes of this request."""
    if not callable(given):
        return given
    value = given(scope)
    return await value if inspect.isawaitable(value) else value


def _sendable(key: Key) -> Key:
    if not isinstance(key, (str, bytes)):
        return key  # for the client to refuse
    if not key:
        return UNKNOWN
    # Whoever chooses a key, by a header say, must not choose that asking fails.
    octets = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return key if len(octets) <= _MAX_KEY_BYTES else "sha256:" + hashlib.sha256(octets).hexdigest()


def _is_first(scope: Scope, question: Tuple[bool, str, Key]) -> bool:
    """Whether nobody has asked this for this request. The set is shared by copies of the scope."""
    asked: Set[Tuple[bool, str, Key]] = scope.setdefault(_GUARD_KEY, set())
    if question in asked:
        return False
    asked.add(question)
    return True


def _adding(fields: List[Header], send: Send) -> Send:
    """``send``, with fields added to the start of the response.

    RateLimit fields are lists, so those of several limits stand side by side. Of the others there can be
    one only: what the application, or a middleware nearer to it, has set remains.
    """
    added = _encoded(fields)

    async def send_with_fields(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {bytes(name).lower() for name, _ in headers}
            headers += [
                field for field in added if field[0].startswith(b"ratelimit") or field[0] not in present
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_fields


def _encoded(headers: Iterable[Header]) -> List[Tuple[bytes, bytes]]:
    return [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers]


class _Pattern:
    def __init__(self, pattern: str) -> None:
        method, _, path = pattern.rpartition(" ")
        if not path.startswith("/") or (method and not method.isalpha()):
            raise ValueError(f'a pattern is a path from "/", or a method and one, not {pattern!r}')
        self._method = method.upper()
        self._segments = _segments(path)
        self._is_open_ended = self._segments[-1:] == ["*"]
        if self._is_open_ended:
            del self._segments[-1]

    def fits(self, method: str, segments: List[str]) -> bool:
        if self._method and self._method != method:
            return False
        count = len(self._segments)
        if len(segments) < count or (len(segments) > count and not self._is_open_ended):
            return False
        return all(
            segment == wanted or (wanted[:1] == "{" and wanted[-1:] == "}")
            for wanted, segment in zip(self._segments, segments)
        )


def _path_of(scope: Scope) -> str:
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and (path + "/").startswith(root + "/") else path


def _segments(path: str) -> List[str]:
    return path.strip("/").split("/") if path.strip("/") else []
