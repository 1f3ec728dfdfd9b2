"""What went wrong with an inference: any exception of any provider as a :class:`ModelOutage` that says what to do.

Providers' classes differ, but nearly all carry an HTTP status and headers, so those are what is looked at.

Source: DESIGN §6 (inference retries), §10 (kinds of exception).
"""

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

from agentic_loop.graph.errors import ModelOutage

MAX_DETAIL_CHARS = 300
"""How much of a provider's message is passed on."""

_SECRET = re.compile(r"\b(?:sk|pk|key)-[A-Za-z0-9_*\-.]{4,}")
_UNUSABLE_BODY = (ValueError, LookupError, TypeError, AttributeError)
_WHAT_TO_DO = {
    400: "the provider refused the request; check that the model supports tool calling and this prompt size",
    401: "the provider did not accept the key; check OPENAI_API_KEY",
    402: "the provider wants payment; check the account's balance",
    403: "the key may not use this model; check the project's permissions or choose another AGENTIC_LOOP_MODEL",
    404: "there is no such model or address; check the name in AGENTIC_LOOP_MODEL and OPENAI_BASE_URL",
    422: "the provider refused the request; check that the model supports tool calling",
}
_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})


def outage_of(error: Exception, *, model: str, timeout_s: float) -> ModelOutage:
    """The outage that this exception means.

    Retryable are rate limits, server faults, time-outs, refused or dropped connections and bodies that cannot be
    read. An account without quota, a wrong key, name or request are not: no other attempt can help. Billable are
    the attempts that were sent and got no error status back.
    """
    status = _status(error)
    if status is not None:
        return _of_status(status, error, model)
    kinds = {cause_type.__name__ for cause in _causes(error) for cause_type in type(cause).__mro__}
    # Where no connection came about, nothing was sent; after that, the provider may have done the work.
    sent = kinds.isdisjoint({"ConnectError", "ConnectTimeout", "PoolTimeout", "ConnectionRefusedError"})
    if any("Timeout" in kind for kind in kinds):
        return ModelOutage(f"{model} did not answer within {timeout_s:g} s", retryable=True, billable=sent)
    if any("Connect" in kind or "ProtocolError" in kind or "Network" in kind for kind in kinds):
        what = "broke off" if sent else "could not be reached"
        return ModelOutage(f"{model} {what}: {_detail(error)}", retryable=True, billable=sent)
    if isinstance(error, OSError):
        return ModelOutage(f"{model} could not be reached: {_detail(error)}", retryable=True, billable=sent)
    if isinstance(error, _UNUSABLE_BODY) or "APIResponseValidationError" in kinds:
        return _unreadable(model, error)
    return ModelOutage(f"{model} failed: {_detail(error)}", retryable=False)


def _of_status(status: int, error: Exception, model: str) -> ModelOutage:
    detail = _detail(error)
    said = f"{error} {getattr(error, 'code', '')} {getattr(error, 'body', '')}"
    if status == 429 and "insufficient_quota" in said:
        advice = "the account has no quota left; add credit or choose another AGENTIC_LOOP_MODEL"
        return ModelOutage(f"{model}: {advice}: {detail}", retryable=False)
    if status in _RETRYABLE_STATUSES or status >= 500:
        return ModelOutage(
            f"{model} answered with status {status}: {detail}", retryable=True, retry_after_s=_retry_after_s(error)
        )
    if status < 400:
        return _unreadable(model, error)
    advice = _WHAT_TO_DO.get(status, "the provider refused the request")
    return ModelOutage(f"{model}: {advice} (status {status}): {detail}", retryable=False)


def _unreadable(model: str, error: Exception) -> ModelOutage:
    detail = _detail(error)
    return ModelOutage(f"{model} sent a body that cannot be read: {detail}", retryable=True, billable=True)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__


def _status(error: Exception) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        status = getattr(holder, "status_code", None)
        if isinstance(status, int) and not isinstance(status, bool):
            return status
    return None


def _headers(error: Exception) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return headers if isinstance(headers, Mapping) else {}


def _retry_after_s(error: Exception) -> float | None:
    headers = _headers(error)
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if 0 <= seconds < 86_400:
            return seconds
    return _seconds_until(headers.get("retry-after", ""), headers.get("date", ""))


def _seconds_until(instant: str, now: str) -> float | None:
    """A Retry-After that is a date, measured by the server's own clock."""
    try:
        seconds = (parsedate_to_datetime(instant) - parsedate_to_datetime(now)).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if 0 <= seconds < 86_400 else None


def _detail(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _SECRET.sub("[key]", text)[:MAX_DETAIL_CHARS]
