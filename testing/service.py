"""A small real HTTP service with faults on demand, for tests of people's own tools and loops.

It runs in a thread of the test's process on an ephemeral port: the client's sockets, time-outs and broken connections
are real. It keeps things to read, makes effects under idempotency keys, and counts them.

Source: DESIGN §6; the faults are those of the sandbox.
"""

import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, Self, TypeAlias, assert_never
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import JsonValue

FaultKind: TypeAlias = Literal[
    "timeout_before_commit",
    "timeout_after_commit",
    "drop_before_commit",
    "drop_after_commit",
    "error_before_commit",
    "error_after_commit",
    "slow",
    "garbage",
    "in_flight",
]
"""What can go wrong, before or after the effect took place. ``garbage`` is a cut body after the commit."""

MAX_BODY_BYTES = 1_000_000
MAX_DELAY_S = 30.0


@dataclass(frozen=True)
class ServedRequest:
    """One request as it arrived, faulted ones included."""

    method: str
    path: str
    tenant: str
    request_id: str
    idempotency_key: str | None
    body: JsonValue


@dataclass
class _Fault:
    kind: FaultKind
    method: str
    times: int
    after: int
    delay_s: float


@dataclass(frozen=True)
class _Answer:
    status_code: int
    body: JsonValue


@dataclass
class _World:
    """What the service holds; every access is under ``lock``."""

    honour_keys: bool
    lookup_by_key: bool
    things: dict[str, JsonValue]
    effects: list[dict[str, JsonValue]] = field(default_factory=list)
    kept: dict[tuple[str, str], tuple[JsonValue, _Answer]] = field(default_factory=dict)
    requests: list[ServedRequest] = field(default_factory=list)
    faults: list[_Fault] = field(default_factory=list)
    lock: threading.Condition = field(default_factory=threading.Condition)
    closing: threading.Event = field(default_factory=threading.Event)


class FaultyService:
    """The service. Use it as a context manager, or call ``close``.

    | request | reply |
    |---|---|
    | ``GET /things/NAME`` | what ``things`` holds under that name, else 404 ``not_found`` |
    | ``POST /effects`` with a JSON object | 201, the object with an ``effect_id``; one effect for each key |
    | ``GET /effects/eff-1`` | that effect |
    | ``GET /effects/by-key?key=`` | 200 ``{"status_code", "effect"}`` or 404 ``no_such_key``; 501 without lookup |

    ``honour_keys=False`` makes a service that repeats an effect; ``lookup_by_key=False`` one that cannot be asked.
    """

    def __init__(
        self,
        things: dict[str, JsonValue] | None = None,
        *,
        honour_keys: bool = True,
        lookup_by_key: bool = True,
    ) -> None:
        self._world = _World(honour_keys, lookup_by_key, dict(things or {}))
        self._server = _Server(self._world)
        # A short poll, so that closing does not make every test half a second longer.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The base URL, such as ``http://127.0.0.1:40123``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(
        self, kind: FaultKind, *, method: str = "POST", times: int = 1, after: int = 0, delay_s: float = 10.0
    ) -> None:
        """Arm a fault for requests of this method: the first ``after`` pass, the next ``times`` are hit.

        ``delay_s`` is how long a time-out hangs (unless the service closes first) and how long ``slow`` takes.
        """
        if not 0 < delay_s <= MAX_DELAY_S or times < 1 or after < 0:
            raise ValueError(f"use times >= 1, after >= 0 and a delay of at most {MAX_DELAY_S:g} s")
        with self._world.lock:
            self._world.faults.append(_Fault(kind, method.upper(), times, after, delay_s))

    @property
    def effects(self) -> list[dict[str, JsonValue]]:
        """Every effect that took place, oldest first."""
        with self._world.lock:
            return list(self._world.effects)

    @property
    def requests(self) -> list[ServedRequest]:
        """Every request that arrived, oldest first."""
        with self._world.lock:
            return list(self._world.requests)

    def wait_for_effects(self, count: int, timeout_s: float = 5.0) -> None:
        """Block until so many effects took place; from async code, call it in a thread.

        Raises:
            TimeoutError: they did not in time.
        """
        with self._world.lock:
            if not self._world.lock.wait_for(lambda: len(self._world.effects) >= count, timeout_s):
                raise TimeoutError(f"{len(self._world.effects)} of {count} effects after {timeout_s:g} s")

    def put(self, name: str, thing: JsonValue) -> None:
        """Set what ``GET /things/NAME`` returns from now on."""
        with self._world.lock:
            self._world.things[name] = thing

    def forget_keys(self) -> None:
        """Forget all idempotency keys, as a service does after its retention."""
        with self._world.lock:
            self._world.kept.clear()

    def close(self) -> None:
        """Stop; hanging requests end at once."""
        self._world.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, world: _World) -> None:
        self.world = world
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left is what this service is for; nothing is printed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = MAX_DELAY_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the method that it replaces
        """Keep quiet: requests are in ``requests``."""

    def do_GET(self) -> None:
        """Serve a read."""
        self._serve(None)

    def do_POST(self) -> None:
        """Serve a write."""
        size_bytes = int(self.headers.get("Content-Length") or 0)
        if size_bytes > MAX_BODY_BYTES:
            self.close_connection = True  # the body is still on its way
            self._reply(_refused(413, "too_large", f"send at most {MAX_BODY_BYTES} bytes"))
            return
        try:
            self._serve(json.loads(self.rfile.read(size_bytes)))
        except ValueError:
            self._reply(_refused(400, "invalid_json", "send a JSON object"))

    def _serve(self, body: JsonValue) -> None:
        world = self.server.world
        request = ServedRequest(
            method=self.command,
            path=self.path,
            tenant=self.headers.get("X-Tenant", ""),
            request_id=self.headers.get("X-Request-Id", ""),
            idempotency_key=self.headers.get("Idempotency-Key"),
            body=body,
        )
        with world.lock:
            world.requests.append(request)
            fault = _due(world, request.method)
        if fault is None:
            self._reply(_answer(world, request))
        else:
            self._fail(fault, request)

    def _fail(self, fault: _Fault, request: ServedRequest) -> None:
        world = self.server.world
        match fault.kind:
            case "timeout_before_commit":
                self._hang(fault)
            case "timeout_after_commit":
                _answer(world, request)
                self._hang(fault)
            case "drop_before_commit":
                self._drop()
            case "drop_after_commit":
                _answer(world, request)
                self._drop()
            case "error_before_commit":
                self._reply(_refused(503, "unavailable", "try again later"))
            case "error_after_commit":
                _answer(world, request)
                self._reply(_refused(500, "internal_error", "nobody knows what happened"))
            case "slow":
                world.closing.wait(fault.delay_s)
                self._reply(_answer(world, request))
            case "garbage":
                whole = json.dumps(_answer(world, request).body).encode()
                self._send(200, whole[: len(whole) // 2])
            case "in_flight":
                self._reply(_refused(409, "in_flight", "a request with this key is being worked on"))
            case _:
                assert_never(fault.kind)

    def _hang(self, fault: _Fault) -> None:
        self.server.world.closing.wait(fault.delay_s)
        self._drop()

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _reply(self, answer: _Answer) -> None:
        self._send(answer.status_code, json.dumps(answer.body).encode())

    def _send(self, status_code: int, content: bytes) -> None:
        self.send_response(status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _due(world: _World, method: str) -> _Fault | None:
    """The fault that hits this request, with its counts moved on."""
    for fault in world.faults:
        if fault.method != method or fault.times == 0:
            continue
        if fault.after > 0:
            fault.after -= 1
            return None
        fault.times -= 1
        return fault
    return None


def _answer(world: _World, request: ServedRequest) -> _Answer:
    url = urlsplit(request.path)
    with world.lock:
        match (request.method, url.path.strip("/").split("/")):
            case ("POST", ["effects"]):
                return _effect(world, request)
            case ("GET", ["effects", "by-key"]):
                return _by_key(world, request.tenant, parse_qs(url.query).get("key", [""])[0])
            case ("GET", ["effects", effect_id]):
                found = [effect for effect in world.effects if effect["effect_id"] == unquote(effect_id)]
                return _Answer(200, found[0]) if found else _refused(404, "not_found", "no such effect")
            case ("GET", ["things", name]) if unquote(name) in world.things:
                return _Answer(200, world.things[unquote(name)])
            case _:
                return _refused(404, "not_found", f"nothing is at {url.path}")


def _effect(world: _World, request: ServedRequest) -> _Answer:
    if not isinstance(request.body, dict):
        return _refused(422, "invalid_request", "send a JSON object")
    key = request.idempotency_key
    if key is None:
        return _refused(400, "idempotency_key_missing", "send an Idempotency-Key header")
    kept = world.kept.get((request.tenant, key)) if world.honour_keys else None
    if kept is not None:
        payload, answer = kept
        return answer if payload == request.body else _refused(422, "key_reused", "this key has another payload")
    effect: dict[str, JsonValue] = {**request.body, "effect_id": f"eff-{len(world.effects) + 1}"}
    world.effects.append(effect)
    world.lock.notify_all()
    answer = _Answer(201, effect)
    # The first effect of a key is the one that a lookup finds, whether or not the key is honoured.
    world.kept.setdefault((request.tenant, key), (request.body, answer))
    return answer


def _by_key(world: _World, tenant: str, key: str) -> _Answer:
    if not world.lookup_by_key:
        return _refused(501, "lookup_not_offered", "this service cannot be asked about a key")
    kept = world.kept.get((tenant, key))
    if kept is None:
        return _refused(404, "no_such_key", "no request with this key took effect")
    return _Answer(200, {"status_code": kept[1].status_code, "effect": kept[1].body})


def _refused(status_code: int, code: str, message: str) -> _Answer:
    return _Answer(status_code, {"error": code, "message": message})
