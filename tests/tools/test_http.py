"""Every fault that a network can have, on real sockets, and the category that it must come back as."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from pydantic import JsonValue

from agentic_loop.graph.errors import Misuse, OutcomeUnknown, ToolFault
from agentic_loop.testing.service import FaultKind, FaultyService
from agentic_loop.tools.http import (
    LazyHttpClient,
    ServiceClient,
    ServiceRefusal,
    ServiceUrls,
    path_segment,
    replay_with_key,
    wire_text,
)
from agentic_loop.tools.tool import Absent, Found, ToolResult, Undecided, run_call, run_reconcile

from .support import apply_tool, context, patience_s, thing_tool


@pytest.fixture
def faulty() -> Iterator[FaultyService]:
    with FaultyService({"lamp": {"lit": True}}) as service:
        yield service


@pytest.fixture
async def client(faulty: FaultyService) -> AsyncIterator[ServiceClient]:
    service = ServiceClient(faulty.url, source="lamp-service")
    yield service
    await service.aclose()


@contextlib.asynccontextmanager
async def serving(raw: bytes) -> AsyncIterator[str]:
    """A server that answers every connection with exactly these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def reply(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_a_read_returns_json_and_sends_who_asks(client: ServiceClient, faulty: FaultyService) -> None:
    assert await client.read("GET", "/things/lamp", context()) == {"lit": True}
    [request] = faulty.requests
    assert (request.tenant, request.request_id, request.idempotency_key) == ("acme", "req-1", None)


READ_FAULTS: list[tuple[FaultKind, str, bool]] = [
    ("timeout_before_commit", "timeout", True),
    ("slow", "timeout", True),
    ("drop_before_commit", "unavailable", True),
    ("error_before_commit", "unavailable", True),
    ("error_after_commit", "unavailable", True),
    ("garbage", "garbage", True),
    ("in_flight", "unavailable", True),
]


@pytest.mark.parametrize(("kind", "category", "retryable"), READ_FAULTS)
async def test_faults_of_a_read(
    client: ServiceClient, faulty: FaultyService, kind: FaultKind, category: str, retryable: bool
) -> None:
    faulty.fail(kind, method="GET", delay_s=5)
    with pytest.raises(ToolFault) as raised:
        await client.read("GET", "/things/lamp", context(timeout_s=patience_s(kind)))
    assert (raised.value.category, raised.value.retryable) == (category, retryable)
    assert "lamp-service" in str(raised.value)
    assert await client.read("GET", "/things/lamp", context()) == {"lit": True}


STATUSES: list[tuple[str, bytes, str, bool]] = [
    ("404 Not Found", b'{"error":"gone_missing","message":"list them"}', "not_found", False),
    ("401 Unauthorized", b"", "forbidden", False),
    ("403 Forbidden", b"<html>", "forbidden", False),
    ("400 Bad Request", b"{}", "rejected", False),
    ("409 Conflict", b"[]", "rejected", False),
    ("409 Conflict", b'{"error":"in_flight"}', "unavailable", True),
    ("422 Unprocessable", b'{"error":"amount_exceeds_payment"}', "rejected", False),
    ("422 Unprocessable", b'{"error":"key_reused"}', "conflict", False),
    ("429 Too Many Requests", b"", "unavailable", True),
    ("302 Found", b"", "rejected", False),
    ("501 Not Implemented", b"", "rejected", False),
    ("503 Service Unavailable", b"", "unavailable", True),
    ("200 OK", b"", "garbage", True),
    ("200 OK", b"<html>hello</html>", "garbage", True),
    ("200 OK", b'{"a": NaN}', "garbage", True),
    ("200 OK", b'{"a": "\\ud800"}', "garbage", True),
    ("200 OK", b"[" * 5_000, "garbage", True),
    ("200 OK", b"\xff\xfe", "garbage", True),
    ("200 OK", b'"' + b"x" * 70_000 + b'"', "payload_too_large", False),
]


@pytest.mark.parametrize(("status", "body", "category", "retryable"), STATUSES)
async def test_answers_to_a_read(status: str, body: bytes, category: str, retryable: bool) -> None:
    async with serving(reply(status, body)) as url, LazyHttpClient() as shared:
        service = ServiceClient(url, source="lamp-service", client=shared)
        with pytest.raises(ToolFault) as raised:
            await service.read("GET", "/things/lamp", context())
    assert (raised.value.category, raised.value.retryable) == (category, retryable)


WRITE_STATUSES: list[tuple[str, bytes, str | None]] = [
    ("404 Not Found", b"", "not_found"),
    ("403 Forbidden", b"", "forbidden"),
    ("400 Bad Request", b"", "rejected"),
    ("422 Unprocessable", b'{"error":"key_reused"}', "conflict"),
    ("429 Too Many Requests", b"", "unavailable"),
    ("409 Conflict", b'{"error":"in_flight"}', None),
    ("408 Request Timeout", b"", None),
    ("302 Found", b"", None),
    ("500 Oh", b"", None),
    ("501 Not Implemented", b"", None),
    ("503 Oh", b'{"error":"unavailable"}', None),
    ("201 Created", b"", None),
    ("201 Created", b'{"half":', None),
    ("201 Created", b'"' + b"x" * 70_000 + b'"', None),
]


@pytest.mark.parametrize(("status", "body", "category"), WRITE_STATUSES)
async def test_answers_to_a_write(status: str, body: bytes, category: str | None) -> None:
    async with serving(reply(status, body)) as url, LazyHttpClient() as shared:
        service = ServiceClient(url, source="lamp-service", client=shared)
        with pytest.raises((ToolFault, OutcomeUnknown)) as raised:
            await service.write("/effects", {"a": 1}, context(key="k"))
    fault = raised.value
    assert (fault.category if isinstance(fault, ToolFault) else None) == category
    assert not getattr(fault, "retryable", False)


async def test_a_service_that_breaks_the_protocol_leaves_a_write_unknown() -> None:
    async with serving(b"SSH-2.0-hello\r\n") as url, LazyHttpClient() as shared:
        service = ServiceClient(url, source="lamp-service", client=shared)
        with pytest.raises(OutcomeUnknown):
            await service.write("/effects", {}, context(key="k"))
        with pytest.raises(ToolFault, match="cannot be reached"):
            await service.read("GET", "/x", context())


async def test_compressed_nonsense_is_garbage() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"
    async with serving(head) as url, LazyHttpClient() as shared:
        service = ServiceClient(url, source="lamp-service", client=shared)
        with pytest.raises(ToolFault) as raised:
            await service.read("GET", "/x", context())
        assert raised.value.category == "garbage"
        with pytest.raises(OutcomeUnknown):
            await service.write("/x", {}, context(key="k"))


async def test_what_was_never_sent_is_no_unknown_outcome() -> None:
    async with LazyHttpClient() as shared:
        service = ServiceClient(closed_port(), source="lamp-service", client=shared)
        with pytest.raises(ToolFault, match="nothing was sent") as raised:
            await service.write("/effects", {}, context(key="k"))
        assert (raised.value.category, raised.value.retryable) == ("unavailable", False)
        with pytest.raises(ToolFault) as of_a_read:
            await service.read("GET", "/things/lamp", context())
        assert (of_a_read.value.category, of_a_read.value.retryable) == ("unavailable", True)


WRITE_FAULTS: list[tuple[FaultKind, int]] = [
    ("timeout_before_commit", 0),
    ("timeout_after_commit", 1),
    ("drop_before_commit", 0),
    ("drop_after_commit", 1),
    ("error_before_commit", 0),
    ("error_after_commit", 1),
    ("garbage", 1),
    ("in_flight", 0),
]


@pytest.mark.parametrize(("kind", "effects"), WRITE_FAULTS)
async def test_a_lost_write_is_unknown_and_a_lookup_says_what_happened(
    client: ServiceClient, faulty: FaultyService, kind: FaultKind, effects: int
) -> None:
    spec = apply_tool(client)
    faulty.fail(kind, delay_s=5)
    with pytest.raises(OutcomeUnknown):
        await run_call(spec, {"target": "lamp"}, context(key="apply:lamp:v1", timeout_s=patience_s(kind)))
    await asyncio.to_thread(faulty.wait_for_effects, effects)
    assert len(faulty.effects) == effects
    answer = await run_reconcile(spec, {"target": "lamp"}, context(key="apply:lamp:v1"))
    if effects:
        assert answer == Found(ToolResult({"target": "lamp", "effect_id": "eff-1"}))
    else:
        assert answer == Absent()
    assert len(faulty.effects) == effects


@pytest.mark.parametrize(("kind", "effects"), WRITE_FAULTS)
async def test_a_lost_write_is_replayed_with_its_key(
    client: ServiceClient, faulty: FaultyService, kind: FaultKind, effects: int
) -> None:
    spec = apply_tool(client, replay_with_key(apply_tool(client).call, key_retention_s=3_600))
    faulty.fail(kind, delay_s=5)
    with pytest.raises(OutcomeUnknown):
        await run_call(spec, {"target": "lamp"}, context(key="apply:lamp:v1", timeout_s=patience_s(kind)))
    await asyncio.to_thread(faulty.wait_for_effects, effects)
    answer = await run_reconcile(spec, {"target": "lamp"}, context(key="apply:lamp:v1"))
    assert isinstance(answer, Found)
    assert len(faulty.effects) == 1


async def test_a_replay_that_is_lost_as_well_may_be_asked_again(client: ServiceClient, faulty: FaultyService) -> None:
    spec = apply_tool(client, replay_with_key(apply_tool(client).call, key_retention_s=3_600))
    faulty.fail("drop_after_commit")
    with pytest.raises(ToolFault) as raised:
        await run_reconcile(spec, {"target": "lamp"}, context(key="k"))
    assert raised.value.retryable
    assert isinstance(await run_reconcile(spec, {"target": "lamp"}, context(key="k")), Found)
    assert len(faulty.effects) == 1


async def test_a_replay_that_is_refused_decides_nothing(client: ServiceClient, faulty: FaultyService) -> None:
    spec = apply_tool(client, replay_with_key(apply_tool(client).call, key_retention_s=3_600))
    await run_call(spec, {"target": "lamp"}, context(key="k"))
    answer = await run_reconcile(spec, {"target": "another"}, context(key="k"))
    assert isinstance(answer, Undecided)
    assert "key_reused" in answer.detail


async def test_a_404_of_a_wrong_route_is_not_the_absence_of_an_effect() -> None:
    async with serving(reply("404 Not Found", b'{"detail":"Not Found"}')) as url, LazyHttpClient() as shared:
        spec = apply_tool(ServiceClient(url, source="lamp-service", client=shared))
        assert isinstance(await run_reconcile(spec, {"target": "lamp"}, context(key="k")), Undecided)


async def test_a_service_without_lookup_leaves_it_undecided() -> None:
    with FaultyService(lookup_by_key=False) as faulty:
        async with LazyHttpClient() as shared:
            spec = apply_tool(ServiceClient(faulty.url, source="lamp-service", client=shared))
            assert isinstance(await run_reconcile(spec, {"target": "lamp"}, context(key="k")), Undecided)


LOOKUPS: list[tuple[bytes, object]] = [
    (b'{"status_code":201,"effect":{"a":1}}', Found(ToolResult({"a": 1}))),
    (b'{"status_code":422,"effect":{"error":"no"}}', Absent()),
]


@pytest.mark.parametrize(("body", "answer"), LOOKUPS)
async def test_what_a_lookup_holds(body: bytes, answer: object) -> None:
    async with serving(reply("200 OK", body)) as url, LazyHttpClient() as shared:
        spec = apply_tool(ServiceClient(url, source="lamp-service", client=shared))
        assert await run_reconcile(spec, {"target": "lamp"}, context(key="k")) == answer


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"status_code":201}', b'{"effect":null}', b"null"])
async def test_a_lookup_that_says_nothing_is_garbage_and_never_absence(body: bytes) -> None:
    async with serving(reply("200 OK", body)) as url, LazyHttpClient() as shared:
        spec = apply_tool(ServiceClient(url, source="lamp-service", client=shared))
        with pytest.raises(ToolFault) as raised:
            await run_reconcile(spec, {"target": "lamp"}, context(key="k"))
    assert (raised.value.category, raised.value.retryable) == ("garbage", True)


async def test_cancellation_of_a_write_passes_through(client: ServiceClient, faulty: FaultyService) -> None:
    faulty.fail("timeout_after_commit", delay_s=5)
    spec = apply_tool(client)
    work = asyncio.ensure_future(run_call(spec, {"target": "lamp"}, context(key="k")))
    await asyncio.to_thread(faulty.wait_for_effects, 1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_name_in_a_path_cannot_reach_another_resource(client: ServiceClient, faulty: FaultyService) -> None:
    faulty.put("a/../lamp?x#y", "the odd one")
    assert await run_call(thing_tool(client), {"name": "a/../lamp?x#y"}, context()) == ToolResult("the odd one")
    assert path_segment("..") == "%2E%2E"


async def test_keys_that_headers_cannot_carry_are_found_again(client: ServiceClient, faulty: FaultyService) -> None:
    key = "apply:Zoë\r\nX-Evil: 1 %41:v1"
    spec = apply_tool(client)
    await run_call(spec, {"target": "lamp"}, context(key=key, tenant="zürich"))
    assert isinstance(await run_reconcile(spec, {"target": "lamp"}, context(key=key, tenant="zürich")), Found)
    assert faulty.requests[0].idempotency_key == "apply:Zo%C3%AB%0D%0AX-Evil:%201%20%2541:v1"
    assert await run_reconcile(spec, {"target": "lamp"}, context(key=key, tenant="bern")) == Absent()


def test_an_ordinary_key_is_sent_as_it_is() -> None:
    assert wire_text("refund:order-8472:pay_5a2:v1") == "refund:order-8472:pay_5a2:v1"


async def test_a_refusal_carries_its_code_and_stays_short(faulty: FaultyService) -> None:
    body: JsonValue = {"error": "c" * 500, "message": "m" * 5_000}
    raw = httpx2.Response(400, json=body).content
    async with serving(reply("400 Bad Request", raw)) as url, LazyHttpClient() as shared:
        with pytest.raises(ServiceRefusal) as raised:
            await ServiceClient(url, source="s", client=shared).read("GET", "/", context())
    assert raised.value.status_code == 400
    assert len(str(raised.value)) < 500


async def test_a_client_that_was_given_is_left_open(faulty: FaultyService) -> None:
    async with httpx2.AsyncClient() as given:
        service = ServiceClient(faulty.url, source="s", client=given)
        await service.read("GET", "/things/lamp", context())
        await service.aclose()
        assert not given.is_closed


async def test_a_lazy_client_opens_again_after_it_was_closed(client: ServiceClient) -> None:
    await client.read("GET", "/things/lamp", context())
    await client.aclose()
    await client.aclose()
    assert await client.read("GET", "/things/lamp", context()) == {"lit": True}


def test_a_lazy_client_serves_one_event_loop_after_another(faulty: FaultyService) -> None:
    service = ServiceClient(faulty.url, source="s")

    async def once() -> JsonValue:
        try:
            return await service.read("GET", "/things/lamp", context())
        finally:
            await service.aclose()

    with asyncio.Runner() as first:
        assert first.run(once()) == {"lit": True}
    with asyncio.Runner() as second:
        assert second.run(once()) == {"lit": True}


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://x", "http://", "http://x?y=1", "http://x#y"])
def test_a_base_url_that_is_none_is_misuse(url: str) -> None:
    with pytest.raises(Misuse, match="must look like"):
        ServiceClient(url, source="s")


def test_a_base_url_may_have_a_path() -> None:
    assert ServiceClient("https://gateway/refunds/", source="s").source == "s"


async def test_a_write_needs_a_key(client: ServiceClient, faulty: FaultyService) -> None:
    with pytest.raises(Misuse):
        await client.write("/effects", {}, context())
    assert faulty.requests == []


def test_urls_from_the_environment() -> None:
    assert ServiceUrls.from_environment({"AGENTIC_LOOP_SANDBOX_URL": "http://s"}) == ServiceUrls.all_at("http://s")
    mixed = ServiceUrls.from_environment(
        {"AGENTIC_LOOP_SANDBOX_URL": "http://s", "AGENTIC_LOOP_REFUNDS_URL": "http://r"}
    )
    assert (mixed.payments, mixed.refunds) == ("http://s", "http://r")
    with pytest.raises(Misuse, match="AGENTIC_LOOP_POLICY_URL, AGENTIC_LOOP_NOTIFICATIONS_URL"):
        ServiceUrls.from_environment(
            {"AGENTIC_LOOP_PAYMENTS_URL": "http://p", "AGENTIC_LOOP_REFUNDS_URL": "http://r"}
        )
