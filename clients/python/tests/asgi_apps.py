# SPDX-License-Identifier: MIT
"""One application in FastAPI and in Starlette, with the middleware in front, and a server for such applications."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest
from fake_agent import PATIENCE

from allowd.asgi import RateLimitMiddleware

fastapi = pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")

from starlette.applications import Starlette  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.responses import JSONResponse, StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402


class Handlers:
    """What both applications do."""

    def __init__(self) -> None:
        self.handled = 0
        self.released = threading.Event()

    def hello(self) -> str:
        self.handled += 1
        return "hello"

    def fail(self) -> None:
        raise RuntimeError("the handler is broken")

    async def chunks(self):
        yield b"first"
        while not self.released.is_set():
            await asyncio.sleep(0.005)
        yield b"second"


def closing(client):
    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with client:
            yield

    return lifespan


def fastapi_app(handlers, client, **options):
    app = fastapi.FastAPI(lifespan=closing(client))
    app.add_middleware(RateLimitMiddleware, client=client, **options)

    @app.get("/")
    async def hello():
        return {"text": handlers.hello()}

    @app.post("/login")
    def login():
        return {"text": handlers.hello()}

    @app.get("/users/{user}")
    async def user(user: str, request: fastapi.Request):
        decision = request.scope["allowd"]["api"]
        return {"remaining": decision.remaining}

    @app.get("/stream")
    async def stream():
        return StreamingResponse(handlers.chunks(), media_type="text/plain")

    @app.get("/broken")
    async def broken():
        handlers.fail()

    return app


def starlette_app(handlers, client, **options):
    async def hello(request):
        return JSONResponse({"text": handlers.hello()})

    async def user(request):
        return JSONResponse({"remaining": request.scope["allowd"]["api"].remaining})

    async def stream(request):
        return StreamingResponse(handlers.chunks(), media_type="text/plain")

    async def broken(request):
        handlers.fail()

    return Starlette(
        routes=[
            Route("/", hello),
            Route("/login", hello, methods=["POST"]),
            Route("/users/{user}", user),
            Route("/stream", stream),
            Route("/broken", broken),
        ],
        middleware=[Middleware(RateLimitMiddleware, client=client, **options)],
        lifespan=closing(client),
    )


@contextlib.contextmanager
def served(app, **options):
    """A client of the application behind a uvicorn server, in a thread, on a port of its own."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        give_up = time.monotonic() + PATIENCE
        while not server.started:
            assert thread.is_alive() and time.monotonic() < give_up, "the server does not start"
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False) as http:
            yield http
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
