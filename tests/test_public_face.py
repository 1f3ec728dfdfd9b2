"""The public names: complete, typed, documented, cheap to import; and what `define_loop` says to mistakes."""

import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

import agentic_loop
import agentic_loop.testing
from agentic_loop import (
    Completed,
    Contract,
    Incomplete,
    Limits,
    LoopDefinition,
    Misuse,
    PhaseRule,
    TaskView,
    chat_model,
    define_loop,
    model_from_settings,
    tool,
)
from agentic_loop.graph.records import ModelUsage
from agentic_loop.policies.authorisation import Allowed, Denied, NeedsApproval, authorise
from agentic_loop.testing import ScriptedChatModel

POLICY = """
@id("read-temperature")
@reason("Anybody may read.")
permit (principal, action == Action::"temperature", resource);
"""


@tool(effect="read", scope="rooms:read", source="rooms")
def temperature(room: str) -> JsonValue:
    """Read the temperature of a room."""
    return {"room": room, "celsius": 19}


def nothing_yet(view: TaskView) -> Completed | Incomplete:
    return Completed("read") if view.evidence else Incomplete("nothing was read")


def loop(**changes: Any) -> LoopDefinition:
    parts: dict[str, Any] = {
        "contract": "thermostat",
        "tools": [temperature],
        "policy": POLICY,
        "completion": nothing_yet,
        "instructions": "Read the temperature.",
    }
    return define_loop(**{**parts, **changes})


# --- the names --------------------------------------------------------------------------------------------------


def test_every_public_name_is_listed_once_and_lives_where_it_says() -> None:
    assert len(set(agentic_loop.__all__)) == len(agentic_loop.__all__)
    assert sorted(agentic_loop.__all__) == sorted(agentic_loop._HOME_OF)
    for name, home in agentic_loop._HOME_OF.items():
        assert getattr(agentic_loop, name) is getattr(importlib.import_module(home), name)


def test_type_checkers_see_the_same_names_as_the_interpreter() -> None:
    tree = ast.parse(Path(agentic_loop.__file__).read_text("utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: node.module
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == agentic_loop._HOME_OF


@pytest.mark.parametrize("module", [agentic_loop, agentic_loop.testing])
def test_the_front_page_mentions_what_people_call_and_everything_is_documented(module: Any) -> None:
    assert module.__doc__
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
    functions = [name for name in module.__all__ if inspect.isfunction(getattr(module, name))]
    # Where the database is belongs to the guides; what makes a loop and runs it belongs on the front page.
    unmentioned = [name for name in functions if name not in module.__doc__]
    assert set(unmentioned) <= {"create_database", "database_url"}


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, json, agentic_loop; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    assert {"langgraph", "langchain_core", "pydantic", "openai", "psycopg", "cedarpy"} & loaded == set()


def test_an_unknown_name_is_an_ordinary_attribute_error_and_known_ones_are_listed() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Agent'"):
        _ = agentic_loop.Agent
    assert set(agentic_loop.__all__) <= set(dir(agentic_loop))


# --- define_loop ------------------------------------------------------------------------------------------------


def test_a_name_is_contract_enough() -> None:
    made = loop()
    assert made.contract == Contract(name="thermostat", allowed_tools=["temperature"])
    assert made.contract.limits == Limits()
    assert [spec.name for spec in made.tools] == ["temperature"]


def test_a_contract_is_taken_as_it_is() -> None:
    contract = Contract(name="thermostat", version="7", limits=Limits(max_steps=2), allowed_tools=["temperature"])
    assert loop(contract=contract).contract is contract


class Facts(BaseModel):
    rooms_seen: int


def rooms_seen(_tool: str, _args: Mapping[str, JsonValue], view: TaskView) -> Facts:
    return Facts(rooms_seen=len(view.evidence))


REQUESTER = agentic_loop.Principal(id="ravi", tenant="acme", scopes=["rooms:read"])


def judged(made: LoopDefinition, facts: BaseModel) -> Allowed | NeedsApproval | Denied:
    return authorise(
        made.policies,
        requester=REQUESTER,
        tool="temperature",
        args={"room": "hall"},
        facts=facts,
        resource_tenant=None,
    )


def test_the_policy_may_ask_for_facts_of_the_model_that_the_function_returns() -> None:
    policy = POLICY.replace("resource);", "resource) when { context.facts.rooms_seen < 2 };")
    made = loop(policy=policy, facts=rooms_seen)
    assert isinstance(judged(made, Facts(rooms_seen=1)), Allowed)
    assert isinstance(judged(made, Facts(rooms_seen=2)), Denied)
    with pytest.raises(Misuse, match="rooms_seen"):
        loop(policy=policy)


def test_a_policy_is_text_a_file_or_several_texts(tmp_path: Path) -> None:
    file = tmp_path / "rooms.cedar"
    file.write_text(POLICY, "utf-8")
    for policy in (POLICY, file, {"rooms.cedar": POLICY, "empty.cedar": ""}):
        made = loop(policy=policy)
        assert isinstance(judged(made, made.facts("temperature", {}, None)), Allowed)  # type: ignore[arg-type]
    assert loop(policy=file).policies.rules["read-temperature"].file == "rooms.cedar"


def test_roles_of_ones_own_can_approve() -> None:
    policy = POLICY.replace("resource);", 'resource) when { context.approval.approver in Role::"janitor" };').replace(
        "when {", "when { context has approval &&"
    )
    made = loop(policy=policy, approver_roles=["janitor"])
    answer = judged(made, made.facts("temperature", {}, None))  # type: ignore[arg-type]
    assert isinstance(answer, NeedsApproval)
    assert answer.role == "janitor"
    with pytest.raises(Misuse, match="janitor"):
        loop(policy=policy)


def undecorated(room: str) -> JsonValue:
    return room


def untyped(_tool: str, _args: Mapping[str, JsonValue], _view: TaskView):  # type: ignore[no-untyped-def]
    return Facts(rooms_seen=0)


def too_general(_tool: str, _args: Mapping[str, JsonValue], _view: TaskView) -> BaseModel:
    return Facts(rooms_seen=0)


def unresolved(_tool: str, _args: Mapping[str, JsonValue], _view: TaskView) -> "Unheard":  # type: ignore[name-defined]  # noqa: F821
    return Facts(rooms_seen=0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"contract": "Thermostat!"}, "cannot name a loop"),
        ({"contract": Contract(name="t", allowed_tools=["humidity"])}, "did you mean|Registered: temperature"),
        (
            {
                "contract": Contract(
                    name="t", allowed_tools=["temperature"], phases=[PhaseRule(name="p", tools=["heat"])]
                )
            },
            "phase 'p' names heat",
        ),
        ({"tools": [undecorated]}, "undecorated is no tool: put @tool"),
        ({"tools": []}, "at least one tool"),
        ({"tools": [temperature, temperature]}, "two tools are named 'temperature'"),
        ({"policy": "  \n"}, "what no policy permits is denied"),
        ({"policy": {}}, "what no policy permits is denied"),
        ({"policy": Path("nowhere.cedar")}, "nowhere.cedar cannot be read"),
        ({"policy": "permit everything"}, "policy.cedar: this is not Cedar"),
        ({"instructions": " "}, "instructions are empty"),
        ({"facts": untyped}, "return annotation is a pydantic model"),
        ({"facts": too_general}, "return annotation is a pydantic model"),
        ({"facts": unresolved}, "cannot be resolved"),
    ],
)
def test_a_mistake_is_named_with_what_to_write_instead(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        loop(**changes)


# --- models -----------------------------------------------------------------------------------------------------


def test_any_chat_model_becomes_a_model_with_a_price() -> None:
    rehearsal = chat_model(*model_from_settings(None, {}))
    assert rehearsal.name == "rehearsal"
    scripted = chat_model(
        ScriptedChatModel([]),
        "test:scripted",
        environment={
            "AGENTIC_LOOP_PRICE_INPUT_USD_PER_MTOK": "2",
            "AGENTIC_LOOP_PRICE_OUTPUT_USD_PER_MTOK": "4",
        },
    )
    assert scripted.name == "test:scripted"
    assert scripted.cost_micro_usd(ModelUsage(input_tokens=10, output_tokens=1)) == 24
    with pytest.raises(Misuse, match="unknown model"):
        model_from_settings("gpt", {})
