"""Progress: signs in the record that the loop goes round without getting anywhere.

Pure functions over fingerprints; nobody reads the model's prose. ``assess`` says what is wrong with a history,
``would_repeat`` refuses a call before it is made, and the ``remember`` functions carry the monitor's memory forward.

Source: DESIGN §8; the document's section on non-progress and its ProgressMonitor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import JsonValue

from agentic_loop.graph.records import EvidenceRecord
from agentic_loop.graph.state import CallResult, Limits, Progress, ProgressMark, Reason, Thresholds

from .fingerprints import canonical_json, digest

MAX_MARKS = 64
"""The most marks that are kept, whatever the thresholds say."""

# Sixteen hex digits tell actions of one task apart as surely as sixty-four, at a quarter of the checkpoint's bytes.
_HASH_CHARS = 16
_REFUSED = "refused"


# --- one step as a mark -----------------------------------------------------------------------------------------


def mark_of(*, step: int, results: Sequence[CallResult], state: str) -> ProgressMark:
    """What the monitor remembers of a step: its set of calls, each with its observation, and the state it left.

    ``state`` is the state fingerprint after the step. The observation of a call that failed is its outcome and the
    category of its fault. A call that was refused as a repeat is kept as such.
    """
    actions = sorted({result.args_hash for result in results})
    pairs = [f"{_short(result.args_hash)}:{_observation(result)}" for result in results]
    payloads = [
        f"{result.tool}:{_short(digest(result.payload))}:{_short(result.args_hash)}"
        for result in results
        if result.outcome == "ok"
    ]
    return ProgressMark(
        step=step,
        action=_short(digest([*actions])),
        pairs=sorted(pairs),
        payloads=sorted(payloads),
        state=_short(state),
    )


def _observation(result: CallResult) -> str:
    if result.outcome == "ok":
        return _short(digest(result.payload))
    if result.fault is not None and result.fault.category == "repeat_refused":
        return _REFUSED
    return _short(digest([result.outcome, None if result.fault is None else result.fault.category]))


def _short(fingerprint: str) -> str:
    return fingerprint[:_HASH_CHARS]


# --- judging a history ------------------------------------------------------------------------------------------


def assess(marks: Sequence[ProgressMark], thresholds: Thresholds) -> Reason | None:
    """What the newest step shows about progress, given the steps before it (oldest first); None if nothing is wrong.

    In this order:

    - ``repeated_action``: a call of the newest step has now had the same observation more than ``max_repeats`` times,
      or was refused as a repeat. New evidence from another action in between excuses a fresh look.
    - ``no_state_change``: the state fingerprint has stayed the same for ``max_stalled_steps`` steps in a row.
    - ``oscillation``: A-B-A-B over the sets of calls of the last four steps, the second round without new evidence.
    - ``progress_theatre``: more than ``max_theatre`` steps got the same payload from the same tool under arguments
      that had not been tried for it before.

    Source: DESIGN §8.
    """
    if not marks:
        return None
    if _is_repeated(marks, thresholds):
        return "repeated_action"
    if _stalled_steps(marks) >= max(1, thresholds.max_stalled_steps):
        return "no_state_change"
    if _oscillates(marks):
        return "oscillation"
    if _is_theatre(marks, thresholds):
        return "progress_theatre"
    return None


def would_repeat(progress: Progress, pair_action: str, thresholds: Thresholds) -> bool:
    """Whether this call must be refused: its last ``max_repeats`` observations on record are all the same.

    ``pair_action`` is the call's argument hash (tool and normal form).

    Source: DESIGN §8 (a repeat is refused before dispatch once two unchanged pairs are on record).
    """
    most = max(1, thresholds.max_repeats)
    newest = _observations(progress.marks, pair_action)[-most:]
    return len(newest) == most and len(set(newest)) == 1


def _is_repeated(marks: Sequence[ProgressMark], thresholds: Thresholds) -> bool:
    for action, observation in map(_split_pair, marks[-1].pairs):
        if observation == _REFUSED:
            return True
        if _observations(marks, action).count(observation) > thresholds.max_repeats:
            return True
    return False


def _observations(marks: Sequence[ProgressMark], action: str) -> list[str]:
    """What this call returned since another step last brought new evidence, oldest first, without refused repeats."""
    wanted = _short(action)
    found: list[str] = []
    for index in reversed(range(len(marks))):
        here = [observation for other, observation in map(_split_pair, marks[index].pairs) if other == wanted]
        if not here and _is_fresh(marks, index):
            break
        found.extend(observation for observation in here if observation != _REFUSED)
    return found[::-1]


def _stalled_steps(marks: Sequence[ProgressMark]) -> int:
    """How many of the newest steps in a row have left the state as the step before them left it."""
    stalled = 0
    for before, mark in zip(reversed(marks[:-1]), reversed(marks), strict=False):
        if mark.restarts or not mark.state or mark.state != before.state:
            break
        stalled += 1
    return stalled


def _oscillates(marks: Sequence[ProgressMark]) -> bool:
    if len(marks) < 4:
        return False
    first, second, third, fourth = (mark.action for mark in marks[-4:])
    learned = any(_is_fresh(marks, len(marks) - back) for back in (1, 2))
    return first == third and second == fourth and first != second and not learned


def _is_theatre(marks: Sequence[ProgressMark], thresholds: Thresholds) -> bool:
    for tool, payload, _ in map(_split_payload, marks[-1].payloads):
        tried: set[str] = set()
        steps = 0
        for mark in marks:
            here = {
                args for one, other, args in map(_split_payload, mark.payloads) if (one, other) == (tool, payload)
            }
            # Calls of one step are chosen before any of them answers, so a step counts once.
            steps += bool(here - tried)
            tried |= here
        if steps > thresholds.max_theatre:
            return True
    return False


def _is_fresh(marks: Sequence[ProgressMark], index: int) -> bool:
    """Whether this step brought evidence that no earlier step on record had: an unseen payload, and a changed state.

    The state is asked as well because the window of marks forgets payloads, while the state fingerprint does not.
    """
    mark = marks[index]
    if index > 0 and mark.state and mark.state == marks[index - 1].state:
        return False
    seen = {_split_payload(payload)[:2] for earlier in marks[:index] for payload in earlier.payloads}
    return any(_split_payload(payload)[:2] not in seen for payload in mark.payloads)


def _split_pair(pair: str) -> tuple[str, str]:
    action, _, observation = pair.rpartition(":")
    return _short(action), observation


def _split_payload(entry: str) -> tuple[str, str, str]:
    rest, _, args = entry.rpartition(":")
    tool, _, payload = rest.rpartition(":")
    return tool, payload, args


# --- the memory -------------------------------------------------------------------------------------------------


def remember(progress: Progress, mark: ProgressMark, thresholds: Thresholds) -> Progress:
    """The memory after one more step with calls, with the flag that the step raises, if any.

    The window of marks is bounded. New evidence resets the counters; an action that is not on record, proposed right
    after a corrective observation, is a changed plan and starts the count of stalled steps anew, once per correction.

    Source: DESIGN §8.
    """
    is_new_plan = progress.corrected and all(mark.action != earlier.action for earlier in progress.marks)
    marks = [*progress.marks, mark.model_copy(update={"restarts": is_new_plan})][-_kept(thresholds) :]
    learned = _is_fresh(marks, len(marks) - 1)
    return progress.model_copy(
        update={
            "marks": marks,
            "stalled_steps": _stalled_steps(marks),
            "invalid_in_a_row": 0,
            "corrections": 0 if learned else progress.corrections,
            "corrected": False,
            "flag": assess(marks, thresholds),
        }
    )


def remember_invalid(progress: Progress, limits: Limits) -> Progress:
    """The memory after one more proposal that could not be used; too many in a row are ``validation_churn``.

    Source: DESIGN §8.
    """
    in_a_row = progress.invalid_in_a_row + 1
    is_churn = in_a_row >= limits.max_invalid_proposals
    return progress.model_copy(
        update={"invalid_in_a_row": in_a_row, "flag": "validation_churn" if is_churn else progress.flag}
    )


def remember_wait(progress: Progress) -> Progress:
    """The memory after an accepted ``wait_and_recheck``: time has passed, so looking again is no repeat.

    Polling is bounded by its own budget, ``max_rechecks``.

    Source: DESIGN §8.
    """
    return progress.model_copy(
        update={"marks": [], "stalled_steps": 0, "invalid_in_a_row": 0, "corrected": False, "flag": None}
    )


def correct(progress: Progress) -> Progress:
    """The memory after the model was given a corrective observation for the flag, which is thereby answered.

    Source: DESIGN §8 (one corrective observation, then NO_PROGRESS).
    """
    return progress.model_copy(update={"corrections": progress.corrections + 1, "corrected": True, "flag": None})


def _kept(thresholds: Thresholds) -> int:
    """How many marks the checks look back over; repeats and theatre may have other steps in between."""
    repeats = 4 * (max(thresholds.max_repeats, thresholds.max_theatre, 0) + 1)
    return max(4, min(MAX_MARKS, max(thresholds.window, repeats, thresholds.max_stalled_steps + 1)))


# --- contradiction ----------------------------------------------------------------------------------------------

ReadFact: TypeAlias = Callable[[JsonValue], JsonValue]
"""Reads a fact from a tool's payload; None where the payload does not state it."""


@dataclass(frozen=True)
class DeclaredFact:
    """A fact that more than one tool can state, and how to read it from the payload of each.

    ``readers`` maps a tool's name to its reader. ``subject`` says what a piece of evidence is about (an order id, for
    example), so that statements about different things are not compared; by default everything has one subject.

    Source: DESIGN §8 (contradiction).
    """

    name: str
    readers: Mapping[str, ReadFact]
    subject: Callable[[EvidenceRecord], str] = field(default=lambda record: "")


@dataclass(frozen=True)
class _Disagreement:
    """Tools that state different values of one fact about one subject."""

    fact: DeclaredFact
    subject: str
    statement: str


def disagreements(evidence: Sequence[EvidenceRecord], declared: Sequence[DeclaredFact]) -> list[str]:
    """The declared facts on which the newest statements of different tools disagree, as sentences.

    The same disagreement is the same sentence whenever it is found. ``evidence`` is ordered oldest first.
    """
    return [found.statement for found in _disagreements(evidence, declared)]


def remember_evidence(
    progress: Progress,
    *,
    before: Sequence[EvidenceRecord],
    fresh: Sequence[EvidenceRecord],
    declared: Sequence[DeclaredFact],
) -> Progress:
    """The memory after new evidence was compared with what was known; call it after ``remember``.

    ``before`` is the evidence up to the step, ``fresh`` what the step added. A disagreement that was there before and
    is there unchanged after one of its tools was asked again raises ``contradiction``, unless a flag is up already.

    Source: DESIGN §8.
    """
    if not declared:
        return progress
    earlier = {found.statement for found in _disagreements(before, declared)}
    now = _disagreements([*before, *fresh], declared)
    stuck = any(
        found.statement in earlier and any(_states(record, found.fact, found.subject) for record in fresh)
        for found in now
    )
    flag: Reason | None = "contradiction" if stuck and progress.flag is None else progress.flag
    return progress.model_copy(update={"disagreements": [found.statement for found in now], "flag": flag})


def _disagreements(evidence: Sequence[EvidenceRecord], declared: Sequence[DeclaredFact]) -> list[_Disagreement]:
    found: list[_Disagreement] = []
    for fact in declared:
        newest: dict[str, dict[str, str]] = {}
        for record in evidence:
            value = _read(record, fact)
            if value is not None:
                newest.setdefault(fact.subject(record), {})[record.tool] = canonical_json(value)
        for subject, values in newest.items():
            if len(set(values.values())) > 1:
                said = ", ".join(f"{tool} says {values[tool][:120]}" for tool in sorted(values))
                about = f" of {subject}" if subject else ""
                found.append(_Disagreement(fact, subject, f"{fact.name}{about}: {said}"))
    return found


def _states(record: EvidenceRecord, fact: DeclaredFact, subject: str) -> bool:
    return _read(record, fact) is not None and fact.subject(record) == subject


def _read(record: EvidenceRecord, fact: DeclaredFact) -> JsonValue:
    reader = fact.readers.get(record.tool)
    if reader is None:
        return None
    try:
        return reader(record.payload)
    except (LookupError, TypeError, ValueError, AttributeError):
        # A payload of an unexpected shape states nothing; what is wrong with it is told where it was received.
        return None
