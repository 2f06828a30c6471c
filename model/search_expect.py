"""What the costs of cells around make of a cell: arms as a search may expect them there.

Between measured batch sizes and contexts costs lie on lines (`specgauge.model.costs`); what would have to be taken from
beyond them, or from other γ, is not expected at all.

    expected_levels(cells, batch_size=4, context=512, gammas=(1, 2, 3))      # None where no costs surround the place
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specgauge.model.arm_levels import ArmLevels, Summaries, exact_levels, fit_levels
from specgauge.model.arms import verify_arm
from specgauge.model.costs import CostCell, cost_tables
from specgauge.model.known import Known


def cost_cell(
    summaries: Summaries, gammas: Sequence[int], *, batch_size: int, context: int, min_blocks: int
) -> CostCell | None:
    """The levels of a cell that was searched; T_verify of the γ with at least `min_blocks`. None without a round."""
    timed = {arm: blocks for arm, blocks in summaries.items() if len(blocks) >= min_blocks}
    if not {"decode", "draft"} <= timed.keys():
        return None
    levels = fit_levels(timed)
    catch_up = None
    if "draft_catch_up" in timed:
        catch_up = max(0.0, levels.seconds("draft_catch_up") - float(levels.marks_s("draft")[0]))
    return CostCell(
        pair="",
        mode="",
        batch_size=batch_size,
        context=context,
        t_decode_s=levels.seconds("decode"),
        t_draft_chain_s=levels.marks_s("draft").tolist(),
        t_draft_catch_up_s=catch_up,
        t_verify_s={gamma: levels.seconds(verify_arm(gamma)) for gamma in gammas if verify_arm(gamma) in timed},
    )


def expected_levels(
    cells: Iterable[CostCell], *, batch_size: int, context: int, gammas: Sequence[int], catches_up: bool = True
) -> ArmLevels | None:
    """The arms of a cell that lies between `cells` of the same pair, mode and chain; None where it does not."""
    around = [cell for cell in cells if (cell.batch_size, cell.context) != (batch_size, context)]
    if not any(cell.t_verify_s for cell in around):
        return None
    (table,) = cost_tables(around).values()
    costs = table.at(batch_size, context, list(gammas))
    inside = (costs.known <= int(Known.INTERPOLATED)) & ~costs.across_gamma
    if not inside.any():
        return None
    deepest = table.at(batch_size, context, range(1, max(gammas) + 1)).t_draft_total_s.tolist()
    arms = {"decode": [float(costs.t_decode_s)], "draft": deepest}
    if catches_up:
        arms["draft_catch_up"] = [deepest[0] + float(costs.t_draft_catch_up_s)]
    for gamma, t_verify_s, is_inside in zip(gammas, costs.t_verify_s.tolist(), inside.tolist(), strict=True):
        if is_inside:
            arms[verify_arm(gamma)] = [t_verify_s]
    return exact_levels(arms)
