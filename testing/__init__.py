"""What tests of people's own tools and loops need: all is real but the model, the time and the service's luck.

- :class:`ScriptedChatModel` is a LangChain chat model that gives the replies of a script and keeps what it was shown.
  Wrap it like any other: ``chat_model(ScriptedChatModel([...]), "test:scripted")``. :class:`ScriptExhausted` says
  that a loop asked more often than expected.
- :class:`FakeClock` is a clock that moves only when it is told to: pass it as ``clock=`` to ``open_runtime`` to test
  expiries and pauses without waiting.
- :class:`FaultyService` is a small HTTP service on a real socket. It honours idempotency keys, can be looked up by
  key, and times out, drops connections or answers rubbish on demand, before or after the effect: a ``FaultKind``
  names which. It counts every effect and keeps every :class:`ServedRequest`.

The database is never faked: ``create_database(database_url(), "my_tests")`` gives one on the embedded Postgres.
"""

from .clock import FakeClock
from .models import ScriptedChatModel, ScriptExhausted
from .service import FaultKind, FaultyService, ServedRequest

__all__ = ["FakeClock", "FaultKind", "FaultyService", "ScriptExhausted", "ScriptedChatModel", "ServedRequest"]
