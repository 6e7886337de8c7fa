"""A paper's count of orders is judged with α divided over its cases."""

import pytest

from stages.verdicts import Status
from tests.claims.lines import claims, judge_all, results, trials


def test_order_reversed_only_at_full_alpha_does_not_reverse_a_tally() -> None:
    ranks = [claim for claim in claims().values() if claim.family == "ninformer.table2"]
    steps = [-0.001, 0.0, 0.001, 0.0005, -0.0005]
    levels = {"mlp-mixer": 0.971, "vit": 0.971 + 0.00168, "local-vit": 0.978, "ninformer": 0.986}
    lines = results("ninformer-mnist", {arm: [level + step for step in steps] for arm, level in levels.items()})
    judged, _ = judge_all(ranks, trials(lines))
    by_id = {judgement.claim.id: judgement.verdict for judgement in judged}
    (order,) = [one for one in by_id.values() if one.status is Status.REVERSED]
    assert order.p_value == pytest.approx(0.01, abs=0.002)
    assert by_id["ninformer.rank"].status is Status.UNRESOLVED
