"""Tools: those we run, with their results, and hosted tools, which the provider runs."""

from __future__ import annotations

import copy
import inspect
import json
import re
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cached_property, lru_cache, partial
from types import MappingProxyType, MethodType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from weakincentives import serde
from weakincentives._base.annotations import signature_of
from weakincentives._base.generics import Specializable
from weakincentives.content import Media, Part, Text, parts_of
from weakincentives.errors import FieldProblem, PromptValidationError, SerdeError
from weakincentives.prompt.docstrings import split_docstring
from weakincentives.prompt.visibility import DisclosureRequest
from weakincentives.resources import has_snapshots
from weakincentives.session.slices import reducer_methods

ParamsT = TypeVar("ParamsT")
ParamsT_contra = TypeVar("ParamsT_contra", contravariant=True)
ResultT = TypeVar("ResultT")
ConfigT = TypeVar("ConfigT")
P = ParamSpec("P")
T = TypeVar("T")

TOOL_NAME = re.compile(r"[a-z0-9_-]{1,64}")
MAX_DESCRIPTION = 1024
MAX_FOREIGN_NAME = 128
MAX_TIMEOUT = 1e9
_CUT = " ... (described in full elsewhere in this conversation)"
_PORTABLE_NAME = re.compile(r"[a-zA-Z0-9_-]+")
MAX_DEPTH = 100
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{])|([\]}])', re.DOTALL)


# No slots: `ToolResult[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class ToolResult(Generic[ResultT]):
    """The result of a handler: a message for the model, a typed value, and whether it worked.

    `success=False` undoes what the call did to the session and to snapshotable resources; the model reads the message.
    `attachments` are media sent to the model along with it. A tool that opens or closes sections declares that in
    `disclosure`, which is how such calls are recognised.
    """

    message: str = ""  #: the text that the model reads
    value: ResultT | None = None  #: the typed value, for your program
    success: bool = True  #: whether the call worked
    attachments: tuple[Part, ...] = field(default=(), kw_only=True)
    disclosure: DisclosureRequest | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.message, str):
            raise TypeError(f"ToolResult message must be text, got {self.message!r}; pass other things as value=")
        if self.attachments:
            object.__setattr__(self, "attachments", parts_of(self.attachments))

    def render(self) -> str:
        """The text that the model reads: the message, then the value."""
        if self.value is None:
            return self.message
        render = getattr(self.value, "render", None)
        text = render() if callable(render) else self.value
        if not isinstance(text, str):
            text = serde.encode(text).decode()
        return "\n\n".join(part for part in (self.message, text) if part)


class HandlerContext:
    """Base of `ToolContext`, by which `@tool` recognises the parameter that receives it."""

    __slots__ = ()


class Handler(Protocol[ParamsT_contra, ResultT]):
    """The function that a tool runs: `handler(params, *, context)`, sync or async; `context` is a `ToolContext`."""

    def __call__(
        self, params: ParamsT_contra, /, *, context: Any
    ) -> ToolResult[ResultT] | Awaitable[ToolResult[ResultT]]: ...


class Compensation(Protocol[ParamsT_contra]):
    """A function that undoes an effect no snapshot covers."""

    def __call__(self, params: ParamsT_contra, /, *, context: Any) -> object: ...


ApprovalRule: TypeAlias = Literal["call", "effects", "answer"] | Callable[..., Literal["call", "effects"] | None]


class ToolOptions(TypedDict, total=False):
    """The keyword arguments that every tool accepts besides its name and description."""

    read_only: bool  #: promises that the call changes nothing
    compensate: Compensation[Any] | None  #: undoes an effect outside if the call fails after it
    approval: ApprovalRule | None  #: when a person decides about the call
    changes: Iterable[type] | None  #: all that a call may change, which can then be taken back
    outside: bool  #: says that calls have effects outside, which no rewind takes back
    preview: Callable[..., Any] | None  #: makes the tool's own text for the question to a person
    timeout: float | None  #: in seconds
    concurrent: bool  #: calls may run at the same time
    examples: Iterable[Mapping[str, Any]]  #: arguments of typical calls
    accepts_overrides: bool  #: False keeps stored overrides away from it


class Tool(Specializable, Generic[ParamsT, ResultT]):
    """A capability that we run: `Tool[Params, Result](name=, description=, handler=)`.

    `handler(params, *, context)` may be sync or async. `read_only=True` promises that it changes nothing, so
    that several calls may run concurrently without a transaction. `compensate(params, *, context)` undoes an
    effect outside our resources when the call fails after it. `approval` has a person decide: before the
    "call", which is for tools that act outside, or with its "effects", which is for calls that can be taken
    back: they are captured, and applied as they were shown; or a function of the params (and `session=` if it
    takes that) returns one of both or None. `changes` names all that a call may change, which "effects"
    needs: `Filesystem`, the types of slices of the session, and those that snapshotable resources are bound
    to. `outside=True` says that calls act outside, as calls of a tool with `approval="call"` do that declares
    no `changes`. `preview(params)`, or `preview(params, effects=)`, returns a text for the question, which
    says what the call does; what it changes is shown besides. A tool without a handler is answered by a
    person. After `timeout` seconds a call has failed: an async handler is cancelled, and a blocking one
    continues in its thread, but what it still writes is refused. `concurrent=True` lets the calls of one
    reply run at the same time, each in its own transaction; if two change the same thing, the later one is
    repeated alone. `examples` are arguments of typical calls; the Anthropic adapter sends them.
    """

    _params_type: Any = None
    _result_type: Any = None
    _type_names = ("params_type", "result_type")
    _param_descriptions: Mapping[str, str] = MappingProxyType({})
    earlier_names: tuple[str, ...] = ()
    """The names that it had before it was offered as `name`, its section's own name for it first."""
    transactional = True
    """False if a failed call undoes nothing by itself, because the calls inside it do, as they keep to its time."""
    reaches_outside = False
    """True if calls count as having effects outside, which a rewind does not undo."""
    acts_if_failed = False
    """True if a call may have acted outside although its handler says that it failed."""
    needs_folder = False
    """True if calls need the real folder of the files: a preview then runs there, and is taken back."""
    blocking: Handler[Any, Any] | None = None
    """The function that sync runs call in place of an async handler, if there is one."""

    def __init__(
        self,
        *,
        name: str,  #: the name that the model calls
        description: str,  #: what the model reads about it
        handler: Handler[ParamsT, ResultT] | None,  #: a function, sync or async; None if a person answers
        params_type: type[ParamsT] | None = None,  #: the type of the params
        result_type: Any = None,  #: the type of the result's value
        read_only: bool = False,
        compensate: Compensation[ParamsT] | None = None,
        approval: ApprovalRule | None = None,
        changes: Iterable[type] | None = None,
        outside: bool = False,
        preview: Callable[..., Any] | None = None,
        timeout: float | None = None,
        concurrent: bool = False,
        examples: Iterable[Mapping[str, Any]] = (),
        accepts_overrides: bool = True,  #: False keeps stored overrides away from it
        _schema: serde.ForeignSchema | None = None,
    ) -> None:
        self._foreign = _schema
        self._check_name(name)
        if _schema is None:
            check_description(f"Tool '{name}'", description, MAX_DESCRIPTION)
        params_type = self._params_type if params_type is None else params_type
        result_type = self._result_type if result_type is None else result_type
        if params_type is not None:
            _check_params(name, params_type)
        flags = {"read_only": read_only, "outside": outside}
        check_flags(name, **flags, concurrent=concurrent, accepts_overrides=accepts_overrides)
        check_approval(name, approval, has_handler=handler is not None, read_only=read_only)
        self.changes = require_changes(name, changes)
        self.reaches_outside = self._acts_outside(name, approval, compensate, **flags)
        handler, approval = (_no_handler, "answer") if handler is None else (handler, approval)
        check_preview(name, preview)
        check_timeout(f"Tool '{name}': timeout", timeout)
        given = params_type if _schema is None else dict
        check_handler(name, "handler", handler, given)
        if compensate is not None:
            check_handler(name, "compensate", compensate, given)
        self.name = name
        self.description = description
        self.handler = handler
        serde.declare_type(params_type)
        serde.declare_type(result_type)
        self.params_type = params_type
        self.result_type = result_type
        self.read_only = read_only
        self.compensate = compensate
        self.approval = approval
        self.preview = preview
        self.timeout = timeout
        self.concurrent = concurrent
        self.accepts_overrides = accepts_overrides
        self.examples = tuple(dict(example) for example in examples)
        self._check_examples()

    def _acts_outside(
        self,
        name: str,
        approval: Any,
        compensate: Compensation[ParamsT] | None,
        *,
        outside: bool,
        read_only: bool,
    ) -> bool:
        """True if calls count as having effects outside; contradicting options are an error."""
        options = {"compensate=": compensate, "changes=": self.changes, "outside=True": outside}
        if read_only:
            for option, value in options.items():
                if value:
                    problem = f"is read_only, so it changes nothing; drop {option}"
                    raise PromptValidationError(f"Tool '{name}' {problem}.")
        says_outside = outside or compensate is not None
        if approval == "effects":
            check_effects(name, self.changes, "outside=True" * outside or "compensate=" * says_outside)
        # A tool without a handler has no approval: a person answers.
        asks_first = approval is not None and approval != "effects" and not read_only
        return says_outside or (asks_first and self.changes is None)

    def _check_examples(self) -> None:
        for example in self.examples:
            try:
                self.parse(json.dumps(example))
            except serde.UnresolvedType:
                return
            except (SerdeError, TypeError) as error:
                raise PromptValidationError(f"Tool '{self.name}': an example is no valid call: {error}") from None

    @staticmethod
    def from_schema(
        *,
        name: str,
        description: str,
        schema: Mapping[str, Any],
        handler: Handler[dict[str, Any], Any] | None,
        result_type: Any = None,
        **options: Unpack[ToolOptions],
    ) -> Tool[dict[str, Any], Any]:
        """A tool described by a JSON Schema; its handler receives a dict that matches the schema.

        The name may have up to 128 characters of any kind and the description any length. If a provider accepts less,
        `portable_name` maps the name, and the full description is sent as text where the tool appears.
        """
        try:
            foreign = serde.ForeignSchema(schema)
        except SerdeError as error:
            raise PromptValidationError(f"Tool '{name}' cannot be offered, its schema is wrong: {error}") from None
        text = description if description and description.strip() else name
        return Tool(name=name, description=text, handler=handler, result_type=result_type, _schema=foreign, **options)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, with overridden descriptions; strict unless it is a foreign schema."""
        return self._written(strict=True)

    @cached_property
    def plain_schema(self) -> dict[str, Any]:
        """The schema as JSON Schema would have it: arguments with a default may be omitted, and dicts are objects."""
        return self._written(strict=False)

    def _written(self, *, strict: bool) -> dict[str, Any]:
        if self._foreign is not None:
            schema = self._foreign.sent
        elif self.params_type is None:
            return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        else:
            try:
                schema = serde.schema(self.params_type, strict=strict)
            except SerdeError as error:
                raise PromptValidationError(f"The params of tool '{self.name}' have no schema: {error}") from None
        if not self._param_descriptions:
            return schema
        properties = {
            name: {**value, "description": self._param_descriptions[name]}
            if name in self._param_descriptions
            else value
            for name, value in schema.get("properties", {}).items()
        }
        return {**schema, "properties": properties}

    @cached_property
    def strict_schema(self) -> dict[str, Any]:
        """The schema in strict form, whatever its origin, for models whose output is constrained to it."""
        return self.schema if self._foreign is None else serde.to_strict(self.schema)

    @cached_property
    def definition(self) -> str:
        """The tool as JSON text in no provider's format; for counting."""
        return json.dumps({"name": self.name, "description": self.description, "parameters": self.schema})

    @property
    def params(self) -> Mapping[str, str]:
        """Every argument by name, with its description as the model sees it, or '' if it has none."""
        if self._foreign is not None:
            properties = self._foreign.sent["properties"]
            declared = {
                name: str(value.get("description", "")) if isinstance(value, dict) else ""
                for name, value in properties.items()
            }
        else:
            declared = {} if self.params_type is None else serde.field_descriptions(self.params_type)
        return {**declared, **self._param_descriptions}

    @property
    def param_descriptions(self) -> Mapping[str, str]:
        """The description of each argument, as the model sees it."""
        return {name: text for name, text in self.params.items() if text}

    def parse(self, arguments: str) -> Any:
        """The handler's params from the model's JSON; a `SerdeError` lists every problem."""
        text = arguments.strip() or "{}"
        _check_depth(text)
        _check_names(text)
        if self._foreign is not None:
            return self._foreign.decode(text)
        if self.params_type is not None:
            return serde.decode(self.params_type, text)
        given = serde.decode(dict[str, Any], text)
        if given:
            raise SerdeError(
                tuple(FieldProblem(f"$.{name}", "unknown field; this tool takes no arguments") for name in given)
            )
        return None

    def brief(self, limit: int) -> str:
        """The description, or its beginning if the provider limits its length; the run then sends all of it as text."""
        text = self.description
        return text if len(text) <= limit else f"{text[: limit - len(_CUT)]}{_CUT}"

    def with_descriptions(self, description: str | None, params: Mapping[str, str]) -> Self:
        """The same tool with other descriptions for the model; used by prompt overrides."""
        return self._with(
            description=description or self.description, _param_descriptions={**self._param_descriptions, **params}
        )

    @property
    def own_name(self) -> str:
        """The name that its section has given it, whatever it is offered as."""
        return self.earlier_names[0] if self.earlier_names else self.name

    def renamed(self, name: str) -> Self:
        """The same tool under another name."""
        self._check_name(name)
        return self._with(name=name, earlier_names=())

    def offered_as(self, name: str) -> Self:
        """The same tool as a conversation offers it; its own name remains known."""
        return self._with(name=name, earlier_names=tuple(dict.fromkeys((*self.earlier_names, self.name))))

    def _check_name(self, name: str) -> None:
        if self._foreign is None:
            check_tool_name(name)
        elif not (isinstance(name, str) and name.strip() and len(name) <= MAX_FOREIGN_NAME and name.isprintable()):
            raise PromptValidationError(
                f"Tool name {name!r} is invalid; use 1 to {MAX_FOREIGN_NAME} characters that can be printed."
            )

    def _with(self, **changes: Any) -> Self:
        other = copy.copy(self)
        for derived in ("schema", "plain_schema", "strict_schema", "definition"):
            vars(other).pop(derived, None)
        vars(other).update(changes)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the tool, unless its handler is a method of something that is being copied."""
        changed: dict[str, Any] = {}
        for name in ("handler", "compensate", "function"):
            if (new := rebound(old := getattr(self, name, None), memo)) is not old:
                changed[name] = new
        if "function" in changed:
            changed["handler"] = _function_handler(changed["function"])
        return self._with(**changed) if changed else self

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


class HostedToolConfig:
    """Marks a frozen dataclass as the configuration of a hosted tool; deriving from it is optional."""

    __slots__ = ()


class HostedToolOutput:
    """Marks a frozen dataclass as the parsed output of a hosted tool; deriving from it is optional."""

    __slots__ = ()


# No slots: `HostedTool[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class HostedTool(Generic[ConfigT]):
    """A capability that the provider runs; `kind` picks the adapter's codec, `config` is what the codec encodes."""

    kind: str
    name: str  #: its name in results and events
    description: str  #: for people; the provider describes the tool to the model
    config: ConfigT

    @property
    def definition(self) -> str:
        """The tool as JSON text in no provider's format; for counting."""
        return json.dumps({"name": self.name, "kind": self.kind, "description": self.description})

    def __post_init__(self) -> None:
        check_tool_name(self.name)
        if not isinstance(self.kind, str) or not self.kind.strip():
            raise PromptValidationError(
                f"Hosted tool '{self.name}' has no kind (got {self.kind!r}); pass kind='web_search' or the like."
            )
        check_description(f"Hosted tool '{self.name}'", self.description, 200, ascii_only=True)
        params = getattr(type(self.config), "__dataclass_params__", None)
        if not is_dataclass(self.config) or isinstance(self.config, type) or params is None or not params.frozen:
            raise PromptValidationError(
                f"Hosted tool '{self.name}': config must be an instance of a frozen dataclass, "
                f"got {type(self.config).__name__}."
            )


AnyTool = Tool[Any, Any] | HostedTool[Any]
Timeouts = float | Mapping[str, float | None] | None
"""The `timeout=` of a section with several tools: one for all of them, or by the tool's name."""
Approvals = ApprovalRule | Mapping[str, ApprovalRule | None] | None
"""The `approval=` of a section with several tools: one for all of them, or by the tool's name."""


def _check_params(tool_name: str, params_type: Any) -> None:
    if not serde.is_record(params_type):
        raise PromptValidationError(
            f"Tool '{tool_name}': params must be None or a class with fields, such as a dataclass or a Pydantic model, "
            f"got {params_type!r}; write Tool[Params, Result]."
        )
    try:
        serde.codec(params_type)
    except serde.UnresolvedType:
        pass  # A type that is defined later is checked when it is first needed.
    except SerdeError as error:
        raise PromptValidationError(f"The params of tool '{tool_name}' have no schema: {error}") from None


def check_tool_name(name: str) -> None:
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise PromptValidationError(
            f"Tool name {name!r} is invalid; use 1 to 64 lower-case letters, digits, '_' or '-'."
        )


@lru_cache(maxsize=4096)
def portable_name(name: str, limit: int = 64) -> str:
    """The name for a provider that accepts only letters, digits, '_' and '-', up to `limit` characters.

    A name that does not fit is replaced by one derived from it alone, so a call can be traced back to the tool. Anybody
    can compute it and choose it for another tool, so two tools whose portable names are equal count as having the same
    name. With a higher limit, names that were different stay different.
    """
    if len(name) <= limit and _PORTABLE_NAME.fullmatch(name):
        return name
    return f"{re.sub(r'[^a-zA-Z0-9_-]+', '_', name)[:55]}_{zlib.crc32(name.encode()):08x}"


def namespace_name(section_key: str) -> str:
    """The name of a section for a provider that groups tools by namespaces, which cannot be nested."""
    return portable_name(section_key.replace(".", "__"))


def check_description(whose: str, description: Any, most: int, *, ascii_only: bool = False) -> None:
    """Reject a description that is blank, too long, or not text."""
    text = description if isinstance(description, str) else ""
    if text.strip() and len(text) <= most and (text.isascii() or not ascii_only):
        return
    kind = "ASCII characters" if ascii_only else "characters"
    got = len(text) if len(text) > most else repr(description)
    raise PromptValidationError(f"{whose}: the description must be 1 to {most} {kind} and not blank, got {got}.")


def check_flags(tool_name: str, **flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise PromptValidationError(f"Tool '{tool_name}': {name} must be True or False, got {value!r}.")


def require_changes(tool_name: str, changes: Any) -> tuple[type, ...] | None:
    """The classes that `changes` names, if it is given; an error names one that cannot be captured."""
    if changes is None:
        return None
    which = f"Tool '{tool_name}': changes"
    if isinstance(changes, type | str) or not isinstance(changes, Iterable):
        raise PromptValidationError(
            f"{which} takes a tuple of classes, got {changes!r}; write changes=(Filesystem, Cart)."
        )
    declared = tuple(changes)
    for kind in declared:
        if not isinstance(kind, type):
            raise PromptValidationError(f"{which} must name classes, got {kind!r}.")
        is_data = serde.is_record(kind) or bool(reducer_methods(kind))
        if not (is_data or has_snapshots(kind) or is_bound_later(kind)):
            raise PromptValidationError(
                f"{which}= names {kind.__qualname__}, whose changes cannot be captured: a resource "
                "needs snapshot() and restore(state), and a slice of the session is a dataclass. "
                "Use approval='call' for a tool that acts on it."
            )
    return declared


def is_bound_later(kind: type) -> bool:
    """True for a protocol or an abstract class: what is bound to it is checked then."""
    return bool(getattr(kind, "_is_protocol", False)) or inspect.isabstract(kind)


def check_effects(tool_name: str, changes: tuple[type, ...] | None, acts_outside: str) -> None:
    """Reject `approval="effects"` for calls that cannot be taken back."""
    rule = f"Tool '{tool_name}': approval=\"effects\" is for calls that can be taken back"
    if acts_outside:
        raise PromptValidationError(
            f"{rule}, but {acts_outside} says that it acts outside before anybody is asked; use approval='call'."
        )
    if not changes:
        raise PromptValidationError(
            f"{rule}, so it must name what it may change: changes=(Filesystem, Cart), the files, "
            "slices and resources. A tool that acts outside (HTTP, a server, a payment) is "
            "approval='call'."
        )


def check_approval(tool_name: str, approval: Any, *, has_handler: bool = True, read_only: bool = False) -> None:
    """Reject an approval that is neither "call" nor "effects" nor a function, or that cannot be."""
    if approval is not None and not has_handler:
        raise PromptValidationError(
            f"Tool '{tool_name}': it has no handler, so a person always answers; drop approval."
        )
    if approval == "effects" and read_only:
        raise PromptValidationError(f"Tool '{tool_name}': it is read_only, so it has no effects; use approval='call'.")
    check_rule(f"Tool '{tool_name}': approval", approval)


def check_rule(what: str, approval: Any) -> None:
    """Reject an approval that is neither None, "call", "effects" nor a function."""
    if approval not in (None, "call", "effects") and (isinstance(approval, type) or not callable(approval)):
        raise PromptValidationError(f"{what} must be 'call', 'effects' or a function of the params, got {approval!r}.")


def check_preview(tool_name: str, preview: Any) -> None:
    """Reject a preview that is no function of the params."""
    if preview is not None and (isinstance(preview, type) or not callable(preview)):
        raise PromptValidationError(
            f"Tool '{tool_name}': preview must be a function of the params, preview(params), or of both, "
            f"preview(params, effects=...), got {preview!r}."
        )


def _no_handler(params: Any, /, *, context: Any) -> ToolResult[Any]:
    raise AssertionError("a person answers for this tool")


def check_timeout(what: str, seconds: Any) -> None:
    """Reject a timeout that is neither None nor a positive number."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= MAX_TIMEOUT):
        raise PromptValidationError(
            f"{what} must be a number of seconds above 0, or None for no limit, got {seconds!r}."
        )


def by_tool(
    whose: str,
    option: Literal["timeout", "approval"],
    given: Any,
    names: Collection[str],
    default: Any = None,
    *,
    hosted: Iterable[HostedTool[Any]] = (),
) -> dict[str, Any]:
    """The option for each tool in `names`, from one for all or from a mapping; those it does not name have the default.

    `hosted` are hosted tools beside them, for which no option holds.
    """
    check = check_timeout if option == "timeout" else check_rule
    if not isinstance(given, Mapping):
        check(f"{whose}: {option}", given)
        return dict.fromkeys(names, given)
    for name, value in given.items():
        check(f"{whose}: {option} of tool {name!r}", value)
        if any(name == each.name for each in hosted):
            raise PromptValidationError(
                f"{whose}: {option}= names {name!r}, a hosted tool, which the provider runs by itself; "
                "leave it out, or do not offer the tool."
            )
        if name not in names:
            known = ", ".join(names) or "none"
            raise PromptValidationError(f"{whose}: {option}= names {name!r}, which is none of its tools: {known}.")
    return dict.fromkeys(names, default) | dict(given)


def check_handler(tool_name: str, what: str, handler: Any, params_type: type | None) -> None:
    """Reject a handler that cannot be called as `handler(params, context=...)`, or whose annotations differ."""
    if not callable(handler):
        raise PromptValidationError(f"Tool '{tool_name}': {what} must be callable, got {type(handler).__name__}.")
    try:
        signature = signature_of(handler)
    except (TypeError, ValueError):
        return
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    try:
        signature.bind(None, context=None)
    except TypeError as error:
        raise PromptValidationError(
            f"Tool '{tool_name}': {what} is called as {what}(params, context=context), which "
            f"{name}{signature} does not take: {error}; "
            "write `def handler(params, *, context)`, or make a tool of a plain function with @tool."
        ) from None
    try:
        hints = get_type_hints(handler if inspect.isroutine(handler) else type(handler).__call__)
    except Exception:
        # Hints that cannot be resolved here, such as names imported for type checkers only, are not checked.
        return
    expected = hints.get(next(iter(signature.parameters)), Any)
    if not _fits(expected, lambda cls: issubclass(params_type or NoneType, cls)):
        given = "no params" if params_type is None else f"{params_type.__name__} as its params"
        raise PromptValidationError(
            f"Tool '{tool_name}': {what} {name} takes {type_name(expected)}, but the tool has {given}; "
            f"write Tool[{type_name(expected)}, ...](...)."
        )
    returned = hints.get("return", Any)
    if what == "handler" and not _fits(returned, lambda cls: issubclass(cls, ToolResult | Awaitable)):
        raise PromptValidationError(
            f"Tool '{tool_name}': {what} {name} returns {type_name(returned)}; return a ToolResult, or make a tool "
            "of the function with @tool."
        )


def _fits(annotation: Any, fits: Callable[[type], bool]) -> bool:
    """True if a class that the annotation names fits, or if that cannot be determined."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType, Annotated):
        return any(_fits(one, fits) for one in (args[:1] if origin is Annotated else args))
    cls = NoneType if annotation is None else origin or annotation
    try:
        return cls in (Any, object) or not isinstance(cls, type) or fits(cls)
    except TypeError:
        return True


def type_name(annotation: Any) -> str:
    """A type as messages name it."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


class FunctionTool(Tool[Any, Any], Generic[P, T]):
    """A tool made by `@tool`; calling it calls the original function, without a session or transaction."""

    def __init__(
        self, function: Callable[P, T], *, name: str | None = None, description: str | None = None, **options: Any
    ) -> None:
        if not hasattr(function, "__name__"):
            raise PromptValidationError(
                f"tool() takes a function or a method, got {function!r}; write a function that calls it. "
                "To name a tool, write @tool(name=...)."
            )
        tool_name = name or function.__name__
        try:
            hints = get_type_hints(function, include_extras=True)
        except NameError as error:
            raise PromptValidationError(
                f"Tool '{tool_name}': annotation {error.name!r} cannot be resolved; "
                "define it at module level, before the tool."
            ) from error
        summary, described = split_docstring(inspect.getdoc(function) or "", signature_of(function).parameters)
        text = description or summary
        if not text.strip():
            raise PromptValidationError(f"Tool '{tool_name}' has no description; give the function a docstring.")
        super().__init__(
            name=tool_name,
            description=text,
            handler=_function_handler(function),
            params_type=_params_dataclass(function, tool_name, hints, described),
            result_type=hints.get("return"),
            **options,
        )
        self.function = function

    def __call__(self, *args: P.args, **named: P.kwargs) -> T:
        return self.function(*args, **named)


def rebound(function: Any, memo: Mapping[int, Any]) -> Any:
    """A method of something that is being copied, as a method of the copy, even inside a `partial`; else unchanged."""
    if isinstance(function, MethodType) and id(function.__self__) in memo:
        return MethodType(function.__func__, memo[id(function.__self__)])
    if isinstance(function, partial) and (inner := rebound(function.func, memo)) is not function.func:
        return partial(inner, *function.args, **function.keywords)
    return function


@overload
def tool(function: Callable[P, T], /) -> FunctionTool[P, T]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, T]], FunctionTool[P, T]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turn a typed function into a tool: its name, docstring and annotations are what the model sees.

        @tool(read_only=True)
        def add(a: int, b: Annotated[int, "the second number"]) -> int:
            "Add two numbers."
            return a + b

    The docstring may describe the parameters, in the style of Google, NumPy or Sphinx. A parameter annotated as
    a `ToolContext`, or named `context` without an annotation, receives the call's context. The return value becomes the
    result's value, unless it is already a `ToolResult`; an `Image` or other part, or a list with some, is attached.
    The tool can still be called as the function: `add(1, 2)`. `name` replaces the function's name. `description`
    replaces its docstring.
    """
    return partial(FunctionTool, **options) if function is None else FunctionTool(function, **options)


def _function_handler(function: Callable[..., Any]) -> Handler[Any, Any]:
    """A handler that spreads the params over the function's parameters."""
    contexts = _context_parameters(function)

    def arguments(params: Any, context: Any) -> dict[str, Any]:
        values = {column.name: getattr(params, column.name) for column in fields(params)}
        return {**values, **dict.fromkeys(contexts, context)}

    def handle(params: Any, /, *, context: Any) -> ToolResult[Any]:
        return _as_result(function(**arguments(params, context)))

    async def handle_async(params: Any, /, *, context: Any) -> ToolResult[Any]:
        return _as_result(await function(**arguments(params, context)))

    return handle_async if inspect.iscoroutinefunction(function) else handle


def _context_parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters that receive the `ToolContext`: by annotation, or by the name `context` without one."""
    hints = {"context": HandlerContext, **get_type_hints(function)}
    return [
        name
        for name in signature_of(function).parameters
        for kind in (hints.get(name), *get_args(hints.get(name)))
        if isinstance(kind, type) and issubclass(kind, HandlerContext)
    ]


def _check_depth(text: str) -> None:
    """Reject arguments that are nested too deeply to be stored with the session."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for found in _BRACKET.finditer(text):
        depth += found.lastindex == 1
        depth -= found.lastindex == 2
        if depth > MAX_DEPTH:
            raise SerdeError((FieldProblem("$", f"nested more than {MAX_DEPTH} levels deep"),))


def _check_names(text: str) -> None:
    """Reject arguments in which a name occurs twice: the last would count, and a person may be shown the first."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = set[str]()
        for name, _ in pairs:
            if name in names:
                raise SerdeError((FieldProblem("$", f"the name {name!r} occurs twice"),))
            names.add(name)

    # What is not JSON gets a better message when it is decoded.
    with suppress(ValueError):
        json.loads(text, strict=False, object_pairs_hook=check, parse_int=len, parse_float=len)


def _as_result(value: Any) -> ToolResult[Any]:
    if isinstance(value, ToolResult):
        return value
    items = value if type(value) in (list, tuple) else (value,)
    if any(isinstance(item, Text | Media) for item in items):
        return ToolResult(attachments=tuple(items))
    return ToolResult(value=value)


def _params_dataclass(
    function: Callable[..., Any], tool_name: str, hints: Mapping[str, Any], described: Mapping[str, str]
) -> type:
    columns: list[Any] = []
    contexts = _context_parameters(function)
    for parameter in signature_of(function).parameters.values():
        if parameter.name in contexts:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise PromptValidationError(
                f"Tool '{tool_name}': parameter '{parameter}' cannot be filled by name; use plain parameters."
            )
        if parameter.name not in hints:
            way = "; make the tool of a bound method: tool(object.method)" if parameter.name == "self" else ""
            raise PromptValidationError(
                f"Tool '{tool_name}': parameter '{parameter.name}' has no annotation; the model needs its type{way}."
            )
        annotation = hints[parameter.name]
        notes = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
        words = " ".join(note for note in notes if isinstance(note, str)) or described.get(parameter.name)
        options: dict[str, Any] = {"metadata": {"description": words} if words else {}}
        if type(parameter.default).__hash__ is None:
            options["default_factory"] = partial(copy.copy, parameter.default)
        elif parameter.default is not parameter.empty:
            options["default"] = parameter.default
        columns.append((parameter.name, annotation, field(**options, kw_only=True)))
    # Messages about the arguments, for the model too, show this name.
    made = make_dataclass(tool_name, columns, frozen=True)
    made.__module__ = function.__module__
    made.__qualname__ = f"{function.__qualname__}_params"
    return made
