"""Charts: positions agree with the axes for any numbers."""

import math
from itertools import pairwise
from typing import Any, get_args

import pytest
from fastapi.templating import Jinja2Templates
from fastapi.testclient import TestClient
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.database.schemas import CurvePointOut
from service.pages import wording
from service.pages.charts import (
    WIDTH,
    draw_arms,
    draw_claim,
    draw_lines,
    draw_overlay,
    draw_strip,
    mark_pairs,
    share_of,
)
from service.pages.plots import APART, MOST_NAMED, MOST_TICKS, SHAPES, Axis, Drawing, ink_of, tick_in
from stages.params.experiment import Role
from stages.results import Claim, ClaimRecord, JudgedClaim, PairGain, VerdictArm, VerdictRow
from tests.service.drawn import Drawn, drawings, read, read_drawing
from tests.service.results_factory import REPOSITORY

PARTS = Jinja2Templates(REPOSITORY / "service" / "templates").env
wording.install(PARTS)
numbers = st.floats(-1e30, 1e30, allow_subnormal=False).filter(lambda number: number == 0 or abs(number) > 1e-30)
positive = st.floats(1e-30, 1e30)


def render(drawing: Drawing) -> Drawn:
    return read_drawing(str(PARTS.get_template("parts.html").module.figure(drawing, "title")))  # type: ignore[attr-defined]


@given(st.lists(numbers, min_size=1, max_size=8) | st.lists(positive, min_size=1, max_size=8), st.booleans())
@example([0.0], False)
@example([7.0, 7.0], True)
@example([0.1, 0.1 + 1e-12], False)
@example([98765.0, 98765.4], False)
@example([-1e30, 1e30], False)
@example([1e-30, 1e30], True)
def test_positions_agree_with_round_ticks(values: list[float], is_upright: bool) -> None:
    axis = Axis(values, tick_in("nats"), is_upright=is_upright)
    places = [axis.at(value) for value in values]
    assert all(0 <= place <= 100 for place in places)
    order = sorted(range(len(values)), key=lambda at: values[at], reverse=is_upright)
    assert [places[at] for at in order] == sorted(places)
    assert 2 <= len(axis.ticks) <= 2 * MOST_TICKS and len({tick.text for tick in axis.ticks}) == len(axis.ticks)
    assert all(0 <= tick.place <= 100 and tick.place == axis.at(tick.number) for tick in axis.ticks)
    if max(values) - min(values) > 1e-6 * max(map(abs, values)):
        ticks = [(tick.number, tick.place) for tick in axis.ticks]
        for value, place in zip(values, places, strict=True):
            found, share = read(place, ticks), 1e-3
            near = math.log(max(values) / min(values)) * abs(value) if axis.is_log else max(values) - min(values)
            assert abs(found - value) <= share * near


@pytest.mark.parametrize(
    ("values", "is_log"),
    [([0.01, 0.2], True), ([1.0, 9.0], False), ([0.0, 5.0], False), ([-3.0, 90.0], False), ([7.0], False)],
)
def test_positive_numbers_over_a_decade_have_a_logarithmic_axis(values: list[float], is_log: bool) -> None:
    assert Axis(values, str).is_log == is_log


def test_epoch_ticks_are_whole_numbers() -> None:
    for last in (1, 2, 3, 7, 400):
        ticks = Axis(range(1, last + 1), "{:g}".format, is_linear=True, is_whole=True).ticks
        assert ticks and all(tick.number == int(tick.number) for tick in ticks)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=70), min_size=1, max_size=5), st.sampled_from([1, 5])
)
def test_lines_bands_and_labels_agree_with_the_axes(curves: list[list[float]], smooth: int) -> None:
    points = [
        CurvePointOut(arm=str(arm), epoch=epoch, replicates=2, mean=mean, low=0.9 * mean, high=1.2 * mean)
        for arm, means in enumerate(curves)
        for epoch, mean in enumerate(means, start=1)
    ]
    titles = {str(arm): f"Model {arm}" for arm in range(len(curves))}
    drawing = draw_overlay(points, titles, ink_of(titles.values()), "nats", smooth=smooth)
    assert drawing is not None and len(drawing.rows) == len(curves)
    found = render(drawing)
    ends = [end for line in drawing.lines for point in line.points for end in (point.low, point.high) if end]
    for (line, band, means), title in zip(
        zip(drawing.lines, found.bands, curves, strict=True), titles.values(), strict=True
    ):
        half = smooth // 2
        windows = [means[max(0, at - half) : at + half + 1] for at in range(len(means))]
        expected = [sum(window) / len(window) for window in windows]
        read_off = found.lines[title, line.ink.dash]
        assert [x for x, _ in read_off] == pytest.approx(range(1, len(means) + 1), abs=0.02 * len(means))
        close = {"rel": 0.01 + 2e-3 * math.log(max(ends) / min(ends)), "abs": 1e-3 * (max(ends) - min(ends))}
        if drawing.y.is_log:
            close.pop("abs")
        assert [y for _, y in read_off] == pytest.approx(expected, **close)
        assert [y for _, y in band[: len(means)]] == pytest.approx([1.2 * mean for mean in expected], **close)
        assert [y for _, y in band[len(means) :]] == pytest.approx([0.9 * mean for mean in expected[::-1]], **close)
        assert any(text.count(f"{title}, epoch ") == 1 for text in found.titles)
    places = [place for _, _, place in drawing.ends]
    assert all(0 <= place <= 100 for place in places)
    assert all(later - one >= APART - 0.01 for one, later in pairwise(places))


@settings(max_examples=40)
@given(st.lists(st.tuples(positive.filter(lambda x: 1e2 < x < 1e12), st.floats(-9, 9)), min_size=1, max_size=9))
@example([(1e6, 0.5)] * 8)
@example([(101.0, 0.0), (102.0, 0.0), (110.0, 0.0)])
def test_points_agree_with_their_numbers_and_names_do_not_overlap(
    models: list[tuple[float, float]],
) -> None:
    names = [f"Model {number}" for number in range(len(models))]

    def arm_of(at: int, experiment: str, flops: float | None, value: float) -> VerdictArm:
        ends = {"value": value, "low": value - 0.25, "high": value + 0.5, "flops": flops, "parameters": None}
        role = get_args(Role)[at % 4]
        return VerdictArm(experiment=experiment, arm=names[at], role=role, n=5, stderr=0.1, epoch=6, epochs=9, **ends)

    arms = [arm_of(at, "e", *model) for at, model in enumerate(models)]
    record = ClaimRecord(
        **dict.fromkeys(("experiments", "datasets", "runs", "pairs", "deviations", "changes", "same_error"), ()),
        claim=Claim(id="a"),
        verdict=VerdictRow(claim="a"),
        family=None,
        arms=(*arms, arm_of(0, "f", None, 0.5)),
    )
    figures = draw_arms(record, {name: name for name in names}, ink_of(names))
    assert list(figures) == (["e"] if len(arms) > 1 else []), "a single point compares nothing"
    for drawing in figures.values():
        found = render(drawing)
        assert len(found.points) == len(arms) == len(drawing.dots)
        for arm, (text, (x, y, interval)) in zip(arms, found.points.items(), strict=True):
            assert text.startswith(f"{arm.arm}: ") and arm.flops
            assert math.log(x / arm.flops) == pytest.approx(0, abs=0.05 if drawing.x.is_log else 0.5)
            assert y == pytest.approx(arm.value, abs=0.02) and interval == pytest.approx((arm.low, arm.high), abs=0.02)
        if drawing.labels:
            boxes = [
                (5.6 * label.x + label.dx, 2.88 * label.y + label.dy, label.anchor == "end") for label in drawing.labels
            ]
            spans = [(x - 49 * is_left, x + 49 * (not is_left), y) for x, y, is_left in boxes]
            for at, (left, right, y) in enumerate(spans):
                assert left >= 0 and right <= 560
                assert all(b <= left or right <= a or abs(y - other) >= 15 for a, b, other in spans[:at])
        else:
            named = set(names) if len(names) <= MOST_NAMED else set()
            assert {name for name, _, _ in drawing.key} == named, "the legend has names that don't fit"


def test_every_role_has_its_own_mark() -> None:
    assert set(SHAPES) == set(get_args(Role)) and len(set(SHAPES.values())) == len(SHAPES)


def test_pairs_are_drawn_in_rows_with_the_papers_gain() -> None:
    pairs = [
        PairGain(experiment="e", arm=arm, against=f"{arm}-base", value=gain, low=gain - 0.1, high=gain + 0.1, n=5)
        for arm, gain in (("a", 0.2), ("b", -0.1))
    ]
    titles = {"a": "A", "b": "B", "a-base": "a", "b-base": "b"}
    found = mark_pairs(pairs, titles, Claim(id="c", kind="order", unit="fraction", value=0.25))
    assert found is not None
    axis, ((_, first), (_, second)) = found
    for mark, pair in ((first, pairs[0]), (second, pairs[1])):
        assert (mark.ours, mark.low, mark.high, mark.paper) == tuple(
            axis.at(number) for number in (pair.value, pair.low, pair.high, 0.25)
        )
    assert first.text == "A against a: +20.00 pp (+10.00 to +30.00 pp)"
    assert "0" in [f"{tick.number:g}" for tick in axis.ticks], "no gain has a line"
    no_number = mark_pairs(pairs, titles, Claim(id="c", kind="order", unit="nats", value=None))
    assert no_number is not None and {mark.paper for _, mark in no_number[1]} == {None}
    assert mark_pairs([], titles, Claim(id="c")) is None


def test_empty_chart_is_omitted(client: TestClient) -> None:
    assert 'class="plot-cell' in client.get("/?dataset=cifar10").text, "the paper's values"
    assert 'class="plot-cell' not in client.get("/?dataset=cifar10&metric=calibration_error").text, "placeholders"
    assert drawings(client.get("/experiments/ninformer-cifar10").text) == []
    assert draw_overlay([], {}, {}, "nats") is None


def judge(
    name: str, *, kind: str = "value", value: float | None = 1.0, basis: str = "results", **verdict: Any
) -> JudgedClaim:
    claim = Claim(id=name, kind=kind, metric="accuracy", unit="nats", value=value, better="higher")
    row = VerdictRow(claim=name, basis=basis, is_decidable=True, **{"status": "inconclusive", **verdict})
    return JudgedClaim(claim=claim, verdict=row, experiments=(), datasets=())


def test_our_number_is_a_share_of_the_printed_one_with_an_interval() -> None:
    value = judge("a", value=0.5, ours=0.4, estimate=-0.1, low=-0.2, high=0.0)
    assert share_of(value) == pytest.approx((0.8, 0.6, 1.0)), "a value's interval is that of the difference"
    gain = judge("b", kind="difference", value=0.5, ours=0.4, estimate=0.4, low=0.3, high=0.6)
    assert share_of(gain) == pytest.approx((0.8, 0.6, 1.2)), "a gain's interval is its own"
    lower = judge("c", kind="gap", value=-0.5, ours=-0.4, estimate=-0.4, low=-0.6, high=-0.3)
    assert share_of(lower) == pytest.approx((0.8, 0.6, 1.2)), "ends are in order also for negative numbers"
    within = judge("d", value=0.15, basis="finding", ours=0.25)
    within.claim.high = 0.25
    assert share_of(within) == (1.0, None, None)
    assert share_of(judge("e", value=None, ours=1.0)) is share_of(judge("f", basis="params", ours=1.0)) is None


def test_overlapping_numbers_share_a_dot_but_visible_intervals_do_not() -> None:
    exact = [judge(name, basis="finding", status="holds", ours=1.0 + 0.001 * n) for n, name in enumerate("abc")]
    false = judge("d", basis="finding", status="contradicted", ours=0.3)
    wide = judge("e", ours=0.8, estimate=-0.2, low=-0.5, high=0.1)
    names = {name: name.upper() for name in "abcde"}
    strip = draw_strip([*exact, false, wide], names)
    assert sorted((dot.claim, dot.count, dot.side) for dot in strip.dots) == [
        *(("a", 3, "for"), ("d", 1, "against"), ("e", 1, "open"))
    ]
    by_claim = {dot.claim: dot for dot in strip.dots}
    assert by_claim["a"].x == pytest.approx(WIDTH / 1.5, abs=0.1) and by_claim["d"].label == "1 nats → 0.3 nats"
    assert (by_claim["e"].low, by_claim["e"].high) == pytest.approx((WIDTH / 3, WIDTH * 1.1 / 1.5), abs=0.1)
    ordered = [row.claim.id for row, _ in draw_lines([*exact, false, wide], names)]
    assert ordered == [*"deabc"], "failures come first"
    far = draw_strip([judge("f", basis="finding", ours=4.2)], {"f": "F"}).dots[0]
    assert far.x == WIDTH and far.label == "4.2 × ▸"
    for pair in ([false, under := judge("a", basis="finding", ours=0.45)], [under, false]):
        assert len({dot.y for dot in draw_strip(pair, names).dots}) == 2, "no dot hides another one's label"


def test_claim_is_drawn_in_its_unit_with_the_margin_around_the_printed_number() -> None:
    gain = judge("a", kind="difference", value=0.25, ours=0.2, estimate=0.2, low=0.1, high=0.3, margin=0.05)
    plot = draw_claim(gain, "A")
    assert plot is not None and plot.same == pytest.approx((0.2, 0.3))
    assert [plot.low, plot.ours, plot.printed, plot.high] == pytest.approx([0.1, 0.2, 0.25, 0.3])
    (zero,) = [tick for tick in plot.axis.ticks if tick.text == "0"]
    assert zero.place == plot.axis.at(0) and any(tick.text.endswith(" nats") for tick in plot.axis.ticks)
    value = draw_claim(judge("b", value=0.9, ours=0.92, estimate=0.02, low=0.01, high=0.03), "B")
    assert value is not None and value.same is None and "0" not in [tick.text for tick in value.axis.ticks]
    assert [value.printed, value.low, value.ours, value.high] == pytest.approx([0.9, 0.91, 0.92, 0.93])
    assert draw_claim(judge("c", basis="finding", ours=1.0), "C") is None, "computed without training: no interval"
    alike = judge("d", kind="equivalence", value=0.016, estimate=-0.002, low=-0.004, high=0.0, margin=0.005)
    drawn = draw_claim(alike, "D")
    assert drawn is not None and drawn.printed == 0, "comparable arms are expected to differ by 0"
