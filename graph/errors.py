"""The three kinds of exception: whose fault it is tells what to do.

Outcomes that the loop knows how to handle are values, never exceptions.

Source: DESIGN §10.
"""

from .state import CallFault, FaultCategory


class Defect(Exception):
    """Our own fault: a promise of this code was broken. The run stops; report it."""


class Outage(Exception):
    """Something that the run needs is not there; waiting may help. Nothing was acknowledged that is not durable."""


class Misuse(Exception):
    """The caller's fault; the message says what to do instead."""


class ModelOutage(Outage):
    """The model could not be reached or did not answer.

    ``retryable`` says whether another attempt may help; ``retry_after_s`` is what the provider asked for.
    ``billable`` says that the provider may charge for the attempt although no answer arrived (a time-out, say).
    """

    def __init__(
        self, message: str, *, retryable: bool, retry_after_s: float | None = None, billable: bool = False
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.billable = billable


class LeaseRefused(Outage):
    """Another worker runs this task; this one must not touch it."""


class ToolFault(Exception):
    """A tool call that failed in a known way.

    ``retryable`` is true where nothing happened and the same read may be tried again. For a write, raise
    :class:`OutcomeUnknown` unless the service has said that it did nothing.
    """

    def __init__(self, category: FaultCategory, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.category: FaultCategory = category
        self.retryable = retryable

    @property
    def fault(self) -> CallFault:
        """The fault as a value for the journal and the model."""
        return CallFault(category=self.category, message=str(self))


class OutcomeUnknown(Exception):
    """A write was sent and nobody can say whether it took effect: reconcile, never send again."""
