"""HTTP to the services behind tools: the one place that turns what a network can do into faults with a meaning.

A read that fails changed nothing, so its fault only has to say whether another attempt may help. A write that fails
after it may have left this process is ``OutcomeUnknown``, unless the service itself says that it did nothing.

Source: DESIGN §6.
"""

import asyncio
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import JsonValue
from pydantic_core import from_json

from agentic_loop.graph.errors import Misuse, OutcomeUnknown, ToolFault
from agentic_loop.graph.state import FaultCategory

from .tool import Absent, Arguments, Found, Reconcile, ReconcileAnswer, ToolCall, ToolContext, ToolResult, Undecided

MAX_RESPONSE_BYTES = 65_536
"""How much of a response is read before it counts as too large."""

_MAX_CONNECTIONS = 20
_CONNECT_SHARE = 0.8
"""The share of a call's time that connecting may take: it must end before the call does, because only then is it
known that nothing was sent."""

_NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)
"""What is raised before the first byte of a request leaves."""


class ServiceRefusal(ToolFault):
    """A service's own refusal: its status and the machine-readable code of its error body, where it has one."""

    def __init__(
        self, category: FaultCategory, message: str, *, status_code: int, code: str, retryable: bool = False
    ) -> None:
        super().__init__(category, message, retryable=retryable)
        self.status_code = status_code
        self.code = code


class LazyHttpClient:
    """One pool of connections per event loop, opened at the first request.

    ``aclose`` closes the pool of the running loop; pools of loops that are gone are dropped with them.
    """

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    def open(self) -> httpx2.AsyncClient:
        """The client of the running loop; proxies and credentials in the environment are not used."""
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None or client.is_closed:
            limits = httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS)
            client = httpx2.AsyncClient(limits=limits, follow_redirects=False, trust_env=False)
            self._by_loop[loop] = client
        return client

    async def aclose(self) -> None:
        """Close the connections of the running loop; the next request opens new ones."""
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


@dataclass(frozen=True)
class ServiceUrls:
    """Where the refund loop's services are: base URLs such as ``http://127.0.0.1:8000``."""

    payments: str
    refunds: str
    policy: str
    notifications: str

    @classmethod
    def all_at(cls, url: str) -> Self:
        """All services behind one base URL, as the sandbox serves them."""
        return cls(payments=url, refunds=url, policy=url, notifications=url)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The URLs from ``AGENTIC_LOOP_PAYMENTS_URL`` and its like, else from ``AGENTIC_LOOP_SANDBOX_URL``.

        Raises:
            Misuse: a service has no URL; the message names the variables to set.
        """
        names = {service: f"AGENTIC_LOOP_{service.upper()}_URL" for service in _SERVICES}
        sandbox = environment.get("AGENTIC_LOOP_SANDBOX_URL", "")
        urls = {service: environment.get(name, "") or sandbox for service, name in names.items()}
        missing = [names[service] for service, url in urls.items() if not url]
        if missing:
            raise Misuse(f"set {', '.join(missing)}, or AGENTIC_LOOP_SANDBOX_URL for all services of a sandbox")
        return cls(**urls)


_SERVICES = ("payments", "refunds", "policy", "notifications")


@dataclass(frozen=True)
class _Reply:
    status_code: int
    body: bytes


class _OverLimit(Exception):
    """The response is longer than the limit; reading stopped there."""


class ServiceClient:
    """One service over HTTP.

    ``source`` is the service's name as evidence carries it. A client that is given is the caller's to close; without
    one, connections are opened at the first request and closed by ``aclose``.

    Raises:
        Misuse: the base URL is no http or https URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        source: str,
        client: httpx2.AsyncClient | LazyHttpClient | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Misuse(f"the URL of {source} must look like http://host:port, not {base_url!r}")
        self.source = source
        self._base_url = base_url.rstrip("/")
        self._owns_client = client is None
        self._client = LazyHttpClient() if client is None else client
        self._max_response_bytes = max_response_bytes

    async def read(
        self,
        method: str,
        path: str,
        context: ToolContext,
        *,
        params: Mapping[str, str] | None = None,
        body: JsonValue = None,
    ) -> JsonValue:
        """The JSON answer to a request that changes nothing (a search may well be a POST).

        Raises:
            ToolFault: ``timeout``, ``unavailable`` and ``garbage`` are retryable; ``not_found``, ``forbidden``,
                ``rejected``, ``conflict`` and ``payload_too_large`` are not.
        """
        try:
            reply = await self._send(method, path, context, params=params, body=body)
        except _OverLimit as over:
            raise ToolFault("payload_too_large", str(over)) from over
        except (TimeoutError, httpx2.TimeoutException) as late:
            message = f"{self.source} did not answer within {context.timeout_s:g} s"
            raise ToolFault("timeout", message, retryable=True) from late
        except httpx2.DecodingError as unreadable:
            raise self._garbage() from unreadable
        except (httpx2.HTTPError, httpx2.StreamError) as broken:
            message = f"{self.source} cannot be reached: {_name(broken)}"
            raise ToolFault("unavailable", message, retryable=True) from broken
        if reply.status_code >= 500 and reply.status_code != 501:  # 501: the service will never offer it
            raise ToolFault("unavailable", self._words(reply), retryable=True)
        if reply.status_code < 200 or reply.status_code >= 300:
            raise self._refusal(reply, of_a_read=True)
        try:
            return _parsed(reply.body)
        except ValueError as unreadable:
            raise self._garbage() from unreadable

    async def write(self, path: str, body: JsonValue, context: ToolContext) -> JsonValue:
        """The JSON answer to a POST with the context's idempotency key, sent exactly once.

        Cancellation passes through; the caller must treat the write as one whose outcome is unknown.

        Raises:
            ToolFault: the service says that it did nothing, or nothing was sent.
            OutcomeUnknown: anything else: time-out, broken connection, 5xx, an answer that cannot be read, and a
                request with this key that is still in flight.
        """
        if context.idempotency_key is None:
            raise Misuse(f"a write to {self.source} needs an idempotency key")
        try:
            reply = await self._send("POST", path, context, body=body, key=context.idempotency_key)
        except _NEVER_SENT as refused:
            message = f"{self.source} cannot be reached, nothing was sent: {_name(refused)}"
            raise ToolFault("unavailable", message) from refused
        except (TimeoutError, _OverLimit, httpx2.HTTPError, httpx2.StreamError) as lost:
            raise OutcomeUnknown(f"the answer of {self.source} was lost: {_name(lost)}") from lost
        if 400 <= reply.status_code < 500:
            refusal = self._refusal(reply, of_a_read=False)
            # 408 means that the service gave up on a request that it had begun to read.
            if refusal.code == "in_flight" or reply.status_code == 408:
                raise OutcomeUnknown(str(refusal)) from refusal
            raise refusal
        if not 200 <= reply.status_code < 300:
            raise OutcomeUnknown(self._words(reply))
        try:
            return _parsed(reply.body)
        except ValueError as unreadable:
            raise OutcomeUnknown(str(self._garbage())) from unreadable

    async def aclose(self) -> None:
        """Close the connections that this client opened itself."""
        if self._owns_client:
            await self._client.aclose()

    async def _send(
        self,
        method: str,
        path: str,
        context: ToolContext,
        *,
        body: JsonValue,
        params: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> _Reply:
        client = self._client.open() if isinstance(self._client, LazyHttpClient) else self._client
        timeout = httpx2.Timeout(
            context.timeout_s, connect=_CONNECT_SHARE * context.timeout_s, pool=_CONNECT_SHARE * context.timeout_s
        )
        # Without compression a response is never larger in memory than what was counted on the wire.
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "X-Tenant": wire_text(context.tenant),
            "X-Request-Id": wire_text(context.request_id),
        }
        if key is not None:
            headers["Idempotency-Key"] = wire_text(key)
        received = bytearray()
        async with (
            asyncio.timeout(context.timeout_s),
            client.stream(
                method, self._base_url + path, params=params, json=body, headers=headers, timeout=timeout
            ) as response,
        ):
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > self._max_response_bytes:
                    raise _OverLimit(f"{self.source} sent more than {self._max_response_bytes} bytes; ask for less")
            return _Reply(response.status_code, bytes(received))

    def _refusal(self, reply: _Reply, *, of_a_read: bool) -> ServiceRefusal:
        code, _ = _error_of(reply.body)
        category, passes = _meaning(reply.status_code, code)
        return ServiceRefusal(
            category,
            self._words(reply),
            status_code=reply.status_code,
            code=code,
            retryable=passes and of_a_read,
        )

    def _words(self, reply: _Reply) -> str:
        code, message = _error_of(reply.body)
        said = ": ".join(part for part in (code, message) if part)
        return f"{self.source} answered {reply.status_code}" + (f" {said}" if said else "")

    def _garbage(self) -> ToolFault:
        return ToolFault("garbage", f"{self.source} answered something that is not JSON", retryable=True)


def _meaning(status_code: int, code: str) -> tuple[FaultCategory, bool]:
    """What a status that is neither success nor 5xx means, and whether it may pass by itself."""
    if code == "in_flight":
        return "unavailable", True
    match status_code:
        case 401 | 403:
            return "forbidden", False
        case 404 | 410:
            return "not_found", False
        case 408 | 425 | 429:
            return "unavailable", True
        case 422 if code == "key_reused":
            return "conflict", False
        case _:
            return "rejected", False


_MAX_CODE_CHARS = 64
_MAX_WORDS_CHARS = 300


def _error_of(body: bytes) -> tuple[str, str]:
    """The code and the message of an error body, each empty where there is none, and short."""
    try:
        parsed = _parsed(body)
    except ValueError:
        return "", ""
    if not isinstance(parsed, dict):
        return "", ""
    code, message = parsed.get("error"), parsed.get("message", parsed.get("detail"))
    return (
        code[:_MAX_CODE_CHARS] if isinstance(code, str) else "",
        message[:_MAX_WORDS_CHARS] if isinstance(message, str) else "",
    )


def _parsed(body: bytes) -> JsonValue:
    """Strict JSON: no NaN, no lone surrogates, no endless nesting.

    Raises:
        ValueError: it is not.
    """
    value: JsonValue = from_json(body, allow_inf_nan=False)
    return value


def _name(error: Exception) -> str:
    words = str(error)
    return f"{type(error).__name__} ({words[:_MAX_WORDS_CHARS]})" if words else type(error).__name__


_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


def wire_text(text: str) -> str:
    """A text as a header can carry it: whatever is not printable ASCII is percent-encoded, always in the same way."""
    return quote(text, safe=_PLAIN, errors="surrogatepass")


def path_segment(text: str) -> str:
    """A text as one segment of a path, so that it can name no other resource."""
    return quote(text, safe="") if text not in (".", "..") else text.replace(".", "%2E")


def lookup_by_key(
    service: ServiceClient,
    path: str,
    *,
    member: str,
    key_retention_s: int,
    visible_after_s: float = 0.0,
    settles_after_s: float = 0.0,
    ref: str = "",
) -> Reconcile:
    """Reconciliation by a GET that names the key and answers ``{"status_code", member: the effect}``.

    Only a 404 with the code ``no_such_key`` means that there is no effect; any other refusal leaves it undecided,
    because a wrong route and a strange gateway say 404 too.
    """

    async def ask(args: Arguments, context: ToolContext) -> ReconcileAnswer:
        if context.idempotency_key is None:
            raise Misuse(f"a lookup at {service.source} needs the idempotency key")
        try:
            held = await service.read("GET", path, context, params={"key": wire_text(context.idempotency_key)})
        except ServiceRefusal as refusal:
            if refusal.status_code == 404 and refusal.code == "no_such_key":
                return Absent()
            if refusal.retryable:
                raise
            return Undecided(str(refusal))
        if not isinstance(held, dict):
            raise ToolFault("garbage", f"{service.source} answered a lookup without an object", retryable=True)
        status_code = held.get("status_code", 200)
        if isinstance(status_code, int) and 400 <= status_code < 500:
            return Absent()  # what the service holds under the key is its own refusal
        if not isinstance(held.get(member), dict):
            raise ToolFault("garbage", f"{service.source} answered a lookup without {member!r}", retryable=True)
        return Found(ToolResult(held[member], ref))

    return Reconcile(
        kind="lookup",
        ask=ask,
        key_retention_s=key_retention_s,
        visible_after_s=visible_after_s,
        settles_after_s=settles_after_s,
    )


def replay_with_key(call: ToolCall, *, key_retention_s: int) -> Reconcile:
    """Reconciliation for a service without a lookup: send the same request with the same key once more.

    The service must honour the key: it returns the first result, or acts now for the first time. A replay that is
    lost as well may be asked again; a refusal leaves the first request undecided.
    """

    async def ask(args: Arguments, context: ToolContext) -> ReconcileAnswer:
        try:
            return Found(await call(args, context))
        except OutcomeUnknown as lost:
            raise ToolFault("unavailable", f"the replay was lost as well: {lost}", retryable=True) from lost
        except ToolFault as fault:
            if fault.category == "unavailable":
                raise ToolFault("unavailable", str(fault), retryable=True) from fault
            return Undecided(f"the replay was refused: {fault}")

    return Reconcile(kind="replay", ask=ask, key_retention_s=key_retention_s)
