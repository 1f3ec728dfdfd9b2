"""The example scripts, run as people run them; asserted on the services' own tables."""

import psycopg
from psycopg.rows import dict_row

from tests.conftest import DatabaseMaker, Sandbox

from .processes import run_example

REFUNDS = "SELECT order_id, payment_id, amount_inr FROM sandbox_refunds.refunds WHERE order_id = '8472'"
MESSAGES = "SELECT recipient FROM sandbox_notifications.notifications ORDER BY notification_id"


async def test_the_embedded_graph_refunds_the_later_capture_once_it_is_approved(
    make_database: DatabaseMaker,
) -> None:
    url = make_database()
    printed = run_example("embed_script.py", settings={"DATABASE_URL": url})

    waited, status, *message = printed.splitlines()
    assert waited.startswith("waits for: ravi asks for issue_refund with order_id='8472', payment_id='pay_5a2'")
    assert status == "SUCCEEDED"
    assert any("INR 2,000" in line for line in message)
    with psycopg.connect(url, row_factory=dict_row) as connection:
        refunds = connection.execute(REFUNDS).fetchall()
        messages = [row["recipient"] for row in connection.execute(MESSAGES)]
    assert refunds == [{"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000}]
    assert sorted(messages) == ["cust-3391", "role:support_lead"]


async def test_a_loop_of_ones_own_acts_once_after_an_approval(make_database: DatabaseMaker, sandbox: Sandbox) -> None:
    settings = {"DATABASE_URL": make_database(), "AGENTIC_LOOP_SANDBOX_URL": sandbox.url}
    first = run_example("own_loop.py", settings=settings)
    again = run_example("own_loop.py", settings=settings)

    assert first.splitlines()[0] == "waits for a support_lead"
    assert first.splitlines()[1].startswith("SUCCEEDED - apology ntf_")
    assert again.splitlines() == [first.splitlines()[1]], "the apology is on record: neither asked for nor sent again"
    tables = (await sandbox.admin.get("/_admin/tables")).json()
    assert [(sent["recipient"], sent["subject"]) for sent in tables["notifications"]] == [
        ("cust-3402", "About your order 8473")
    ]


async def test_a_loop_of_ones_own_sends_nothing_to_somebody_else(
    make_database: DatabaseMaker, sandbox: Sandbox
) -> None:
    settings = {"DATABASE_URL": make_database(), "AGENTIC_LOOP_SANDBOX_URL": sandbox.url}
    printed = run_example("own_loop.py", "8473", "cust-3391", settings=settings)
    assert "waits for" not in printed
    assert "SUCCEEDED" not in printed
    assert (await sandbox.admin.get("/_admin/tables")).json()["notifications"] == []
