"""How the rehearsal model works on a refund: read what is missing, then decide from the records alone.

Notes, texts of passages and every other free text are never looked at: nothing that data says is followed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from .reading import Observed, Reading
from .refund_records import Order, Payment, Refund, order_ids, order_of, passages_of, refund_of, refunds_of

TOOLS = frozenset({"lookup_order", "get_refund_status"})
"""Where these are on offer, this is how to proceed."""

_WORTH_ANOTHER_TRY = frozenset({"unavailable", "timeout", "garbage"})
_MAX_TRIES = 2


@dataclass(frozen=True)
class Move:
    """What to propose: a tool or control action, its arguments, and a sentence of reasoning for the log."""

    name: str
    args: dict[str, JsonValue]
    because: str


@dataclass(frozen=True)
class _Case:
    """The order with its refunds, and the evidence that each comes from."""

    order: Order
    order_evidence: str
    refunds: list[Refund]
    refunds_evidence: str


def next_move(reading: Reading, offered: Collection[str]) -> Move:
    """The next proposal for a refund, from what the messages say and what is on offer."""
    named = order_ids(reading)
    if len(named) != 1:
        question = (
            f"You mention the orders {', '.join(named)}. Which one of them is this about?"
            if named
            else "Which order is this about? Please give its number."
        )
        return Move("ask_user", {"question": question}, "The request does not name exactly one order.")
    move = _investigated(reading, named[0], offered)
    return _blocked(f"{move.name} was tried without success", "") if _is_stuck(reading, move) else move


def _investigated(reading: Reading, order_id: str, offered: Collection[str]) -> Move:
    order_read = _newest(reading.about("lookup_order", order_id=order_id))
    order = order_of(order_read.data, order_id) if order_read else None
    if order_read is None or order is None:
        return _read_or_give_up(reading, "lookup_order", {"order_id": order_id}, "The order's record comes first.")
    refunds_read = _newest(reading.about("get_refund_status", order_id=order_id))
    refunds = refunds_of(refunds_read.data, order_id) if refunds_read else None
    if refunds_read is None or refunds is None or _is_outdated(reading, refunds_read):
        because = "Whether a refund exists decides what to do."
        return _read_or_give_up(reading, "get_refund_status", {"order_id": order_id}, because)
    return _decided(reading, _Case(order, order_read.evidence, refunds, refunds_read.evidence), offered)


def _decided(reading: Reading, case: _Case, offered: Collection[str]) -> Move:
    later = case.order.duplicate
    if later is None:
        return _no_duplicate(case)
    of_later = [refund for refund in case.refunds if refund.payment_id == later.payment_id]
    standing = [refund for refund in of_later if refund.status in ("pending", "settled")]
    if sum(refund.amount_inr for refund in standing) >= later.amount_inr:
        return _already_refunded(reading, case, later, standing[-1], offered)
    if of_later:
        found = ", ".join(f"{refund.refund_id} ({refund.status}, INR {refund.amount_inr})" for refund in of_later)
        return _blocked(
            f"a refund of {later.payment_id} exists but does not settle it: {found}", "A person must look."
        )
    if any(refund.status in ("pending", "settled") for refund in case.refunds):
        return _blocked("another payment of this order has been refunded already", "A person must look.")
    policy_read = _newest(reading.about("search_policy"))
    passages = passages_of(policy_read.data) if policy_read else None
    if passages is None:
        query = "duplicate card capture refund approval threshold"
        query += " open chargeback" if case.order.chargeback_open else ""
        return _read_or_give_up(reading, "search_policy", {"query": query}, "The policy says what a refund needs.")
    if not passages:
        return _blocked("the policy store has nothing about refunds of duplicate captures", "")
    return _refund(reading, case, later, offered)


def _refund(reading: Reading, case: _Case, later: Payment, offered: Collection[str]) -> Move:
    args: dict[str, JsonValue] = {
        "order_id": case.order.order_id,
        "payment_id": later.payment_id,
        "amount_inr": later.amount_inr,
    }
    tried = [past for past in reading.about("issue_refund", **args) if past.error]
    if tried and (tried[-1].error not in _WORTH_ANOTHER_TRY or len(tried) >= _MAX_TRIES):
        return _blocked(f"the refund was not possible: {tried[-1].error}: {tried[-1].message}", "")
    if "issue_refund" not in offered:
        return _blocked(f"{later.payment_id} should be refunded, but no tool on offer does that", "")
    because = f"{later.payment_id} repeats an earlier capture, and no refund for it exists."
    return Move("issue_refund", args, because)


def _already_refunded(
    reading: Reading, case: _Case, later: Payment, refund: Refund, offered: Collection[str]
) -> Move:
    """Finish with what the records say; where that was refused, read the refund itself before trying once more."""
    read = _newest(reading.about("get_refund", refund_id=refund.refund_id))
    itself = refund_of(read.data) if read else None
    current, evidence = (itself, read.evidence) if itself and read else (refund, case.refunds_evidence)
    refusals = [past.position for past in reading.about("finish") if past.error == "completion_rejected"]
    refusals += [note.position for note in reading.notes if note.about == "completion_rejected"]
    if refusals and itself is None and "get_refund" in offered:
        args: dict[str, JsonValue] = {"refund_id": refund.refund_id}
        return _read_or_give_up(reading, "get_refund", args, "The refund itself is the better evidence.")
    newest_read = max(past.position for past in reading.observed if past.readable)
    if refusals and refusals[-1] > newest_read:
        return _blocked("the runtime does not accept that the goal is reached, and nothing is left to read", "")
    ids = " and ".join(payment.payment_id for payment in case.order.captured)
    message = (
        f"For order {case.order.order_id} the payments {ids} were captured [{case.order_evidence}]. "
        f"The refund {current.refund_id} of INR {current.amount_inr:,} for payment {later.payment_id} "
        f"is {current.status} [{evidence}]."
    )
    return Move("finish", {"message": message}, "A refund of the later capture exists.")


def _no_duplicate(case: _Case) -> Move:
    count = len(case.order.captured)
    others = sorted(set(case.order.statuses) - {"captured"})
    besides = f" Other payments are {' and '.join(others)}." if others else ""
    question = (
        f"The records of order {case.order.order_id} show no duplicate: {count} captured payments, INR "
        f"{case.order.captured_inr:,} of INR {case.order.total_inr:,}.{besides} Is another order or charge meant?"
    )
    return Move("ask_user", {"question": question}, "Nothing was captured twice.")


# --- reading once more, or not ----------------------------------------------------------------------------------


def _newest(observed: Sequence[Observed]) -> Observed | None:
    """The newest result that can be read."""
    return next((past for past in reversed(observed) if past.readable), None)


def _is_outdated(reading: Reading, refunds_read: Observed) -> bool:
    """Whether an attempt to refund met a changed world after the refunds were read."""
    return any(
        past.tool == "issue_refund"
        and past.error in ("conflict", "precondition_failed")
        and past.position > refunds_read.position
        for past in reading.observed
    )


def _read_or_give_up(reading: Reading, tool: str, args: dict[str, JsonValue], because: str) -> Move:
    """Read; once more where that may help; else say why not."""
    # A search counts as the same attempt whatever its words.
    tries = reading.about(tool) if tool == "search_policy" else reading.about(tool, **args)
    failures: list[Observed] = []
    for past in reversed(tries):
        if past.readable and not past.error:
            break
        if past.error:
            failures.append(past)
    if not failures:
        useless = [past for past in tries if past.readable]
        if len(useless) >= _MAX_TRIES:
            return _blocked(f"the answers of {tool} cannot be used", "")
        return Move(tool, args, because)
    newest = failures[0]
    if newest.error == "not_found" and tool == "lookup_order":
        question = f"There is no order {args['order_id']}. Which order is meant?"
        return Move("ask_user", {"question": question}, "The order is unknown.")
    if newest.error in _WORTH_ANOTHER_TRY and len(failures) < _MAX_TRIES:
        return Move(tool, args, "The service may answer now.")
    return _blocked(f"{tool} failed: {newest.error}: {newest.message}", "")


def _is_stuck(reading: Reading, move: Move) -> bool:
    """Whether the runtime has just said that nothing moves, and this would be the same call again."""
    stalled = [note.position for note in reading.notes if note.about == "no_progress"]
    return bool(stalled) and bool(reading.about(move.name, **move.args))


def _blocked(reason: str, because: str) -> Move:
    return Move("blocked", {"reason": reason[:500]}, because or "Nothing useful is left to do.")
