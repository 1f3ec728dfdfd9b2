import pytest
from langchain_openai import ChatOpenAI

from agentic_loop.graph.errors import Misuse
from agentic_loop.models.chat_model import LangChainModel
from agentic_loop.models.pricing import pricing_for
from agentic_loop.models.rehearsal import RehearsalChatModel
from agentic_loop.models.settings import model_from_settings
from tests.models.provider import call, completion, running_provider
from tests.models.test_openai import propose


@pytest.mark.parametrize(
    ("spec", "environ"),
    [
        (None, {}),
        ("", {}),
        ("rehearsal", {"OPENAI_API_KEY": "sk-1", "AGENTIC_LOOP_MODEL": "openai:x"}),
        (None, {"AGENTIC_LOOP_MODEL": "rehearsal"}),
        (None, {"OPENAI_API_KEY": "sk-1"}),
    ],
)
def test_without_a_choice_the_rehearsal_model_runs(spec: str | None, environ: dict[str, str]) -> None:
    chat, name = model_from_settings(spec, environ)
    assert isinstance(chat, RehearsalChatModel)
    assert name == "rehearsal"


@pytest.mark.parametrize(
    ("spec", "environ", "name"),
    [
        ("openai:gpt-4o", {"OPENAI_API_KEY": "sk-1"}, "openai:gpt-4o"),
        (None, {"OPENAI_API_KEY": "sk-1", "AGENTIC_LOOP_MODEL": " openai:gpt-5 "}, "openai:gpt-5"),
        ("openai:org/qwen:7b", {"OPENAI_BASE_URL": "http://localhost:1/v1"}, "openai:org/qwen:7b"),
    ],
)
def test_an_openai_model_is_made_without_retries_of_its_own(
    spec: str | None, environ: dict[str, str], name: str
) -> None:
    chat, found = model_from_settings(spec, environ)
    assert isinstance(chat, ChatOpenAI)
    assert found == name
    assert f"openai:{chat.model_name}" == name
    assert chat.max_retries == 0
    assert chat.root_async_client.max_retries == 0


@pytest.mark.parametrize("spec", ["gpt-4o", "openai:", "openai", "anthropic:claude", "Rehearsal", ":x"])
def test_anything_else_is_refused_with_the_forms(spec: str) -> None:
    with pytest.raises(Misuse, match=r"openai:NAME .* or rehearsal"):
        model_from_settings(spec, {"OPENAI_API_KEY": "sk-1"})


def test_a_key_is_only_needed_where_openai_itself_is_asked() -> None:
    with pytest.raises(Misuse, match="OPENAI_API_KEY"):
        model_from_settings("openai:gpt-4o", {})
    with pytest.raises(Misuse, match="http://"):
        model_from_settings("openai:x", {"OPENAI_BASE_URL": "localhost:8000"})


async def test_a_server_of_ones_own_is_asked_with_the_dummy_key_or_the_given_one() -> None:
    with running_provider() as provider:
        for environ in [{}, {"OPENAI_API_KEY": "sk-mine"}]:
            chat, name = model_from_settings("openai:qwen", {"OPENAI_BASE_URL": provider.url, **environ})
            provider.answers.append(completion(calls=[call("search", '{"query":1,"query":2}')]))
            reply = await propose(LangChainModel(chat, name, pricing_for(name, {})))
            assert [c.arguments_json for c in reply.proposal.calls] == ['{"query":1,"query":2}']
        keys = [request.headers["authorization"] for request in provider.requests]
        assert keys == ["Bearer no-key-needed", "Bearer sk-mine"]
        assert {request.path for request in provider.requests} == {"/v1/chat/completions"}
