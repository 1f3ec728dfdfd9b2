"""What a task does while it runs, a line for each thing of interest.

Source: DESIGN §2 (the nodes whose updates these are).
"""

import json
from collections.abc import Callable, Sequence

from agentic_loop.graph.state import CallResult, CheckedCall, Evidence, LoopState, Proposal, ProposedCall

from .terminal_view import clip, shown_arguments

MAX_ARGUMENTS_CHARS = 160
MAX_WORDS_CHARS = 300


class ProgressLines:
    """A watcher of a runtime that says what each node did.

    ``say`` takes one line and prints it; it is given untrusted text that has been made harmless and short.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._step = 0
        self._results: list[CallResult] = []

    def __call__(self, node: str, update: LoopState) -> None:
        """Say what this update of this node amounts to; most nodes have nothing to say most of the time."""
        match node:
            case "build_input":
                self._step = update.get("step_count", self._step)
            case "decide":
                self._proposed(update, f"step {self._step} · the model")
            case "stop_check":
                self._stopped_or_not(update)
            case "validate":
                self._validated(update)
            case "authorise":
                self._authorised(update)
            case "request_approval":
                self._requested(update)
            case "await_approval":
                self._answered(update)
            case "execute" | "reconcile":
                self._executed(update, node)
            case "record":
                self._recorded(update.get("evidence", []))
            case _:
                pass

    def _proposed(self, update: LoopState, who: str) -> None:
        proposal = update.get("proposal")
        if proposal is not None:
            self._say(f"{who} proposes {proposed(proposal)}")
        self._halted(update)

    def _halted(self, update: LoopState) -> None:
        halt = update.get("halt")
        if halt is not None:
            self._say(f"    {halt.reason}: {clip(halt.detail, MAX_WORDS_CHARS)}")

    def _stopped_or_not(self, update: LoopState) -> None:
        for remark in update.get("feedback", [])[-1:]:
            self._say(f"    told the model, {remark.kind}: {clip(remark.message, MAX_WORDS_CHARS)}")
        if update.get("proposal") is not None:
            self._proposed(update, f"{clip(update.get('phase', 'workflow'), 40)} · code")
        wake_at = update.get("wake_at")
        if wake_at is not None:
            self._say(f"sleeps until {wake_at.isoformat(timespec='seconds')}")

    def _validated(self, update: LoopState) -> None:
        verdict = update.get("verdict")
        if verdict is None:
            return
        if verdict.fault is not None:
            self._say(f"    invalid: {clip(verdict.fault.message, MAX_WORDS_CHARS)}")
        for call in verdict.calls:
            if call.fault is not None:
                self._say(f"    invalid: {clip(call.tool, 64)}: {clip(call.fault.message, MAX_WORDS_CHARS)}")

    def _authorised(self, update: LoopState) -> None:
        verdict = update.get("verdict")
        for call in verdict.calls if verdict is not None else []:
            self._say(f"    {authorised(call)}")

    def _requested(self, update: LoopState) -> None:
        approval = update.get("approval")
        if approval is not None and update.get("status") == "AWAITING_APPROVAL":
            until = approval.expires_at.isoformat(timespec="seconds")
            self._say(f"    waits for approval {approval.id} by {clip(approval.required_role, 64)} until {until}")
        self._halted(update)

    def _answered(self, update: LoopState) -> None:
        answer = update.get("answer")
        if answer is None:
            return
        said = f": {clip(answer.message, MAX_WORDS_CHARS)}" if answer.message else ""
        match answer.kind:
            case "pending":
                self._say(f"approval {answer.approval_id} is still pending{said}")
            case "expired":
                self._say(f"approval {answer.approval_id} has expired")
            case _:
                self._say(f"approval {answer.approval_id} {answer.kind} by {clip(answer.decided_by, 64)}{said}")

    def _executed(self, update: LoopState, node: str) -> None:
        receipt = update.get("receipt")
        self._results = list(receipt.results) if receipt is not None else self._results
        for result in self._results:
            if result.outcome == "unknown" and update.get("next") == "reconcile":
                self._say(f"    request {result.request_id} → outcome unknown; asking the service by key")
        if node == "reconcile" and receipt is None and update.get("next") == "execute":
            self._say("    the service confirms that nothing happened; sent once more with the same key")
        self._halted(update)

    def _recorded(self, evidence: Sequence[Evidence]) -> None:
        by_request = {item.request_id: item for item in evidence}
        for result in self._results:
            self._say(f"    {observed(result, by_request.get(result.request_id))}")
        self._results = []


def proposed(proposal: Proposal) -> str:
    """The calls of a proposal, or what is wrong with an answer without any."""
    if proposal.calls:
        return " and ".join(_call(call) for call in proposal.calls)
    return f"nothing that can be called ({proposal.fault or 'empty'}): {clip(proposal.text, MAX_WORDS_CHARS)}"


def _call(call: ProposedCall) -> str:
    try:
        args = json.loads(call.arguments_json)
    except ValueError:
        args = None
    shown = shown_arguments(args) if isinstance(args, dict) else call.arguments_json
    return f"{clip(call.name, 64)}({clip(shown, MAX_ARGUMENTS_CHARS)})"


def authorised(call: CheckedCall) -> str:
    """What authorisation said of a call, naming the policy."""
    policies = ", ".join(call.policy_ids)
    match call.authorisation:
        case "allowed" if call.approval_id is not None:
            return f"allowed by {policies} with approval {call.approval_id}"
        case "allowed":
            return f"allowed by {policies}" if policies else f"allowed: {clip(call.policy_reason, MAX_WORDS_CHARS)}"
        case "needs_approval":
            clause = f"{call.policy_clause}: " if call.policy_clause else ""
            role = clip(call.required_role or "", 64)
            return f"needs approval by {role} ({clause}{clip(call.policy_reason, MAX_WORDS_CHARS)})"
        case "denied":
            return f"denied by {policies or 'default'}: {clip(call.policy_reason, MAX_WORDS_CHARS)}"
        case "pending":
            reason = call.fault.message if call.fault is not None else "not judged"
            return f"{clip(call.tool, 64)}({clip(shown_arguments(call.args), 80)}): {clip(reason, MAX_WORDS_CHARS)}"


def observed(result: CallResult, evidence: Evidence | None) -> str:
    """Where a result came from and where it went: request id, evidence id, or the fault."""
    origin = f"request {result.request_id}" if result.request_id else clip(result.tool, 64)
    recorded = " (on record already, nothing was sent)" if result.replayed else ""
    if result.fault is not None:
        return f"{origin} → {result.fault.category}: {clip(result.fault.message, MAX_WORDS_CHARS)}"
    if evidence is not None:
        return f"{origin} → {evidence.id} from {clip(evidence.source, 64)}, {result.latency_ms} ms{recorded}"
    return f"{origin} → {result.outcome}{recorded}"
