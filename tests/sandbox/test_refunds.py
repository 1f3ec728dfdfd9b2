from tests.sandbox.conftest import GLOBEX, World, refusal_of


async def test_the_list_lags_and_reads_by_identifier_do_not(world: World) -> None:
    await world.refund("k")
    assert (await world.get("/refunds?order_id=8472")).json() == {"order_id": "8472", "refunds": []}
    assert (await world.get("/refunds/rf_9001")).json()["payment_id"] == "pay_5a2"
    assert len((await world.get("/refunds/by-payment/pay_5a2")).json()["refunds"]) == 1
    await world.pass_time(3)
    assert [r["refund_id"] for r in (await world.get("/refunds?order_id=8472")).json()["refunds"]] == ["rf_9001"]


async def test_the_lag_is_a_setting_that_the_service_declares(world: World) -> None:
    await world.settings("refunds", replication_lag_s=0)
    await world.refund("k")
    assert len((await world.get("/refunds?order_id=8472")).json()["refunds"]) == 1
    await world.settings("refunds", replication_lag_s=3600)
    assert (await world.get("/refunds?order_id=8472")).json()["refunds"] == []
    assert (await world.get("/capabilities?service=refunds-service")).json() == {
        "service": "refunds-service",
        "honours_keys": True,
        "lookup_by_key": True,
        "idempotency_key_retention_s": 86_400,
        "replication_lag_s": 3600,
    }


async def test_capabilities_of_an_unknown_service(world: World) -> None:
    assert refusal_of(await world.get("/capabilities?service=loans")) == (400, "unknown_service")


async def test_refunds_of_another_tenant_are_refused_by_every_route(world: World) -> None:
    await world.refund("k")
    for path in ("/refunds?order_id=8472", "/refunds/rf_9001", "/refunds/by-payment/pay_5a2"):
        assert refusal_of(await world.client.get(path, headers=GLOBEX)) == (403, "forbidden_tenant")
    by_key = await world.client.get("/refunds/by-key?key=k", headers=GLOBEX)
    assert refusal_of(by_key) == (404, "no_such_key")


async def test_what_is_not_there(world: World) -> None:
    assert refusal_of(await world.get("/refunds/rf_1")) == (404, "refund_not_found")
    assert refusal_of(await world.get("/refunds/by-payment/pay_1")) == (404, "payment_not_found")
    assert refusal_of(await world.get("/refunds")) == (422, "invalid_request")
    assert (await world.get("/refunds?order_id=0000")).json()["refunds"] == []


async def test_a_notification_of_another_tenant_is_refused(world: World) -> None:
    await world.notify("n")
    refused = await world.client.get("/notifications/ntf_1001", headers=GLOBEX)
    assert refusal_of(refused) == (403, "forbidden_tenant")
    listed = await world.client.get("/notifications?recipient=cust-3391", headers=GLOBEX)
    assert listed.json()["notifications"] == []
    assert refusal_of(await world.get("/notifications/ntf_9")) == (404, "notification_not_found")
