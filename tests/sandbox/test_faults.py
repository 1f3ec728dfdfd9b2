import asyncio

import httpx2
import pytest

from tests.sandbox.conftest import ACME, REFUND_8472, Json, World, refusal_of

DROPPED = (httpx2.RemoteProtocolError, httpx2.ReadError)


@pytest.mark.parametrize(("kind", "effects"), [("drop_before_commit", 0), ("drop_after_commit", 1)])
async def test_a_dropped_connection(world: World, kind: str, effects: int) -> None:
    await world.arm(kind)
    with pytest.raises(DROPPED):
        await world.refund("k")
    assert len(await world.refunds_of("8472")) == effects
    assert [(entry["status"], entry["fault"]) for entry in await world.log()] == [(None, kind)]


@pytest.mark.parametrize(("kind", "effects"), [("timeout_before_commit", 0), ("timeout_after_commit", 1)])
async def test_a_reply_that_does_not_come_in_time(world: World, kind: str, effects: int) -> None:
    await world.arm(kind, delay_s=30)
    with pytest.raises(httpx2.ReadTimeout):
        await world.client.post("/refunds", json=REFUND_8472, headers={**ACME, "Idempotency-Key": "k"}, timeout=0.3)
    assert len(await world.refunds_of("8472")) == effects
    assert [(entry["status"], entry["fault"]) for entry in await world.log()] == [(None, kind)]


async def test_a_hanging_request_ends_by_itself(world: World) -> None:
    await world.arm("timeout_before_commit", delay_s=0.1)
    with pytest.raises(DROPPED):
        await world.refund("k")


async def test_a_reset_ends_what_still_hangs_or_is_slow(world: World) -> None:
    await world.arm("timeout_before_commit", delay_s=60)
    hanging = asyncio.create_task(world.refund("h"))
    await _until_logged(world, 1)
    await world.arm("slow", delay_s=60)
    slow = asyncio.create_task(world.refund("s"))
    await _until_logged(world, 2)
    await _until_in_flight(world, "s")
    (await world.admin.post("/_admin/reset")).raise_for_status()
    with pytest.raises(DROPPED):
        await hanging
    assert (await slow).json()["error"] == "world_was_reset"
    assert await world.refunds_of("8472") == []


@pytest.mark.parametrize(
    ("kind", "status", "code", "effects"),
    [("error_before_commit", 503, "unavailable", 0), ("error_after_commit", 500, "internal_error", 1)],
)
async def test_an_error_reply(world: World, kind: str, status: int, code: str, effects: int) -> None:
    await world.arm(kind)
    assert refusal_of(await world.refund("k")) == (status, code)
    assert len(await world.refunds_of("8472")) == effects
    assert [(entry["status"], entry["fault"]) for entry in await world.log()] == [(status, kind)]


async def test_a_reply_that_cannot_be_read(world: World) -> None:
    await world.arm("garbage")
    reply = await world.refund("k")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        reply.json()
    assert len(await world.refunds_of("8472")) == 1
    assert (await world.refund("k")).headers["Idempotent-Replay"] == "true"


async def test_a_slow_write_takes_effect_although_its_client_left(world: World) -> None:
    await world.arm("slow", delay_s=0.4)
    with pytest.raises(httpx2.ReadTimeout):
        await world.client.post("/refunds", json=REFUND_8472, headers={**ACME, "Idempotency-Key": "k"}, timeout=0.2)
    assert await world.refunds_of("8472") == []
    for _ in range(500):
        if await world.refunds_of("8472"):
            break
    assert len(await world.refunds_of("8472")) == 1


async def test_a_slow_read_is_answered_in_the_end(world: World) -> None:
    await world.arm("slow", operation="get_order", service="payments", delay_s=0.1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await world.get("/orders/8472")).status_code == 200
    assert loop.time() - began >= 0.1


async def test_a_fault_skips_and_counts(world: World) -> None:
    await world.arm("error_before_commit", operation="GET /orders/{order_id}", service="payments", after=1, times=2)
    statuses = [(await world.get("/orders/8472")).status_code for _ in range(4)]
    assert statuses == [200, 503, 503, 200]
    (fault,) = (await world.admin.get("/_admin/faults")).json()["faults"]
    assert (fault["skipped"], fault["fired"], fault["times"]) == (1, 2, 2)


async def test_faults_act_in_turn_and_only_on_their_operation(world: World) -> None:
    await world.arm("error_before_commit")
    await world.arm("error_after_commit", operation="create_refund")
    assert (await world.get("/refunds?order_id=8472")).status_code == 200
    assert [(await world.refund("k")).status_code for _ in range(3)] == [503, 500, 201]


async def test_a_fault_for_any_operation_of_a_service(world: World) -> None:
    await world.arm("error_before_commit", operation="*", service="policy_store")
    assert (await world.get("/orders/8472")).status_code == 200
    searched = await world.client.post("/policy/search", json={"query": "refund"}, headers=ACME)
    assert searched.status_code == 503


async def test_faults_can_be_disarmed(world: World) -> None:
    await world.arm("error_before_commit", times=5)
    (await world.admin.delete("/_admin/faults")).raise_for_status()
    assert (await world.refund("k")).status_code == 201


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        ({"service": "refunds", "operation": "POST /refund", "kind": "slow"}, (422, "unknown_operation")),
        ({"service": "payments", "operation": "POST /refunds", "kind": "slow"}, (422, "unknown_operation")),
        ({"service": "refunds", "kind": "explode"}, (422, "invalid_request")),
        ({"service": "refunds", "kind": "slow", "delay_s": 3600}, (422, "invalid_request")),
        ({"service": "loans", "kind": "slow"}, (400, "unknown_service")),
    ],
)
async def test_a_misspelt_fault_is_refused(world: World, fault: Json, refusal: tuple[int, str]) -> None:
    assert refusal_of(await world.admin.post("/_admin/faults", json=fault)) == refusal


async def _until_logged(world: World, count: int) -> None:
    for _ in range(200):
        if len(await world.log(service="refunds")) >= count:
            return
    raise AssertionError("the request did not arrive")


async def _until_in_flight(world: World, key: str) -> None:
    for _ in range(200):
        if (await world.refund(key)).status_code == 409:
            return
    raise AssertionError("the key was not in flight")
