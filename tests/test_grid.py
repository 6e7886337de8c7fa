from __future__ import annotations

from typing import Any

import pytest

from stages.params.experiment import ArmTemplate, expand_arms


def template(**fields: Any) -> ArmTemplate:
    return ArmTemplate(**{"role": "baseline", "title": "A net"} | fields)


def test_a_grid_is_every_combination_under_its_own_name() -> None:
    arms = expand_arms(
        {
            "net{depth}x{width}": template(
                title="Net {depth}", grid={"depth": [1, 2], "width": [3, 4]}, model={"name": "Net", "bias": True}
            )
        }
    )
    assert list(arms) == ["net1x3", "net1x4", "net2x3", "net2x4"]
    assert arms["net2x3"].model == {"name": "Net", "bias": True, "depth": 2, "width": 3}
    assert arms["net2x3"].title == "Net 2"


def test_each_arm_of_a_grid_takes_over_from_and_stands_against_its_own_partner() -> None:
    arms = expand_arms(
        {
            "base{depth}": template(grid={"depth": [1, 2]}, model={"name": "Base"}, protocol={"epochs": 3}),
            "dac{depth}": template(
                role="proposed",
                like="base{depth}",
                against="base{depth}",
                grid={"depth": [1, 2]},
                model={"name": "DAC"},
            ),
        }
    )
    assert arms["dac2"].model == {"name": "DAC", "depth": 2}
    assert (arms["dac2"].protocol, arms["dac2"].against, arms["dac2"].role) == ({"epochs": 3}, "base2", "proposed")


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"net": template(grid={"depth": [1, 2]})}, "arms.net: net stands twice"),
        ({"net{width}": template(grid={"depth": [1]})}, "arms.net{width}: 'net{width}' has braces for depth only"),
        ({"net": template(like="other")}, "arms.net.like is 'other'; known above it: "),
        ({"net": template(against="other")}, "arms.net.against is 'other'; known: net"),
    ],
)
def test_a_mistake_in_a_grid_is_named(arms: dict[str, ArmTemplate], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("{", r"\{").replace(".", r"\.")):
        expand_arms(arms)
