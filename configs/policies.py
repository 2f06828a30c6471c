"""Names of the policies that choose γ from round to round, as a configuration may ask for them.

verify: {policies: [heuristic, renewal]}

All of them work over draft models and over lookups; to svip and adaedl a lookup is always certain.
"""

from __future__ import annotations

from typing import Literal, get_args

from specgauge.configs.axes import Several
from specgauge.configs.rules import Choice

Policy = Literal["heuristic", "gammatune", "svip", "adaedl", "ucb", "exp3", "goodput", "renewal"]
POLICIES = Several(Choice(words=get_args(Policy)), null_means="γ is fixed")
"""One or several of them; null is none."""
