"""Which chat model runs, from settings.

``AGENTIC_LOOP_MODEL`` is ``openai:NAME`` or ``rehearsal``. ``OPENAI_API_KEY`` and ``OPENAI_BASE_URL`` are those of
the OpenAI SDK; with a base URL any server with OpenAI's interface works, and a key is not needed.
"""

from collections.abc import Mapping

from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from agentic_loop.graph.errors import Misuse

from .raw_arguments import ChatOpenAIKeepingArguments
from .rehearsal import REHEARSAL, RehearsalChatModel

MODEL_VARIABLE = "AGENTIC_LOOP_MODEL"
KEY_VARIABLE = "OPENAI_API_KEY"
BASE_URL_VARIABLE = "OPENAI_BASE_URL"

_FORMS = (
    f"write openai:NAME (for example openai:gpt-4o-mini, with {KEY_VARIABLE} or {BASE_URL_VARIABLE}) or {REHEARSAL}"
)
_NO_KEY = "no-key-needed"


def model_from_settings(spec: str | None, environ: Mapping[str, str]) -> tuple[BaseChatModel, str]:
    """The chat model and its name, such as ``openai:gpt-4o-mini`` or ``rehearsal``.

    ``spec`` comes first, then ``AGENTIC_LOOP_MODEL``, then the rehearsal model. The model never retries by itself and
    has no time-out of its own: both are the loop's.

    Raises:
        Misuse: the text names no known kind of model, or a model that needs a key when there is none.
    """
    wanted = (spec or environ.get(MODEL_VARIABLE, "")).strip()
    if wanted in ("", REHEARSAL):
        return RehearsalChatModel(), REHEARSAL
    provider, separator, name = wanted.partition(":")
    if provider != "openai" or not separator or not name.strip():
        raise Misuse(f"unknown model {wanted!r}: {_FORMS}")
    return _openai(name.strip(), environ), f"openai:{name.strip()}"


def _openai(name: str, environ: Mapping[str, str]) -> BaseChatModel:
    base_url = environ.get(BASE_URL_VARIABLE, "").strip() or None
    key = environ.get(KEY_VARIABLE, "").strip() or (_NO_KEY if base_url is not None else "")
    if not key:
        raise Misuse(
            f"openai:{name} needs a key: set {KEY_VARIABLE}, or {BASE_URL_VARIABLE} for a server of your own, "
            f"or choose {MODEL_VARIABLE}={REHEARSAL}"
        )
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise Misuse(f"{BASE_URL_VARIABLE} must begin with http:// or https://, not {base_url!r}")
    return ChatOpenAIKeepingArguments(
        model=name,
        api_key=SecretStr(key),
        base_url=base_url,
        max_retries=0,
        disable_streaming=True,
        # Servers with OpenAI's interface offer chat completions; the newer interface is OpenAI's own.
        use_responses_api=None if base_url is None else False,
    )
