"""Types of the configuration's fields: bounds and words that several share, and the shorthands that may be written.

    gamma: Gammas                                # 4, [1, 2, 4], 1:8, 1:8:2 and {from: 1, to: 8}, kept as a sorted tuple
    mode: Annotated[Mode, one_of("mode")]        # a list makes a variant of every pair (`specgauge.configs.variants`)

A shorthand is a BeforeValidator; what it takes is its ``json_schema_input_type``, for JSON Schema and for errors alike.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, Generic, Literal, TypeGuard, TypeVar, Union, cast, get_args

from annotated_types import MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    TypeAdapter,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from specgauge.configs.errors import fail, most_like, nearest, refused

EMBEDDED = "embedded"
"""The pair that ships with specgauge, and its prompts."""
LARGEST_BATCH_SIZE = 65_536
LARGEST_CONTEXT = 1 << 24
LARGEST_GAMMA = 64
LARGEST_REPETITIONS = 100_000
"""Texts a prompt may have, of the target alone or under each arm."""
LARGEST_BYTES = 1 << 60
LONGEST_NAME = 100
MOST_VALUES = 1000
"""Of one range."""

_STRICT = ConfigDict(strict=True, allow_inf_nan=False, regex_engine="python-re")


class Section(BaseModel):
    """A mapping of the configuration: frozen, and without room for keys it does not know."""

    model_config = _STRICT | ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Its JSON Schema, with the docstrings of its fields."""
        found = handler(core_schema)
        properties, texts = handler.resolve_ref_schema(found)["properties"], field_docstrings(cls)
        for name, field in cls.model_fields.items():
            if name in texts:
                properties[field.alias or name]["description"] = texts[name]
        return found


def field_docstrings(section: type[Section]) -> dict[str, str]:
    """The docstring under each field, read from the source when it is asked for: as a class is made it takes long."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if not issubclass(base, Section) or "[" in base.__name__:  # Range[int] has the source of Range
            continue
        body = cast(ast.ClassDef, ast.parse(dedent(inspect.getsource(base))).body[0]).body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found


def expects(words: str) -> Any:
    """Beside a type in ``Annotated``: what errors say is expected, where JSON Schema does not say it."""
    return Field(json_schema_extra={"x-expected": words})


def null_means(words: str) -> Any:
    """Beside a type that takes null: what errors say that null means."""
    return Field(json_schema_extra={"x-null": words})


def _printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("unprintable", "expected printable text on one line")
    return text


ONE_LINE = AfterValidator(_printable)
_NAME = r"^(?!.*--)[A-Za-z0-9_]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_])?$"
Text = Annotated[str, StringConstraints(pattern=r"\S"), ONE_LINE]
Name = Annotated[
    str,
    StringConstraints(pattern=_NAME),
    ONE_LINE,
    expects("a name for files: up to 100 of A-Z a-z 0-9 . _ - with no -- in it and no . or - at an end"),
]
Seconds = Annotated[float, Field(gt=0), expects("a number above 0 seconds")]
ZERO = AfterValidator(lambda number: number + 0.0)
"""Zero for a negative zero, so that both make the same configuration."""
Share = Annotated[float, Field(ge=0, le=1), ZERO]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Mode = Literal["eager", "compile", "cuda_graph"]
Threads = Annotated[int, Field(ge=1, le=4096)]
Attention = Literal["sdpa", "eager"]
Positive = Annotated[int, Field(ge=1)]
BatchSize = Annotated[int, Field(ge=1, le=LARGEST_BATCH_SIZE)]
Context = Annotated[int, Field(ge=1, le=LARGEST_CONTEXT)]
Gamma = Annotated[int, Field(ge=1, le=LARGEST_GAMMA)]
Repetitions = Annotated[int, Field(ge=1, le=LARGEST_REPETITIONS)]


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can name a pair, a sampling setting or a run."""
    return isinstance(value, str) and value.isprintable() and re.search(_NAME, value) is not None


def _some(item: Any) -> Any:
    return Annotated[list[item], MinLen(1)]


def listed(item: Any) -> BeforeValidator:
    """One value of ``item`` for a tuple of it."""
    return BeforeValidator(
        lambda written: tuple(written) if isinstance(written, (list, tuple)) else (written,),
        json_schema_input_type=item | _some(item),
    )


def in_order(words: Any) -> AfterValidator:
    """Every word of a tuple once, in the order that the Literal ``words`` has."""
    return AfterValidator(lambda chosen: tuple(word for word in get_args(words) if word in chosen))


UNIQUE = AfterValidator(lambda values: tuple(dict.fromkeys(values)))

VARYING: dict[str, Any] = {
    "dtype": Dtype, "attention": Attention, "mode": Mode, "threads": Threads, "accelerator_type": Text,
}  # fmt: skip
"""Fields of which a list makes a variant of a pair for each value, with the type of one."""
_SEVERAL: dict[str, TypeAdapter[list[Any]]] = {
    field: TypeAdapter(_some(kind), config=_STRICT) for field, kind in VARYING.items()
}


def several(field: str, written: object) -> tuple[Any, ...] | None:
    """The different values of a list of a field of `VARYING`, in its order; None for anything else.

    Raises:
        ValidationError: an item is wrong, or there is none.
    """
    if not isinstance(written, (list, tuple)):
        return None
    return tuple(dict.fromkeys(_SEVERAL[field].validate_python(list(written))))


def one_of(field: str) -> BeforeValidator:
    """A value of a field of `VARYING`, also alone in a list; the lists of pairs are gone before a field is checked."""

    def read(written: object) -> object:
        values = several(field, written)
        if values is not None and len(values) > 1:
            raise refused(written, "one value, where no pair of a configuration has its variants")
        return written if values is None else values[0]

    kind = VARYING[field]
    return BeforeValidator(read, json_schema_input_type=kind | _some(kind))


T = TypeVar("T", bound=int)


class Range(Section, Generic[T]):
    """A range of an axis; both ends belong to it where the step reaches them."""

    model_config = ConfigDict(
        json_schema_extra={"x-expected": "", "x-part": "a range whose '{key}' is {words}"}  # told as _RangeText
    )

    start: Annotated[T, Field(alias="from")]
    """The first value."""
    to: T
    """The last value at most."""
    step: Positive = 1
    """From one value to the next."""

    @model_validator(mode="after")
    def _check_together(self) -> Range[T]:
        written = f"{self.start}:{self.to}:{self.step}"
        if self.to < self.start:
            raise refused(written, "a range that ends where it starts or later, such as 1:8")
        if len(range(self.start, self.to + 1, self.step)) > MOST_VALUES:
            raise refused(written, f"a range of at most {MOST_VALUES} values")
        return self

    def values(self) -> tuple[int, ...]:
        """Every value."""
        return tuple(range(self.start, self.to + 1, self.step))


class BatchSizeRange(Range[BatchSize]):
    """A range of batch sizes; both ends belong to it where the step reaches them."""


class ContextRange(Range[Context]):
    """A range of contexts; both ends belong to it where the step reaches them."""


class GammaRange(Range[Gamma]):
    """A range of gammas; both ends belong to it where the step reaches them."""


class SearchedRange(Section, Generic[T]):
    """Values from 1 on that need not all be measured."""

    model_config = ConfigDict(json_schema_extra={"x-expected": "{max: 16, search: adaptive}"})

    max: T
    """The largest value."""
    search: Annotated[Literal["adaptive"], expects("adaptive (a list or a range has every value measured)")]
    """How the best value is found."""

    def values(self) -> tuple[int, ...]:
        """Every value."""
        return tuple(range(1, self.max + 1))


class SearchedBatchSizeRange(SearchedRange[Annotated[int, Field(ge=1, le=MOST_VALUES)]]):
    """Batch sizes from 1 on that need not all be measured."""


class SearchedGammaRange(SearchedRange[Gamma]):
    """Gammas from 1 on that need not all be measured."""


_RANGE_TEXT = re.compile(r"(-?[0-9]{1,18}):(-?[0-9]{1,18})(?::(-?[0-9]{1,18}))?", re.ASCII)
_RangeText = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]+:[0-9]+(:[0-9]+)?$"),
    expects("a range such as 1:8 or 1:8:2"),
]


def _meant(sections: Sequence[type[Any]], written: object) -> type[Any]:
    keys = [[field.alias or name for name, field in section.model_fields.items()] for section in sections]
    return sections[most_like(keys, written)]


def axis(item: Any, ranges: type[Range[Any]], *others: type[SearchedRange[Any]]) -> BeforeValidator:
    """The values of an axis for one, a list, a range as text or as a mapping, or a mapping of ``others``."""
    sections = (ranges, *others)

    def read(written: object) -> object:
        if isinstance(written, str) and (match := _RANGE_TEXT.fullmatch(written.strip())):
            first, last, step = map(int, match.groups(default="1"))
            written = {"from": first, "to": last, "step": step}
        if isinstance(written, Mapping):
            return _meant(sections, written).model_validate(dict(written)).values()
        if isinstance(written, str):
            return written
        return tuple(written) if isinstance(written, (list, tuple)) else (written,)

    return BeforeValidator(read, json_schema_input_type=Union[item, _some(item), _RangeText, *sections])


_ASCENDING = AfterValidator(lambda values: tuple(sorted(set(values))))
BatchSizes = Annotated[tuple[BatchSize, ...], MinLen(1), axis(BatchSize, BatchSizeRange), _ASCENDING]
Contexts = Annotated[tuple[Context, ...], MinLen(1), axis(Context, ContextRange), _ASCENDING]
Gammas = Annotated[tuple[Gamma, ...], MinLen(1), axis(Gamma, GammaRange), _ASCENDING]
SearchedBatchSizes = Annotated[
    tuple[BatchSize, ...], MinLen(1), axis(BatchSize, BatchSizeRange, SearchedBatchSizeRange), _ASCENDING
]
SearchedGammas = Annotated[tuple[Gamma, ...], MinLen(1), axis(Gamma, GammaRange, SearchedGammaRange), _ASCENDING]


def with_searches(written: Mapping[str, Any], axes: Sequence[str]) -> dict[str, Any]:
    """A section whose axes, where they are written as searches, however misspelt, are told by ``…_search`` too.

    Raises:
        ValueError: that says otherwise.
    """
    found = dict(written)
    for axis in axes:
        key = f"{axis}_search"
        if _meant((GammaRange, SearchedGammaRange), written.get(axis)) is not SearchedGammaRange:
            continue
        how = written.get(key, "adaptive")
        if how != "adaptive" and written[axis].get("search") == "adaptive":
            fail([((key,), refused(how, f"adaptive, since {axis} is written as a search"))])
        found[key] = how
    return found


_UNIT_BYTES = {
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", start=1)},
}
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,18})?) ?([A-Za-z]*)", re.ASCII)
_BYTES = f"bytes as an integer, or a number with a unit ({', '.join(_UNIT_BYTES)}) such as 8GiB"
_SizeText = Annotated[str, StringConstraints(pattern=rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(_UNIT_BYTES)})$")]
_ByteCount = Annotated[int, Field(ge=1, le=LARGEST_BYTES)]


def _bytes(written: object) -> object:
    match = _SIZE.fullmatch(written.strip()) if isinstance(written, str) else None
    if match is None:
        return written
    number, unit = match.groups()
    if unit in _UNIT_BYTES:
        return int(Decimal(number) * _UNIT_BYTES[unit])
    guess = nearest(unit, _UNIT_BYTES) if unit else None
    if guess:
        raise refused(written, f"{_BYTES}, or null (no limit)", hint=f"did you mean {number}{guess}?")
    return written


ByteCount = Annotated[
    _ByteCount, BeforeValidator(_bytes, json_schema_input_type=_ByteCount | _SizeText), expects(_BYTES)
]
