import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import httpx2
import psutil
import psycopg
import pytest

from agentic_loop.sandbox.server import SandboxStartError, start_sandbox_process
from tests.conftest import DatabaseMaker, Sandbox

WAIT_S = 15


def test_a_world_outlives_its_process_and_the_process_its_use(make_database: DatabaseMaker) -> None:
    database = make_database()
    with start_sandbox_process(database) as process:
        headers = {"X-Tenant": "acme", "Idempotency-Key": "k"}
        refund = {"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000}
        first = httpx2.post(f"{process.url}/refunds", json=refund, headers=headers)
        httpx2.post(f"{process.url}/_admin/clock", json={"offset_s": 100})
        pid = process.pid
    assert not process.running
    assert not psutil.pid_exists(pid)
    process.stop()  # the second time does nothing
    with start_sandbox_process(database) as process:
        again = httpx2.post(f"{process.url}/refunds", json=refund, headers=headers)
        assert again.headers["Idempotent-Replay"] == "true"
        assert again.content == first.content
        assert httpx2.get(f"{process.url}/_admin/clock").json()["offset_s"] == 100


def test_tables_of_another_version_are_made_anew(make_database: DatabaseMaker) -> None:
    database = make_database()
    start_sandbox_process(database).stop()
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE sandbox_admin.world SET schema_digest = 'of another version'")
        connection.execute("ALTER TABLE sandbox_refunds.refunds RENAME COLUMN status TO state")
        connection.execute("CREATE TABLE somebody_elses (id int)")
    with start_sandbox_process(database) as process:
        assert httpx2.get(f"{process.url}/_admin/tables").json()["counts"]["refunds"] == 4
    with psycopg.connect(database) as connection:
        connection.execute("SELECT * FROM somebody_elses")


def test_a_hanging_request_does_not_hold_up_the_end(make_database: DatabaseMaker) -> None:
    with start_sandbox_process(make_database()) as process:
        fault = {"service": "payments", "kind": "timeout_before_commit", "delay_s": 60}
        httpx2.post(f"{process.url}/_admin/faults", json=fault)
        with contextlib.suppress(httpx2.ReadTimeout):
            httpx2.get(f"{process.url}/orders/8472", headers={"X-Tenant": "acme"}, timeout=0.2)
    assert not process.running


def test_a_sandbox_that_cannot_start_says_so_and_leaves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(SandboxStartError, match="did not start"):
        start_sandbox_process("postgresql://postgres@127.0.0.1:1/none")
    assert "Cannot reach the database" in capfd.readouterr().err
    assert set(psutil.Process().children()) == before


def test_a_sandbox_that_does_not_answer_in_time_is_ended(make_database: DatabaseMaker) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(SandboxStartError, match="no answer in time"):
        start_sandbox_process(make_database(), ready_timeout_s=0.05)
    assert set(psutil.Process().children()) == before


def test_a_missing_database_url_is_refused() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "AGENTIC_LOOP_SANDBOX_DATABASE_URL"}
    run = subprocess.run(
        [sys.executable, "-m", "agentic_loop.sandbox"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert run.returncode == 2
    assert "--database-url" in run.stderr


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_the_sandbox_dies_with_its_parent(make_database: DatabaseMaker, death: signal.Signals) -> None:
    program = textwrap.dedent("""
        import json, sys, time
        from agentic_loop.sandbox.server import start_sandbox_process
        process = start_sandbox_process(sys.argv[1])
        print(json.dumps({"pid": process.pid}), flush=True)
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", program, make_database()], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        sandbox = psutil.Process(json.loads(parent.stdout.readline())["pid"])
        parent.send_signal(death)
        parent.wait(WAIT_S)
        with contextlib.suppress(psutil.NoSuchProcess):
            # In a container without an init process nobody reaps it; a zombie is dead.
            for _ in range(WAIT_S * 20):
                if sandbox.status() == psutil.STATUS_ZOMBIE:
                    break
                with contextlib.suppress(psutil.TimeoutExpired):
                    sandbox.wait(0.05)
            assert sandbox.status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


async def test_the_sandbox_answers_on_the_loopback_address_only(sandbox: Sandbox) -> None:
    listening = [c.laddr.ip for c in psutil.Process(sandbox.process.pid).net_connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
