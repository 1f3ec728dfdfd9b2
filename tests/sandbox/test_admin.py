from datetime import UTC, datetime, timedelta

from tests.sandbox.conftest import ACME, REFUND_8472, World, refusal_of


async def test_a_reset_restores_the_first_day(world: World) -> None:
    first_day = await world.tables()
    await world.refund("k")
    await world.notify("n")
    await world.arm("error_before_commit", times=9)
    await world.settings("refunds", replication_lag_s=99, honour_keys=False)
    await world.pass_time(5000)
    await world.admin.post("/_admin/orders", json={"order_id": "8472", "total_inr": 1})
    (await world.admin.post("/_admin/reset")).raise_for_status()
    assert await world.tables() == first_day
    assert await world.log() == []
    assert (await world.admin.get("/_admin/faults")).json() == {"faults": []}
    assert (await world.get("/capabilities?service=refunds")).json()["replication_lag_s"] == 2
    assert (await world.admin.get("/_admin/clock")).json()["offset_s"] == 0
    assert (await world.refund("k")).json()["refund_id"] == "rf_9001"
    assert (await world.notify("n")).json()["notification_id"] == "ntf_1001"


async def test_the_log_has_what_arrived(world: World) -> None:
    headers = {**ACME, "X-Request-Id": "req-8472-01", "Idempotency-Key": "k"}
    await world.client.post("/refunds", json=REFUND_8472, headers=headers)
    await world.client.get("/refunds", params={"order_id": "84 72"}, headers=headers)
    posted, listed = await world.log()
    assert posted | {"at": "", "entry_id": 0} == {
        "entry_id": 0,
        "service": "refunds-service",
        "operation": "POST /refunds",
        "method": "POST",
        "path": "/refunds",
        "query": "",
        "tenant": "acme",
        "request_id": "req-8472-01",
        "idempotency_key": "k",
        "body": '{"order_id":"8472","payment_id":"pay_5a2","amount_inr":2000}',
        "status": 201,
        "fault": None,
        "at": "",
    }
    assert listed["query"] in ("order_id=84%2072", "order_id=84+72")


async def test_the_log_can_be_narrowed(world: World) -> None:
    await world.refund("k")
    await world.get("/refunds/rf_9001")
    await world.get("/orders/8472")
    assert len(await world.log()) == 3
    assert [entry["path"] for entry in await world.log(service="refunds")] == ["/refunds", "/refunds/rf_9001"]
    assert [entry["path"] for entry in await world.log(service="refunds-service", method="post")] == ["/refunds"]


async def test_an_order_can_be_placed_and_replaced(world: World) -> None:
    order = {
        "order_id": "r-1",
        "customer_id": "cust-r",
        "tenant": "acme",
        "total_inr": 70,
        "payments": [
            {"payment_id": "pay_r1", "amount_inr": 70, "status": "captured", "at": "2026-10-20T09:00:00Z"},
            {"payment_id": "pay_r2", "amount_inr": 70, "status": "captured", "at": "2026-10-20T09:00:09Z"},
        ],
        "refunds": [{"payment_id": "pay_r2", "amount_inr": 70, "status": "failed"}],
        "note": "hello",
    }
    placed = await world.admin.post("/_admin/orders", json=order)
    assert placed.status_code == 201
    assert (await world.get("/orders/r-1")).json() == placed.json()
    # Placed refunds have always been there: the lag does not hide them, and the counter does not know them.
    (refund,) = (await world.get("/refunds?order_id=r-1")).json()["refunds"]
    assert refund["refund_id"] == "rf_r-1_1"
    await world.admin.post("/_admin/orders", json={**order, "refunds": [], "note": None})
    assert (await world.get("/refunds?order_id=r-1")).json()["refunds"] == []
    assert "note" not in (await world.get("/orders/r-1")).json()
    clash = await world.admin.post("/_admin/orders", json={**order, "order_id": "r-2"})
    assert refusal_of(clash) == (409, "id_in_use")
    assert (await world.get("/orders/r-2")).status_code == 404


async def test_a_refund_can_be_settled_or_fail(world: World) -> None:
    await world.refund("k")
    for status in ("settled", "failed", "pending"):
        await world.admin.post("/_admin/refunds/rf_9001", json={"status": status})
        assert (await world.get("/refunds/rf_9001")).json()["status"] == status
    assert refusal_of(await world.admin.post("/_admin/refunds/rf_1", json={"status": "failed"})) == (
        404,
        "refund_not_found",
    )


async def test_the_clock_can_be_set(world: World) -> None:
    await world.admin.post("/_admin/clock", json={"now": "2026-10-28T11:00:00Z"})
    made = datetime.fromisoformat((await world.refund("k")).json()["created_at"])
    assert timedelta() <= made - datetime(2026, 10, 28, 11, tzinfo=UTC) < timedelta(seconds=30)
    assert (await world.log())[0]["at"].startswith("2026-10-28T11:00")
    both = {"now": "2026-10-28T11:00:00Z", "offset_s": 1}
    for change in ({}, both):
        assert refusal_of(await world.admin.post("/_admin/clock", json=change)) == (422, "invalid_request")


async def test_settings_are_changed_one_by_one(world: World) -> None:
    await world.settings("notifications", lookup_by_key=False)
    settings = (await world.admin.get("/_admin/settings")).json()["settings"]
    (changed,) = [entry for entry in settings if entry["service"] == "notifications-service"]
    assert (changed["lookup_by_key"], changed["honour_keys"]) == (False, True)
