"""What may be done about an effect of which nobody knows whether it happened.

Pure: values in, values out.

Source: DESIGN §6; the document's section on reconciling a side effect.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from pydantic import JsonValue

from agentic_loop.graph.records import Intent


@dataclass(frozen=True)
class ServiceFound:
    """The service holds a result for the key."""

    result: JsonValue
    ref: str


@dataclass(frozen=True)
class ServiceAbsent:
    """The service knows nothing of the key."""


@dataclass(frozen=True)
class ServiceSilent:
    """The service could not be asked, or would not say."""

    detail: str


ServiceAnswer: TypeAlias = ServiceFound | ServiceAbsent | ServiceSilent
"""What asking the service by key and arguments gave."""


@dataclass(frozen=True)
class Applied:
    """The effect happened; this is its result."""

    result: JsonValue
    ref: str


@dataclass(frozen=True)
class NotApplied:
    """The effect is confirmed not to have happened: one more dispatch with the same key is permitted."""


@dataclass(frozen=True)
class WaitForVisibility:
    """Too early to believe an absence: an effect may be invisible for this much longer."""

    delay_s: float


@dataclass(frozen=True)
class Unknown:
    """Nobody can tell. A person must look."""

    detail: str


Reconciled: TypeAlias = Applied | NotApplied | WaitForVisibility | Unknown
"""What reconciliation concluded."""


def conclude(
    intent: Intent,
    answer: ServiceAnswer,
    *,
    now: datetime,
    key_retention_s: int,
    visible_after_s: float,
    max_dispatches: int,
) -> Reconciled:
    """Conclude from the service's answer, within what the service has declared about its keys.

    An absence counts only after the declared replication lag and within the declared retention, because outside
    of that window it says nothing. Units: seconds.
    """
    match answer:
        case ServiceFound(result, ref):
            return Applied(result, ref)
        case ServiceSilent(detail):
            return Unknown(detail)
        case ServiceAbsent():
            # A clock that is behind the one of the worker that began must not make the wait longer.
            age = max(timedelta(0), now - intent.intended_at)
            if age >= timedelta(seconds=key_retention_s):
                return Unknown(
                    f"the service knows nothing of key {intent.key}, but it keeps keys for {key_retention_s} s only "
                    f"and the intent is {int(age.total_seconds())} s old"
                )
            early_s = visible_after_s - age.total_seconds()
            if early_s > 0:
                return WaitForVisibility(early_s)
            if intent.dispatches >= max_dispatches:
                return Unknown(
                    f"the service knows nothing of key {intent.key} after {intent.dispatches} dispatch(es), the limit"
                )
            return NotApplied()
