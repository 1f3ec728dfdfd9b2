import asyncio

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sandbox.conftest import REFUND_8472, Json, World, refusal_of

DAY_S = 86_400


async def test_the_first_refunds_of_a_fresh_world_are_numbered_from_9001(world: World) -> None:
    first = await world.refund("a")
    second = await world.refund("b", {"order_id": "8483", "payment_id": "pay_5l2", "amount_inr": 450})
    assert first.status_code == 201
    made = {name: value for name, value in first.json().items() if name != "created_at"}
    assert made == {"refund_id": "rf_9001", **REFUND_8472, "status": "pending"}
    assert second.json()["refund_id"] == "rf_9002"


@pytest.mark.parametrize("key", [None, ""])
async def test_a_write_without_a_key_is_refused(world: World, key: str | None) -> None:
    assert refusal_of(await world.refund(key)) == (400, "idempotency_key_missing")
    assert await world.refunds_of("8472") == []


async def test_a_key_that_is_too_long_is_refused(world: World) -> None:
    assert refusal_of(await world.refund("k" * 256)) == (400, "idempotency_key_too_long")


async def test_the_same_key_and_payload_gets_the_stored_reply(world: World) -> None:
    first = await world.refund("k")
    # Another order of the fields and other white space are the same payload.
    again = await world.client.post(
        "/refunds",
        content=b'{ "amount_inr": 2000, "payment_id": "pay_5a2",\n "order_id": "8472" }',
        headers={"X-Tenant": "acme", "Idempotency-Key": "k", "Content-Type": "application/json"},
    )
    assert "Idempotent-Replay" not in first.headers
    assert again.headers["Idempotent-Replay"] == "true"
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert len(await world.refunds_of("8472")) == 1


async def test_the_stored_reply_does_not_follow_the_refund_but_the_lookup_does(world: World) -> None:
    await world.refund("k")
    (await world.admin.post("/_admin/refunds/rf_9001", json={"status": "settled"})).raise_for_status()
    assert (await world.refund("k")).json()["status"] == "pending"
    assert (await world.get("/refunds/by-key", key="k")).json()["refund"]["status"] == "settled"
    assert (await world.get("/refunds/rf_9001")).json()["status"] == "settled"


async def test_the_same_key_with_another_payload_is_refused(world: World) -> None:
    await world.refund("k")
    assert refusal_of(await world.refund("k", {**REFUND_8472, "amount_inr": 1999})) == (422, "key_reused")
    assert len(await world.refunds_of("8472")) == 1


async def test_a_refused_request_does_not_use_the_key_up(world: World) -> None:
    assert refusal_of(await world.refund("k", {**REFUND_8472, "amount_inr": 2001})) == (422, "amount_exceeds_payment")
    assert refusal_of(await world.get("/refunds/by-key", key="k")) == (404, "no_such_key")
    assert (await world.refund("k")).json()["refund_id"] == "rf_9001"


async def test_keys_belong_to_a_tenant_and_a_service(world: World) -> None:
    assert (await world.refund("k")).status_code == 201
    other = await world.refund(
        "k", {"order_id": "8484", "payment_id": "pay_5m2", "amount_inr": 3200}, tenant="globex"
    )
    assert other.json()["refund_id"] == "rf_9002"
    assert (await world.notify("k")).json()["notification_id"] == "ntf_1001"
    seen = await world.client.get("/refunds/by-key", params={"key": "k"}, headers={"X-Tenant": "globex"})
    assert seen.json()["refund"]["refund_id"] == "rf_9002"


async def test_another_key_on_the_same_payment_makes_another_refund(world: World) -> None:
    """The danger that the service does not prevent, and its caller must."""
    await world.refund("a")
    await world.refund("b")
    assert [refund["payment_id"] for refund in await world.refunds_of("8472")] == ["pay_5a2", "pay_5a2"]


@pytest.mark.parametrize(
    ("payload", "refusal"),
    [
        ({**REFUND_8472, "order_id": "0000"}, (404, "order_not_found")),
        ({**REFUND_8472, "payment_id": "pay_nope"}, (404, "payment_not_found")),
        ({**REFUND_8472, "payment_id": "pay_5l2", "amount_inr": 450}, (404, "payment_not_found")),
        ({**REFUND_8472, "amount_inr": 2001}, (422, "amount_exceeds_payment")),
        ({"order_id": "8484", "payment_id": "pay_5m2", "amount_inr": 1}, (403, "forbidden_tenant")),
        ({**REFUND_8472, "amount_inr": 0}, (422, "invalid_request")),
        ({**REFUND_8472, "amount_inr": "2000"}, (422, "invalid_request")),
        ({**REFUND_8472, "amount_inr": 2000.0}, (422, "invalid_request")),
        ({**REFUND_8472, "force": True}, (422, "invalid_request")),
        ({**REFUND_8472, "order_id": "\x00"}, (422, "invalid_request")),
        ({"order_id": "8472"}, (422, "invalid_request")),
    ],
)
async def test_a_refund_that_cannot_be_is_refused(world: World, payload: Json, refusal: tuple[int, str]) -> None:
    before = (await world.tables())["counts"]
    assert refusal_of(await world.refund("k", payload)) == refusal
    assert (await world.tables())["counts"] == before


async def test_a_key_in_flight_is_refused_until_its_request_is_done(world: World) -> None:
    await world.arm("slow", delay_s=0.5)
    slow = asyncio.create_task(world.refund("k"))
    await _until_logged(world, 1)
    during = await world.refund("k")
    assert refusal_of(during) == (409, "in_flight")
    assert int(during.headers["Retry-After"]) >= 1
    other = await world.refund("other", {"order_id": "8483", "payment_id": "pay_5l2", "amount_inr": 450})
    assert other.status_code == 201
    assert (await slow).status_code == 201
    assert (await world.refund("k")).headers["Idempotent-Replay"] == "true"
    assert len(await world.refunds_of("8472")) == 1


async def test_of_many_requests_with_one_key_only_one_takes_effect(world: World) -> None:
    replies = await asyncio.gather(*(world.refund("k") for _ in range(12)))
    assert {reply.status_code for reply in replies} <= {201, 409}
    made = [reply for reply in replies if reply.status_code == 201 and "Idempotent-Replay" not in reply.headers]
    assert len(made) == 1
    assert len(await world.refunds_of("8472")) == 1


async def test_a_lookup_by_key_is_not_subject_to_the_lag(world: World) -> None:
    assert refusal_of(await world.get("/refunds/by-key", key="k")) == (404, "no_such_key")
    made = await world.refund("k")
    assert (await world.get("/refunds?order_id=8472")).json()["refunds"] == []
    found = await world.get("/refunds/by-key", key="k")
    assert found.json() == {"status_code": 201, "refund": made.json()}


async def test_a_key_is_forgotten_after_its_retention(world: World) -> None:
    await world.refund("k")
    await world.pass_time(DAY_S - 60)
    assert (await world.refund("k")).headers["Idempotent-Replay"] == "true"
    await world.pass_time(DAY_S + 60)
    assert refusal_of(await world.get("/refunds/by-key", key="k")) == (404, "no_such_key")
    assert (await world.refund("k")).json()["refund_id"] == "rf_9002"


async def test_a_service_that_ignores_keys_repeats_the_effect_and_says_so(world: World) -> None:
    await world.settings("refunds", honour_keys=False)
    assert (await world.get("/capabilities", service="refunds")).json()["honours_keys"] is False
    first, second = await world.refund("k"), await world.refund("k")
    assert [first.json()["refund_id"], second.json()["refund_id"]] == ["rf_9001", "rf_9002"]
    assert (await world.get("/refunds/by-key", key="k")).json()["refund"]["refund_id"] == "rf_9001"
    assert (await world.refund(None)).status_code == 201


async def test_a_service_without_lookup_says_so(world: World) -> None:
    await world.settings("refunds", lookup_by_key=False)
    await world.refund("k")
    assert refusal_of(await world.get("/refunds/by-key", key="k")) == (501, "lookup_not_offered")
    assert (await world.get("/capabilities", service="refunds")).json()["lookup_by_key"] is False


async def test_notifications_follow_the_same_rules(world: World) -> None:
    first = await world.notify("n")
    assert (first.status_code, first.json()["status"]) == (201, "sent")
    again = await world.notify("n")
    assert (again.content, again.headers["Idempotent-Replay"]) == (first.content, "true")
    changed = await world.notify("n", {**_message(first), "body": "Something else."})
    assert refusal_of(changed) == (422, "key_reused")
    assert (await world.get("/notifications/by-key", key="n")).json()["notification"] == first.json()
    assert (await world.get("/notifications/ntf_1001")).json() == first.json()
    assert (await world.get("/notifications", recipient="cust-3391")).json()["notifications"] == [first.json()]
    assert (await world.tables())["counts"]["notifications"] == 1


def _message(sent: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in sent.json().items() if name in ("recipient", "channel", "subject", "body")}


async def _until_logged(world: World, count: int) -> None:
    for _ in range(200):
        if len(await world.log(service="refunds")) >= count:
            return
    raise AssertionError("the request did not arrive")


_PAYMENTS = [("8483", "pay_5l2"), ("8478", "pay_5g2"), ("8479", "pay_5h2")]
_REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["k1", "k2", "k3"]),
        st.sampled_from(_PAYMENTS),
        st.sampled_from([1, 400, 450, 100_000]),
        st.sampled_from([None, "error_before_commit", "error_after_commit", "garbage"]),
    ),
    max_size=12,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=_REQUESTS)
async def test_any_sequence_of_requests_keeps_one_effect_a_key(
    world: World, requests: list[tuple[str, tuple[str, str], int, str | None]]
) -> None:
    """Against a model: the first request that is valid and commits decides what its key means."""
    (await world.admin.post("/_admin/reset")).raise_for_status()
    effect_of_key: dict[str, tuple[str, int]] = {}
    for key, (order_id, payment_id), amount_inr, fault in requests:
        if fault is not None:
            await world.arm(fault)
        reply = await world.refund(key, {"order_id": order_id, "payment_id": payment_id, "amount_inr": amount_inr})
        wanted = (payment_id, amount_inr)
        reached = fault != "error_before_commit"
        known = effect_of_key.get(key)
        if reached and known is None and amount_inr < 100_000:
            effect_of_key[key] = wanted
        if fault is None:
            assert reply.status_code == (201 if effect_of_key.get(key) == wanted else 422)
    rows = (await world.tables())["refunds"]
    made = [(row["payment_id"], row["amount_inr"]) for row in rows if row["refund_id"].startswith("rf_9")]
    assert sorted(made) == sorted(effect_of_key.values())
