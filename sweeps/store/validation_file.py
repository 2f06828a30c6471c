"""Read verification.csv back: the rows as `predict(run).verification` made them, or one line that says what is wrong.

rows = read_verification(Path("runs/quickstart/verification.csv"))
rows[0]["gamma"], rows[0]["speedup_measured"]                       # unknown is None
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from specgauge.sweeps.analysis.validation import COLUMNS, LATER_COLUMNS, POLICY_COLUMNS
from specgauge.sweeps.store.readers import read_csv_rows

_TEXT = frozenset({"pair", "mode", "sampling", "draft_sampling", "acceptance_rule"})
_TEXT_OR_NOTHING = frozenset({"overhead_from", "why_not_lossless", "policy", "off_path"})
_FLAGS = frozenset({"lossless"})
_FLAGS_OR_NOTHING = frozenset({"rounds_agree"})
_WHOLE = frozenset({"batch_size", "context", "gamma", "tokens", "rounds_counted"})
_WHOLE_OR_NOTHING = frozenset(
    {"blocks", "rounds", "gamma_switches", "looks", "best_fixed_gamma", "texts_same", "texts_tied", "texts_differ"}
)
_FROM_ONE = frozenset({"batch_size", "context", "gamma", "best_fixed_gamma"})
_ABOVE_ZERO = frozenset(
    {
        "speedup_predicted", "speedup_from_counts", "speedup_measured", "speedup_measured_low", "speedup_measured_high",
        "speedup_whole", "tokens_per_round_predicted", "tokens_per_round_counted", "plain_over_generate",
        "plain_over_loop",
    }
)  # fmt: skip
_WORDS = {"True": True, "False": False}


def read_verification(path: Path) -> tuple[dict[str, Any], ...]:
    """The rows of a verification.csv, one for every γ that was decoded in a cell; unknown is None.

    A row of an adaptive policy names it, has no γ, and has columns of its own besides.

    Raises:
        ValueError: missing, truncated, foreign, of another release, or a field that holds something else than it
            should; the line names file, line and column.
    """
    header, rows = read_csv_rows(path, [name for name in COLUMNS if name not in LATER_COLUMNS], "verification")
    found = []
    for number, fields in enumerate(rows, start=2):
        row = dict.fromkeys(LATER_COLUMNS, "") | dict(zip(header, fields, strict=True))
        policy = row.get("policy")
        names = [*COLUMNS, *(POLICY_COLUMNS if policy else ())]
        missing = [name for name in names if name not in row]
        if missing:
            raise ValueError(f"{path}: not a table of policies of this release: the column {missing[0]!r} is missing")
        found.append({name: _value(path, number, name, row[name], adaptive=bool(policy)) for name in names})
    return tuple(found)


def _value(path: Path, line: int, name: str, field: str, *, adaptive: bool) -> Any:
    if name in _TEXT | _TEXT_OR_NOTHING:
        return field if name in _TEXT else field or None
    may_lack = name not in _FLAGS | _WHOLE or (adaptive and name == "gamma")
    if not field and may_lack:
        return None
    try:
        if name in _FLAGS | _FLAGS_OR_NOTHING:
            return _WORDS[field]
        if name in _WHOLE | _WHOLE_OR_NOTHING:
            whole = int(field)
            if whole < (1 if name in _FROM_ONE else 0):
                raise ValueError(field)
            return whole
        number = float(field)
        if not math.isfinite(number) or (name in _ABOVE_ZERO and number <= 0.0):
            raise ValueError(field)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{path}, line {line}, column {name}: found {field!r}, allowed: {_allowed(name)}"
            f"{', or nothing' if may_lack else ''}; make it anew with `specgauge run`"
        ) from error
    return number


def _allowed(name: str) -> str:
    if name in _FLAGS | _FLAGS_OR_NOTHING:
        return "True or False"
    if name in _WHOLE | _WHOLE_OR_NOTHING:
        return f"a whole number of at least {1 if name in _FROM_ONE else 0}"
    return "a number above 0" if name in _ABOVE_ZERO else "a number"
