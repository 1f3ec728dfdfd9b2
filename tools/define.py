"""How people declare tools: a typed function, or a JSON Schema and a callable.

Both end in the same :class:`ToolSpec`, so that every gate of the loop treats them alike.

Source: DESIGN §1, §6.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Required, TypeAlias, TypedDict, Unpack, get_type_hints

import anyio
from anyio.lowlevel import RunVar
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from agentic_loop.graph.errors import Misuse, ToolFault
from agentic_loop.graph.state import Effect

from .tool import Arguments, PreconditionCall, Reconcile, ToolContext, ToolResult, ToolSpec

_MAX_THREADS = 16
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("agentic_loop_tool_threads")


class ToolOptions(TypedDict, total=False):
    """What a declaration says besides name, description, arguments and work; see :class:`ToolSpec`."""

    effect: Required[Effect]
    scope: Required[str]
    source: Required[str]
    timeout_s: float
    max_attempts: int
    max_calls: int
    payload_limit_bytes: int
    cost_bound_micro_usd: int
    idempotency_key: str | None
    reconcile: Reconcile | None
    precondition: PreconditionCall | None
    verified_by: str | None
    approval_required: bool


SchemaCall: TypeAlias = Callable[[Arguments, ToolContext], object]
"""The work behind a JSON Schema: sync or async, given the arguments and the context; returns JSON or a result."""


def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[..., object]], ToolSpec]:
    """Make a tool of a typed function, sync (it runs in a thread) or async.

    Annotations and defaults become the JSON Schema of the arguments: strict types, no other arguments. The
    docstring becomes the description. A parameter annotated ``ToolContext`` is given the context and is not shown to
    the model. The function returns JSON data, a pydantic model or a ``ToolResult``, and raises ``ToolFault`` for
    failures that it knows; a write raises ``OutcomeUnknown`` where it cannot say what happened.

    Raises:
        Misuse: when the function cannot become a tool; the message says what to change.
    """

    def declare(function: Callable[..., object]) -> ToolSpec:
        tool_name = name or str(getattr(function, "__name__", ""))
        model, context_name = _arguments_of(function, tool_name)
        words = description or inspect.getdoc(function) or ""
        if not words:
            raise Misuse(
                f"tool {tool_name!r} needs a docstring or description=: it is all that the model knows of it"
            )
        if options["effect"] == "write" and context_name is None and not options.get("approval_required", False):
            raise Misuse(
                f"tool {tool_name!r} writes without a ToolContext parameter, so that it cannot send "
                "context.idempotency_key; a repeat would be a second effect"
            )

        async def call(args: Arguments, context: ToolContext) -> ToolResult:
            given = _typed(model, tool_name, args)
            if context_name is not None:
                given[context_name] = context
            return _result(await _work(function, given))

        return ToolSpec(
            name=tool_name,
            description=words,
            parameters=schema_of(model),
            call=call,
            arguments=model,
            **options,
        )

    return declare


def tool_from_schema(
    name: str,
    description: str,
    parameters: Mapping[str, JsonValue],
    call: SchemaCall,
    **options: Unpack[ToolOptions],
) -> ToolSpec:
    """Make a tool of a JSON Schema and a callable, sync (it runs in a thread) or async.

    The schema must describe an object; where it does not say whether other arguments may come, they may not.

    Raises:
        Misuse: when the schema or the declaration is unusable.
    """

    async def work(args: Arguments, context: ToolContext) -> ToolResult:
        return _result(await _work(call, {"arguments": dict(args), "context": context}, by_position=True))

    closed: dict[str, JsonValue] = {"additionalProperties": False, **parameters}
    return ToolSpec(name=name, description=description, parameters=closed, call=work, **options)


def schema_of(model: type[BaseModel]) -> dict[str, JsonValue]:
    """The JSON Schema of an arguments model as it is shown to a model: without titles, which cost tokens only."""
    schema = _without_titles(model.model_json_schema())
    if not isinstance(schema, dict):
        raise Misuse(f"{model.__name__} has no object schema")
    schema.pop("description", None)  # the tool's own description says it
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", False)
    return schema


def _without_titles(schema: JsonValue) -> JsonValue:
    match schema:
        case dict():
            # An argument may itself be named "title": its schema is an object, an annotation is a string.
            return {
                key: _without_titles(value)
                for key, value in schema.items()
                if not (key == "title" and isinstance(value, str))
            }
        case list():
            return [_without_titles(item) for item in schema]
        case _:
            return schema


def _arguments_of(function: Callable[..., object], name: str) -> tuple[type[BaseModel], str | None]:
    """The arguments model of a function, and the name of its context parameter if it has one."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as unresolved:
        raise Misuse(f"tool {name!r}: an annotation cannot be resolved: {unresolved}") from unresolved
    # pydantic's field definitions are (annotation, default), and only runtime values can say which annotation
    fields: dict[str, Any] = {}
    context_name: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Misuse(f"tool {name!r}: parameter {parameter.name!r} must be an ordinary named parameter")
        if parameter.name not in hints:
            raise Misuse(f"tool {name!r}: parameter {parameter.name!r} needs an annotation")
        if hints[parameter.name] is ToolContext:
            context_name = parameter.name
            continue
        if parameter.name.startswith("_") or hasattr(BaseModel, parameter.name):
            raise Misuse(f"tool {name!r}: parameter name {parameter.name!r} cannot be used here; choose another")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    config = ConfigDict(extra="forbid", strict=True, protected_namespaces=(), allow_inf_nan=False, frozen=True)
    try:
        model = create_model(f"{name}_arguments", __config__=config, **fields)
        model.model_json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as unusable:
        raise Misuse(f"tool {name!r}: its parameters have no JSON Schema: {unusable}") from unusable
    return model, context_name


def _typed(model: type[BaseModel], name: str, args: Arguments) -> dict[str, object]:
    """The arguments as the function's own types."""
    try:
        # Through JSON, because a strict model takes an ISO date or an enum's value from JSON only.
        given = model.model_validate_json(json.dumps(dict(args)))
    except ValidationError as invalid:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in invalid.errors())
        raise ToolFault("invalid_arguments", f"{name} cannot take these arguments: {problems}") from invalid
    return {field: getattr(given, field) for field in model.model_fields}


async def _work(function: Callable[..., object], given: dict[str, object], *, by_position: bool = False) -> object:
    """Run a sync function in a thread, an async one here; either may return an awaitable."""

    def call() -> object:
        return function(*given.values()) if by_position else function(**given)

    if inspect.iscoroutinefunction(function):
        returned = call()
    else:
        # The deadline abandons a thread; it never waits for one that hangs.
        returned = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_thread_limiter())
    return await returned if isinstance(returned, Awaitable) else returned


def _thread_limiter() -> anyio.CapacityLimiter:
    """How many threads all sync tools of one event loop may have together."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_MAX_THREADS)
        _limiter.set(limiter)
        return limiter


def _result(returned: object) -> ToolResult:
    match returned:
        case ToolResult():
            return returned
        case BaseModel():
            return ToolResult(returned.model_dump(mode="json"))
        case _:
            # Whether it is JSON is checked where every tool's result is checked.
            return ToolResult(returned)  # type: ignore[arg-type]  # a tool may return anything
