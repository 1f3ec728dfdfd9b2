"""What people are told holds only what recorded evidence says, sentence by sentence.

The messages are checked here by a reader that shares no code with the one that the loop uses.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentic_loop.graph.definition import LoopDefinition, finish_text, no_workflow, same_phase
from agentic_loop.graph.loops.refund import CONTRACT
from agentic_loop.graph.records import EvidenceRecord, ModelUsage
from agentic_loop.graph.run import TaskState
from tests.conftest import Sandbox

from .packets import ended_with_packet
from .world import ASHA, INVESTIGATION, POLICY, REFUND, World, open_world

MARK = re.compile(r"\s*\[(ev-\d+(?:, ev-\d+)*)\]")
STATUSES = {"pending", "settled", "captured", "failed", "sent", "voided", "authorised", "refunded"}
COURTESIES = {"Dear customer,", "Kind regards,", "Customer support"}
USAGE = ModelUsage(1_500, 60)


# --- a reader of its own ------------------------------------------------------------------------------------------


def claims_of(sentence: str) -> set[str]:
    """Everything in a sentence that can be wrong: whatever holds a digit, and every word for a status."""
    words = re.findall(r"[\w,.:+-]*\d[\w,.:+-]*|[A-Za-z_]+", MARK.sub("", sentence))
    found = {word.strip(",.:").replace(",", "") for word in words}
    return {word for word in found if any(map(str.isdigit, word)) or word in STATUSES}


def leaves(payload: Any) -> Iterator[str]:
    if isinstance(payload, dict):
        for value in payload.values():
            yield from leaves(value)
    elif isinstance(payload, list):
        for value in payload:
            yield from leaves(value)
    else:
        yield str(payload)


def check_claims(message: str, evidence: Sequence[EvidenceRecord]) -> int:
    """Every claim of every sentence is a value in a payload that this sentence cites; how many claims there were."""
    payloads = {record.id: set(leaves(record.payload)) for record in evidence}
    count = 0
    for sentence in filter(None, (line.strip() for line in message.splitlines())):
        if sentence in COURTESIES:
            continue
        cited = [name for mark in MARK.findall(sentence) for name in mark.split(", ")]
        assert cited, sentence
        known = set().union(*(payloads[name] for name in cited))
        claims = claims_of(sentence)
        assert claims <= known, (sentence, claims - known)
        count += len(claims)
    return count


def test_the_reader_sees_what_it_should() -> None:
    line = "Your refund rf_1 of INR 2,000 of 2026-10-28T11:17:43Z is pending [ev-4]."
    assert claims_of(line) == {"rf_1", "2000", "2026-10-28T11:17:43Z", "pending"}


# --- the loop as it ships -------------------------------------------------------------------------------------------


async def finished(world: World, goal: str) -> TaskState:
    task = await world.start(goal)
    if task.status == "AWAITING_APPROVAL":
        assert task.approval is not None
        task = await world.runtime.decide(task.approval.id, "approve", approver=ASHA)
    assert task.status == "SUCCEEDED", task.ending
    return task


async def test_every_claim_of_the_final_message_is_in_the_payload_that_it_cites(
    sandbox: Sandbox, database: str
) -> None:
    """Orders with and without an approval, already refunded, and of a customer whose id is not ASCII."""
    async with open_world(sandbox, database) as world:
        for order_id in ("8472", "8478", "8483", "8474", "8475", "8497"):
            task = await finished(world, f"Order {order_id} was charged twice, and my refund has not arrived.")
            evidence = await world.runtime.evidence(task.task_id)
            assert check_claims(task.message, evidence) >= 8, task.message
            await check_provenance(world, evidence)
            notices = await world.customer_notices()
            assert MARK.sub("", task.message).strip() == notices[-1]["body"]


async def check_provenance(world: World, evidence: Sequence[EvidenceRecord]) -> None:
    """Each piece of evidence is the answer to a request that the named service has on record."""
    log = {(row["service"], row["request_id"]): row for row in await world.requests()}
    for record in evidence:
        assert log[record.source, record.request_id]["status"] in (200, 201)


@pytest.mark.parametrize(
    "said",
    [
        "Your refund rf_8101 of INR 15,000 for payment pay_5c2 is settled [ev-2].",
        "Your refund rf_8101 of INR 1,500 is settled, and INR 500 come on top [ev-2].",
        "Done.",
    ],
)
async def test_what_a_model_makes_up_in_its_finish_reaches_nobody(sandbox: Sandbox, database: str, said: str) -> None:
    """The order was refunded before, so the goal is reached; what people read is made of verified facts."""
    script = [
        ("lookup_order", {"order_id": "8474"}),
        ("get_refund_status", {"order_id": "8474"}),
        ("finish", {"message": said}),
    ]
    async with open_world(sandbox, database, script) as world:
        task = await finished(world, "Order 8474 was charged twice.")
        assert check_claims(task.message, await world.runtime.evidence(task.task_id)) >= 8
        [notice] = await world.customer_notices()
        for told in (task.message, notice["body"]):
            assert "15,000" not in told
            assert "INR 500" not in told
            assert "1,500" in told


async def test_the_model_itself_can_notify_nobody(sandbox: Sandbox, database: str) -> None:
    notice = {"recipient": "cust-3391", "subject": "Hello", "body": "Thank you.", "reference": "refund:rf_1:pending"}
    script = [*INVESTIGATION, ("notify_customer", notice), ("blocked", {"reason": "I may not"})]
    async with open_world(sandbox, database, script) as world:
        ended = await world.start()
        await ended_with_packet(world, ended, "FAILED", "no_action")
        assert world.model is not None
        assert all("notify_customer" not in names for names in world.model.offered)
        assert '"error":"not_allowed_now"' in str(world.model.prompts[-1][-1].content)
        assert await world.requests("POST", "/notifications") == []


# --- a loop in which the model does everything itself -------------------------------------------------------------

MODEL_LED = CONTRACT.model_copy(update={"phases": []})


def model_led(loop: LoopDefinition) -> LoopDefinition:
    """The refund loop without its workflow: the model verifies, notifies and writes the last message."""
    return dataclasses.replace(loop, workflow=no_workflow, phase_of=same_phase, final_message=finish_text)


def newest_refund(prompt: list[BaseMessage]) -> dict[str, Any]:
    """The refund that the newest tool message with one quotes, and the evidence id under which it does."""
    for message in reversed(prompt):
        if message.type != "tool":
            continue
        content = json.loads(str(message.content))
        data = json.loads(content.get("data", "{}"))
        if "refund_id" in data:
            return {**data, "evidence": content["evidence"]}
    raise AssertionError("the prompt quotes no refund")


def get_it_back(prompt: list[BaseMessage]) -> tuple[str, dict[str, Any]]:
    return ("get_refund", {"refund_id": newest_refund(prompt)["refund_id"]})


class Says:
    """A message about the refund, in a notice or a finish, with one thing in it changed."""

    def __init__(self, action: str, old: str = "", new: str = "") -> None:
        self._action, self._old, self._new = action, old, new

    def __call__(self, prompt: list[BaseMessage]) -> tuple[str, dict[str, Any]]:
        refund = newest_refund(prompt)
        text = (
            f"Your refund {refund['refund_id']} of INR {refund['amount_inr']} for payment {refund['payment_id']} "
            f"of {refund['created_at']} is {refund['status']} [{refund['evidence']}]."
        ).replace(self._old, self._new or self._old)
        if self._action == "finish":
            return ("finish", {"message": text})
        reference = f"refund:{refund['refund_id']}:{refund['status']}"
        return (
            "notify_customer",
            {"recipient": "cust-3501", "subject": "Your refund", "body": text, "reference": reference},
        )


INVENTIONS = [("INR 450", "INR 451"), ("pay_5l2", "pay_5l1"), ("pending", "settled"), ("20", "19")]
"""One amount, one id, one status and one date that are not those of the record."""


async def test_a_notice_and_a_finish_with_one_invention_are_refused_until_the_model_says_what_is_so(
    sandbox: Sandbox, database: str
) -> None:
    script: list[Any] = [
        ("lookup_order", {"order_id": "8483"}),
        ("get_refund_status", {"order_id": "8483"}),
        POLICY,
        ("issue_refund", {"order_id": "8483", "payment_id": "pay_5l2", "amount_inr": 450}),
        get_it_back,
        Says("notify_customer", *INVENTIONS[0]),
        Says("notify_customer"),
        *(Says("finish", *invention) for invention in INVENTIONS),
        Says("finish"),
    ]
    async with open_world(
        sandbox,
        database,
        script,
        contract=MODEL_LED,
        adapt=model_led,
        limits={"max_steps": 20},
        usages=[USAGE] * len(script),
    ) as world:
        task = await world.start("Order 8483 was charged twice.")
        assert world.model is not None
        assert world.model.replies_left == 0
        assert task.status == "SUCCEEDED", task.ending
        assert check_claims(task.message, await world.runtime.evidence(task.task_id)) >= 4
        [notice] = await world.customer_notices()
        assert "INR 450 " in notice["body"]

        trace = await world.runtime.trace(task.task_id)
        denied = [entry for entry in trace if entry.fault is not None and entry.fault.category == "denied"]
        assert [list(entry.policy_ids) for entry in denied] == [["forbid-unsupported-notice"]]
        refused = [
            entry.fault.message for entry in trace if entry.fault and entry.fault.category == "completion_rejected"
        ]
        assert len(refused) == len(INVENTIONS)
        for (_, invented), message in zip(INVENTIONS[:3], refused[:3], strict=True):
            assert f"{invented} does not occur in" in message
        assert "does not occur in" in refused[3]


async def test_a_finish_with_an_invention_repeated_to_the_end_never_succeeds(sandbox: Sandbox, database: str) -> None:
    script: list[Any] = [
        ("lookup_order", {"order_id": "8483"}),
        ("get_refund_status", {"order_id": "8483"}),
        ("issue_refund", {"order_id": "8483", "payment_id": "pay_5l2", "amount_inr": 450}),
        get_it_back,
        Says("notify_customer"),
        *[Says("finish", "INR 450", "INR 4,500")] * 3,
    ]
    async with open_world(
        sandbox, database, script, contract=MODEL_LED, adapt=model_led, usages=[USAGE] * len(script)
    ) as world:
        task = await world.start("Order 8483 was charged twice.")
        await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "steps")
        assert task.message == ""
        assert len(await world.customer_notices()) == 1


async def test_order_8472_says_exactly_what_the_document_lets_it_say(sandbox: Sandbox, database: str) -> None:
    async with open_world(sandbox, database, [*INVESTIGATION, REFUND]) as world:
        task = await finished(world, "Order 8472 was charged twice.")
        [refund] = await world.refunds()
        for part in ("pay_5a2", "INR 2,000", "8472", str(refund["refund_id"]), "pending", "[ev-1]", "[ev-5]"):
            assert part in task.message
