"""Who acts in a run on LangGraph Server: the user that its authentication established, and nobody else.

Source: DESIGN §5 (who the approver is comes from authentication, never from the resume payload).
"""

from collections.abc import Mapping

from langgraph.config import get_config

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.ports import Purpose
from agentic_loop.graph.state import Principal

from .app import person

DEVELOPMENT_IDENTITY = "AGENTIC_LOOP_DEVELOPMENT_IDENTITY"
"""Names who starts and who approves on a development server without authentication, such as ``ravi,asha``."""

BARE_ANSWERS = "AGENTIC_LOOP_BARE_ANSWERS"
"""Set to 1 on a development server: an answer need not name its approval."""


class ServerIdentity:
    """The authenticated user of the run; without authentication, the development identities if they are set.

    The server puts ``langgraph_auth_user`` into the run's configuration itself; a client cannot set it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._development = _development_identities(environment)

    def principal(self, purpose: Purpose) -> Principal | None:
        """The person who acts, or None where nobody is known."""
        user = get_config().get("configurable", {}).get("langgraph_auth_user")
        identity = _identity_of(user)
        if identity is not None:
            return person(identity, self._environment)
        if self._development is None:
            return None
        starter, approver = self._development
        return approver if purpose == "approve" else starter


def _identity_of(user: object) -> str | None:
    """The name of an authenticated user; Studio's own stand-in user counts as nobody."""
    if user is None or getattr(user, "is_authenticated", False) is not True:
        return None
    if type(user).__name__ == "StudioUser":
        return None
    identity = getattr(user, "identity", None)
    return identity if isinstance(identity, str) and identity else None


def _development_identities(environment: Mapping[str, str]) -> tuple[Principal, Principal] | None:
    text = environment.get(DEVELOPMENT_IDENTITY, "")
    if not text:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2:
        raise Misuse(
            f"{DEVELOPMENT_IDENTITY} names two people, who starts and who approves: 'ravi,asha', not {text!r}"
        )
    return person(names[0], environment), person(names[1], environment)
