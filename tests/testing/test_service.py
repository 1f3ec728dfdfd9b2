"""The faulty service, seen by a plain client over TCP."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from agentic_loop.testing.service import MAX_BODY_BYTES, FaultKind, FaultyService

TENANT = {"X-Tenant": "acme", "X-Request-Id": "req-1"}


def keyed(key: str, tenant: str = "acme") -> dict[str, str]:
    return {"X-Tenant": tenant, "Idempotency-Key": key}


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=2.0, headers=TENANT, trust_env=False) as client:
        yield client


async def test_things_are_read(http: httpx2.AsyncClient) -> None:
    with FaultyService({"a": [1]}) as service:
        service.put("ü/b", "two")
        assert (await http.get(service.url + "/things/a")).json() == [1]
        assert (await http.get(service.url + "/things/%C3%BC%2Fb")).json() == "two"
        missing = await http.get(service.url + "/things/c")
        assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
        assert service.requests[0].path == "/things/a"
        assert service.requests[0].request_id == "req-1"


async def test_one_key_is_one_effect(http: httpx2.AsyncClient) -> None:
    with FaultyService() as service:
        url = service.url + "/effects"
        first = await http.post(url, json={"a": 1}, headers=keyed("k"))
        assert (first.status_code, first.json()) == (201, {"a": 1, "effect_id": "eff-1"})
        assert (await http.post(url, json={"a": 1}, headers=keyed("k"))).json() == first.json()
        reused = await http.post(url, json={"a": 2}, headers=keyed("k"))
        assert (reused.status_code, reused.json()["error"]) == (422, "key_reused")
        assert (await http.post(url, json={"a": 1}, headers=keyed("k", "other"))).json()["effect_id"] == "eff-2"
        assert (await http.post(url, json={"a": 1})).json()["error"] == "idempotency_key_missing"
        assert (await http.post(url, json=[1], headers=keyed("l"))).json()["error"] == "invalid_request"
        assert (await http.post(url, content=b"{", headers=keyed("l"))).json()["error"] == "invalid_json"
        assert (await http.get(url + "/eff-1")).json() == first.json()
        assert (await http.get(url + "/eff-9")).status_code == 404
        held = (await http.get(url + "/by-key", params={"key": "k"})).json()
        assert held == {"status_code": 201, "effect": first.json()}
        service.forget_keys()
        assert (await http.get(url + "/by-key", params={"key": "k"})).json()["error"] == "no_such_key"
        assert len(service.effects) == 2


async def test_a_service_that_honours_no_keys_repeats_an_effect(http: httpx2.AsyncClient) -> None:
    with FaultyService(honour_keys=False, lookup_by_key=False) as service:
        for _ in range(2):
            await http.post(service.url + "/effects", json={}, headers=keyed("k"))
        assert len(service.effects) == 2
        assert (await http.get(service.url + "/effects/by-key?key=k")).status_code == 501


LOST: list[tuple[FaultKind, int]] = [
    ("timeout_before_commit", 0),
    ("timeout_after_commit", 1),
    ("drop_before_commit", 0),
    ("drop_after_commit", 1),
]


@pytest.mark.parametrize(("kind", "effects"), LOST)
async def test_no_reply_comes(http: httpx2.AsyncClient, kind: FaultKind, effects: int) -> None:
    with FaultyService() as service:
        service.fail(kind, delay_s=20)
        slow = kind.startswith("timeout")
        with pytest.raises(httpx2.TransportError) as raised:
            await http.post(service.url + "/effects", json={}, headers=keyed("k"), timeout=0.2 if slow else 10)
        assert isinstance(raised.value, httpx2.ReadTimeout) == slow
        await asyncio.to_thread(service.wait_for_effects, effects)
        assert len(service.effects) == effects


ANSWERED: list[tuple[FaultKind, int, int]] = [
    ("error_before_commit", 503, 0),
    ("error_after_commit", 500, 1),
    ("garbage", 200, 1),
    ("in_flight", 409, 0),
    ("slow", 201, 1),
]


@pytest.mark.parametrize(("kind", "status_code", "effects"), ANSWERED)
async def test_a_reply_comes(http: httpx2.AsyncClient, kind: FaultKind, status_code: int, effects: int) -> None:
    with FaultyService() as service:
        service.fail(kind, delay_s=0.01)
        reply = await http.post(service.url + "/effects", json={"a": 1}, headers=keyed("k"))
        assert (reply.status_code, len(service.effects)) == (status_code, effects)
        if kind == "garbage":
            with pytest.raises(ValueError, match=r"Unterminated|Expecting|delimiter"):
                reply.json()


async def test_faults_hit_so_many_requests_after_so_many(http: httpx2.AsyncClient) -> None:
    with FaultyService({"a": 1}) as service:
        service.fail("error_before_commit", method="get", after=1, times=2)
        codes = [(await http.get(service.url + "/things/a")).status_code for _ in range(4)]
        assert codes == [200, 503, 503, 200]
        assert len(service.requests) == 4


def test_faults_are_bounded() -> None:
    with FaultyService() as service:
        for bad in ({"delay_s": 3_600.0}, {"delay_s": 0.0}, {"times": 0}, {"after": -1}):
            with pytest.raises(ValueError, match="use times"):
                service.fail("slow", **bad)


def test_waiting_for_an_effect_is_bounded() -> None:
    with FaultyService() as service, pytest.raises(TimeoutError, match="0 of 1 effects"):
        service.wait_for_effects(1, timeout_s=0.01)


async def test_a_body_is_bounded(http: httpx2.AsyncClient) -> None:
    with FaultyService() as service:
        try:
            reply = await http.post(service.url + "/effects", content=b"x" * (MAX_BODY_BYTES + 1), headers=keyed("k"))
        except httpx2.TransportError:
            pass  # the service closed the connection while the body was on its way
        else:
            assert reply.status_code == 413
        assert service.effects == []


async def test_closing_ends_what_hangs(http: httpx2.AsyncClient) -> None:
    service = FaultyService()
    service.fail("timeout_after_commit", delay_s=30)
    url = service.url + "/effects"
    hanging = asyncio.create_task(http.post(url, json={}, headers=keyed("k"), timeout=20))
    await asyncio.to_thread(service.wait_for_effects, 1)
    await asyncio.to_thread(service.close)
    with pytest.raises(httpx2.RemoteProtocolError):
        await asyncio.wait_for(hanging, timeout=5)
    with pytest.raises(httpx2.ConnectError):
        await http.get(url)
