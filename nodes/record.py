"""Record: store the observation with its provenance, as data, and update what the task remembers."""

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.state import Inference, LoopState, Proposal, Verdict
from agentic_loop.policies import recording


async def record(state: LoopState, context: NodeContext) -> LoopState:
    """Turn the step's results, faults and denials into evidence, history, progress and journal entries.

    Reads: the whole turn in flight, evidence. Writes: evidence, tool_history, outstanding, usage, progress, version,
    halt, and clears the turn. Effects: rows in the evidence and journal tables, idempotent by (task, version, call).

    Source: DESIGN §2 (step 7), §3.
    """
    ports, loop = context.ports, context.loop
    receipt = state.get("receipt")
    results = receipt.results if receipt is not None else []
    proposal = state.get("proposal") or Proposal(source="model")
    verdict = state.get("verdict") or Verdict(kind="invalid")
    recorded = recording.record_step(
        recording.Step(
            task_id=context.task_id,
            version=state["version"] + 1,
            step=state["step_count"],
            at=context.now(),
            phase=state["phase"],
            status=state["status"],
            proposal=proposal,
            verdict=verdict,
            results={result.call_id: result for result in results},
            inference=state.get("inference") or Inference(),
            usage=state["usage"],
            evidence=state["evidence"],
            evidence_count=state["evidence_count"],
            tool_history=state["tool_history"],
            outstanding=state["outstanding"],
            progress=state["progress"],
            known=await ports.evidence.load(context.task_id, state["evidence_count"]),
            verified_by={spec.name: spec.verified_by for spec in loop.tools if spec.verified_by is not None},
            thresholds=loop.contract.thresholds,
            limits=state["limits"],
            declared_facts=loop.declared_facts,
        )
    )
    await ports.evidence.append(context.task_id, recorded.evidence)
    await ports.journal.append(recorded.entries)
    await ports.tasks.update(context.task_id, status="RUNNING", step_count=state["step_count"], at=context.now())
    cleared: LoopState = {
        "verdict": None,
        "receipt": None,
        "proposal": None,
        "inference": None,
        "answer": None,
        "status": "RUNNING",
        "halt": state.get("halt") or recording.halt_of(proposal, verdict.calls, results),
        "next": "stop_check",
    }
    return {**cleared, **recorded.update}
