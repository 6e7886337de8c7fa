"""Wind tunnel: for every judge, simulated worlds in which a statement is false by exactly its margin or barely true.

A generator draws experiments from a world and lets the real judge decide each at all its analyses. A wrong status is an
error, whose rate must not exceed the level in the rules.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import scipy

from stages import verdicts
from stages.claims.kinds import Kind
from stages.claims.trials import ClaimSamples, Pairs, ResultGroup
from stages.rules import Rules
from stages.verdicts import (
    ComparableClaim,
    ComparedArms,
    EvidenceLevel,
    Failures,
    GainClaim,
    GridPart,
    PrintedOrder,
    Sample,
    Status,
    TableSentence,
    UniformClaim,
    ValueClaim,
    Verdict,
    design_effect,
    indicate_order,
    judge_comparable,
    judge_count,
    judge_gain,
    judge_gap,
    judge_hardware,
    judge_noise,
    judge_proportion,
    judge_proportions,
    judge_shown,
    judge_side,
    judge_table,
    judge_tally,
    judge_uniform,
    judge_value,
    judge_wins,
    not_tested,
    tally_tests,
)
from stages.verdicts.families import usual_range
from stages.verdicts.intervals import looks_of_plan
from tests.claims.lines import claims, params
from tests.verdicts.simulation import RULES, above

WITHIN, OUTSIDE = RULES.alpha_within, RULES.alpha_outside / 2
SIGN = {Status.SUPPORTED: OUTSIDE, Status.REVERSED: OUTSIDE}
SIZE = {Status.REPRODUCED: WITHIN, Status.NOT_REPRODUCED: OUTSIDE}
DECIDED = frozenset(
    (
        *(Status.REPRODUCED, Status.NOT_REPRODUCED, Status.SUPPORTED, Status.REVERSED, Status.HOLDS),
        *(Status.HOLDS_UNDER_READING, Status.FAILS, Status.AGREES, Status.DISAGREES),
    )
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A distribution of replicates; each field is a departure from independent normal draws with one SD.

    `noise` has mean 0 and SD 1; the proposed arm's is `ratio` times as large. Correlations: `paired` between the arms
    of one replicate, `common` between all replicates of a comparison, `cluster` between seeds of one network or orders
    on one data set. `interaction` is the SD of one level's gains between slices of a grid, in standard errors of one
    pair's gain. `best_of` is the number of runs of which the paper prints the best.
    """

    name: str
    noise: str = "normal"
    ratio: float = 1.0
    planned: int = 5
    paired: float = 0.0
    common: float = 0.0
    cluster: float = 0.0
    interaction: float = 0.0
    part: bool = False
    slices: bool = False
    best_of: int = 1

    @property
    def departures(self) -> set[str]:
        return {f.name for f in dataclasses.fields(self) if f.name != "name" and getattr(self, f.name) != f.default}

    @property
    def limit(self) -> str:
        """Return the key in `LIMITS` of the reason why no level can hold here, or an empty string if it must."""
        if self.best_of > 1:
            return "best"
        return "common" if self.common else "skew" if self.noise in ("high", "low") else ""


LIMITS = {
    "skew": "Skewed replicates: three to ten of them don't show how skewed they are, and the t test assumes that they "
    "aren't. The world is an exponential distribution, whose skewness is 2.",
    "common": "Replicates or folds that share what differs from one experiment to the next, such as their training "
    "images: the data don't show it, so every level holds given these images. The correlation is 0.2.",
    "best": "A paper that prints the best of three runs and doesn't say so.",
    "tails": "Replicates with long tails, in a test of their spread or of one printed run: it takes them as normal.",
    "direction": "Short runs give a direction and no test.",
}
"""Reasons why no test can hold its level in some worlds; each generator has a ceiling for the rate there instead."""


WORLDS = (
    World(name="independent normal draws"),
    World(name="t with 5 df", noise="t5"),
    World(name="skewed to high values", noise="high"),
    World(name="skewed to low values", noise="low"),
    World(name="SD ratio 3", ratio=3),
    World(name="SD ratio 10", ratio=10),
    World(name="SD ratio 10, t with 5 df", ratio=10, noise="t5"),
    World(name="SD ratio 3, skewed to high values", ratio=3, noise="high"),
    World(name="SD ratio 10, skewed to high values", ratio=10, noise="high"),
    World(name="SD ratio 10, skewed to low values", ratio=10, noise="low"),
    World(name="seeds of both arms correlated by 0.5", paired=0.5),
    World(name="replicates correlated by 0.2", common=0.2),
    World(name="plan of 3", planned=3),
    World(name="plan of 7: looks at 3, 5 and 7", planned=7),
    World(name="plan of 10: looks at 3, 5 and 10", planned=10),
    World(name="clusters correlated by 0.1", cluster=0.1),
    World(name="clusters correlated by 0.5", cluster=0.5),
    World(name="gains that differ between slices", interaction=1.0),
    World(name="part of a grid", part=True),
    World(name="part of a grid, gains differ by half a standard error", part=True, interaction=0.5),
    World(name="part of a grid, gains differ by a standard error", part=True, interaction=1.0),
    World(name="part of a grid, gains differ by two standard errors", part=True, interaction=2.0),
    World(name="slices added and judged one by one", slices=True),
    World(name="paper prints its best of three", best_of=3),
)


def noise(world: World, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw values with mean 0 and SD 1; those along the last axis are correlated by `common`."""
    if world.noise == "t5":
        drawn = rng.standard_t(5, shape) * 0.6**0.5
    elif world.noise == "normal":
        drawn = rng.standard_normal(shape)
    else:
        drawn = (rng.standard_exponential(shape) - 1) * (1 if world.noise == "high" else -1)
    if world.common:
        shared = rng.standard_normal((*shape[:-1], 1))
        drawn = world.common**0.5 * shared + (1 - world.common) ** 0.5 * drawn
    return drawn


def arms(world: World, rng: np.random.Generator) -> np.ndarray:
    """Return [proposed and baseline, replicates], both with mean 0."""
    both = noise(world, rng, 2, world.planned)
    if world.paired:
        both = world.paired**0.5 * rng.standard_normal(world.planned) + (1 - world.paired) ** 0.5 * both
    both[0] *= world.ratio
    return both


def looks(world: World) -> Iterable[int]:
    return looks_of_plan(RULES.looks, world.planned)


Experiment = Callable[[World, np.random.Generator], Iterator[Verdict | TableSentence]]


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Experiments for one statement.

    `levels` maps each erroneous status to its level, and `sees` lists the departures that the generator draws.
    `ceilings` are accepted rates in worlds with one of the `LIMITS`; `limit` applies to every world.
    """

    statement: str
    experiment: Experiment
    levels: Mapping[Status, float]
    sees: frozenset[str]
    ceilings: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""

    @property
    def worlds(self) -> list[World]:
        return [world for world in WORLDS if world.departures <= self.sees]

    def limit_in(self, world: World) -> str:
        if world.noise == "t5" and "tails" in self.ceilings:
            return "tails"
        return self.limit or world.limit

    def highest(self, status: Status, world: World) -> float:
        """Return the highest rate that this status may have in this world."""
        return max(self.levels[status], self.ceilings.get(self.limit_in(world), 0.0))

    def rates(self, world: World, experiments: int, seed: int = 0) -> dict[Status, float]:
        """Return the share of experiments in which an analysis gives each status at risk."""
        rng = np.random.default_rng([seed, crc32(f"{self.statement} {world.name}".encode())])
        counts = dict.fromkeys(self.levels, 0)
        with statuses_only():
            for _ in range(experiments):
                for status in {verdict.status for verdict in self.experiment(world, rng)} & counts.keys():
                    counts[status] += 1
        return {status: count / experiments for status, count in counts.items()}


GENERATORS: dict[str, Generator] = {}


def generator(
    statement: str, levels: Mapping[Status, float], sees: str = "", *, limit: str = "", **ceilings: float
) -> Callable[[Experiment], Experiment]:
    def register(experiment: Experiment) -> Experiment:
        GENERATORS[statement] = Generator(
            statement=statement,
            experiment=experiment,
            levels=levels,
            sees=frozenset(sees.split()),
            ceilings=ceilings,
            limit=limit,
        )
        return experiment

    return register


LEFT_OUT: Mapping[str, Callable] = {
    "expected_replicates": lambda *_: None,
    "with_interval": lambda *_: "",
    "explain": lambda verdict, *_, **__: verdict,
    "with_assumptions": lambda verdict, *_, **__: verdict,
    "warn_of_skew": lambda *_: "",
    "with_prediction": lambda verdict, *_: verdict,
}


CACHED_ISF = cache(scipy.stats.studentized_range.isf)


@contextmanager
def statuses_only() -> Iterator[None]:
    """Skip slow parts that don't affect the status: forecasts, and sentences with intervals."""
    with mock.patch.multiple(verdicts.grid_part.Gains, chance_within=lambda *_: None):
        patched: list[Any] = [
            mock.patch.object(scipy.stats.studentized_range, "sf", return_value=1.0),
            mock.patch.object(scipy.stats.studentized_range, "isf", CACHED_ISF),
        ]
        for name, module in list(sys.modules.items()):
            for function, instead in LEFT_OUT.items():
                if name.startswith("stages.verdicts.") and function in vars(module):
                    patched.append(mock.patch.object(module, function, instead))
        for patch in patched:
            patch.start()
        try:
            yield
        finally:
            for patch in patched:
                patch.stop()


# Generators.


def judge_printed(world: World, rng: np.random.Generator, stderr: float | None, runs: np.ndarray) -> Iterator[Verdict]:
    """Judge a value that is off by the margin, six of its SD, which is `ratio` times that of the paper's runs."""
    ours = world.ratio * (6 + noise(world, rng, world.planned))
    claim = ValueClaim(value=float(runs.mean()), margin=6 * world.ratio, stderr=stderr, n=runs.size)
    for n in looks(world):
        yield judge_value(claim, Sample.of(ours[:n].tolist()), rules=RULES, planned=world.planned)


@generator(
    "A value of one run is off by the margin",
    SIZE,
    "noise planned common best_of",
    skew=0.13,
    common=0.09,
    best=0.09,
    tails=0.065,
)
def value(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    best = noise(dataclasses.replace(world, common=0.0), rng, world.best_of).min(keepdims=True)
    yield from judge_printed(world, rng, None, best)


@generator(
    "A value printed with its error is off by the margin", SIZE, "noise ratio planned common", skew=0.21, common=0.08
)
def value_with_error(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    runs = noise(dataclasses.replace(world, common=0.0), rng, 5)
    yield from judge_printed(world, rng, float(runs.std(ddof=1)) / 5**0.5, runs)


@generator("A number from inside networks is off by the margin", SIZE, "noise planned common", skew=0.2, common=0.11)
def observed(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    ours = 6 + noise(world, rng, world.planned)
    for n in looks(world):
        claim = ValueClaim(value=0.0, margin=6.0, stderr=0.0)
        yield judge_value(claim, Sample.of(ours[:n].tolist()), rules=RULES, planned=world.planned)


@generator("A number from inside networks lies on the bound", SIGN, "noise planned common", skew=0.15, common=0.08)
def side(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    drawn = noise(world, rng, world.planned).tolist()
    for n in looks(world):
        yield judge_side(0.0, "higher", Sample.of(drawn[:n]), rules=RULES, planned=world.planned)


def judge_range_of_four(world: World, rng: np.random.Generator, window: float) -> Iterator[Verdict]:
    drawn = noise(world, rng, world.planned).tolist()
    for n in looks(world):
        yield judge_noise(window, 4, Sample.of(drawn[:n]), rules=RULES, planned=world.planned)


@generator(
    "A printed range of four numbers is that of four more seeds",
    {Status.REVERSED: OUTSIDE},
    "noise planned",
    skew=0.2,
    tails=0.1,
)
def noise_of_seeds(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_range_of_four(world, rng, float(np.ptp(noise(world, rng, 4))))


@generator(
    "A printed range of four numbers is the largest that is usual",
    {Status.SUPPORTED: OUTSIDE},
    "noise planned",
    skew=0.2,
    tails=0.1,
)
def usual_noise(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_range_of_four(world, rng, usual_range(4))


def judge_sign(world: World, both: np.ndarray, pairing: Any, rules: Rules = RULES) -> Iterator[Verdict]:
    claim = GainClaim(gain=1.0, margin=None, better="higher")
    for n in looks(world):
        ours, theirs = (Sample.of(arm[:n].tolist()) for arm in both)
        yield judge_gain(claim, ComparedArms(ours, theirs, rules=rules, pairing=pairing, planned=world.planned))


@generator("Two arms of independent seeds are equal", SIGN, "noise ratio planned paired common", skew=0.16, common=0.09)
def order(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_sign(world, arms(world, rng), "none")


@generator("Two arms on shared folds are equal", SIGN, "noise ratio planned common", skew=0.17, common=0.08)
def order_of_folds(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    folds = 3 * rng.standard_normal(world.planned)
    yield from judge_sign(world, folds + arms(world, rng), "fold")


@generator(
    "The size of a gain is off by the margin",
    SIZE,
    "noise ratio planned paired common best_of",
    skew=0.12,
    common=0.1,
    best=0.05,
    tails=0.065,
)
def size(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    """The margin is half of the printed gain, and the true gain is half more: 12 and 18 SD of a difference."""
    both, margin = arms(world, rng), 6 * (1 + world.ratio**2) ** 0.5
    runs = noise(dataclasses.replace(world, common=0.0), rng, 2, world.best_of).max(axis=1)
    printed = 2 * margin + world.ratio * runs[0] - runs[1]
    both[0] += 3 * margin
    claim = GainClaim(gain=float(printed), margin=float(printed) / 2, better="higher", n=1, slope=0.5)
    for n in looks(world):
        ours, theirs = (Sample.of(arm[:n].tolist()) for arm in both)
        yield judge_gap(claim, ComparedArms(ours, theirs, rules=RULES, pairing="none", planned=world.planned))


def judge_alike(world: World, both: np.ndarray, loss: float, rules: Rules = RULES) -> Iterator[Verdict]:
    """Judge an arm that is worse by `loss` SD of a difference against margins of 2 and 4."""
    scale = (1 + world.ratio**2) ** 0.5
    claim = ComparableClaim(margin=2 * scale, better="higher", accepted=4 * scale)
    for n in looks(world):
        ours, theirs = Sample.of((both[0, :n] - loss * scale).tolist()), Sample.of(both[1, :n].tolist())
        yield judge_comparable(claim, ComparedArms(ours, theirs, rules=rules, pairing="none", planned=world.planned))


@generator(
    "An arm is worse by the margin",
    {Status.SUPPORTED: WITHIN},
    "noise ratio planned paired common",
    skew=0.21,
    common=0.11,
)
def comparable(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_alike(world, arms(world, rng), 2.0)


@generator(
    "An arm is worse by what the paper calls comparable",
    {Status.HOLDS_UNDER_READING: WITHIN, Status.REVERSED: OUTSIDE},
    "noise ratio planned paired common",
    skew=0.19,
    common=0.13,
)
def comparable_as_read(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_alike(world, arms(world, rng), 4.0)


def judge_ratio(
    world: World, rng: np.random.Generator, name: str, true: float, spread: float = 0.01, **printed: Any
) -> Iterator[Verdict]:
    """Judge arms with this spread around 1; `true` is the relative gain of the proposed one."""
    claim = dataclasses.replace(claims()[name], **printed)
    sign = 1 if claim.better == "higher" else -1
    both = 1 + spread * arms(world, rng)
    both[0] += sign * true
    pairs = Pairs(proposed=(str(claim.arm),), baseline=(str(claim.baseline_arm),), cells=({},), grid=({},))
    experiment = dataclasses.replace(params().experiments[str(claim.experiment)], seeds=tuple(range(world.planned)))
    group = ResultGroup(
        experiment=experiment, profile="paper", conditions="", evidence_level=EvidenceLevel.DECIDES, share=1.0, arms={}
    )
    for n in looks(world):
        ours, theirs = (Sample.of(arm[:n].tolist()) for arm in both)
        sides = ClaimSamples(pairs=pairs, group=group, proposed=ours, baseline=theirs)
        yield Kind.classes[claim.kind](claim, RULES).decide(sides, params())[0]


@generator(
    "A ratio printed without error is off by the margin",
    SIZE,
    "noise ratio planned paired common",
    skew=0.18,
    common=0.15,
)
def ratio(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    """The printed ratio is 0.16, the margin half of it, and the true one 0.24."""
    yield from judge_ratio(world, rng, "ninformer.text.c10.acc_vs_mixer", 0.24, value=0.16, n=10**6)


@generator("A ratio of one run is off by the margin", SIZE, "noise ratio", skew=0.15, tails=0.065)
def ratio_of_one_run(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    """Like `ratio`, plus the error of the paper's own run, which also moves the margin.

    The SD is small because a paper that claims a gain prints one: at 0.1, 5 % of its runs would have a negative ratio.
    """
    runs = 1 + 0.004 * noise(world, rng, 2) * [world.ratio, 1]
    printed = float((runs[0] + 0.16) / runs[1] - 1)
    yield from judge_ratio(world, rng, "ninformer.text.c10.acc_vs_mixer", 0.24, spread=0.004, value=printed)


@generator(
    "A ratio lies on the end of a printed range", SIZE, "noise ratio planned paired common", skew=0.18, common=0.11
)
def end_of_range(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_ratio(world, rng, "nmn.gpt.memory", 0.26)


def judge_grid(world: World, rng: np.random.Generator, gains: Iterable[float], margin: float) -> Iterator[Verdict]:
    """Judge a grid of levels with these gains, with three slices, or two of five."""
    true, planned = np.array(list(gains))[:, None], 5 if world.part else 3
    between = world.interaction * 0.4**0.5 * rng.standard_normal((true.size, planned))
    true = (true + between - between.mean(axis=1, keepdims=True))[:, : 2 if world.part else planned]
    drawn = noise(world, rng, *true.shape, 2, 5)
    drawn[0] *= world.ratio
    drawn[:, :, 0] += true[:, :, None]
    grid = {
        level: [(Sample.of(ours), Sample.of(theirs)) for ours, theirs in pairs]
        for level, pairs in enumerate(drawn.tolist())
    }
    claim = UniformClaim(factor="width", is_whole=not world.part, gain=1.0, margin=margin, better="higher")
    yield judge_uniform(claim, grid, rules=RULES, replicates=5)


@generator(
    "Half of the levels gain more than the others by the margin",
    {Status.NOT_REPRODUCED: OUTSIDE},
    "noise ratio interaction part",
    skew=0.05,
)
def uniform(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_grid(world, rng, [0, 0, 0.1, 0.1], 0.1)


@generator("Two levels are the margin apart", {Status.REPRODUCED: WITHIN}, "noise ratio interaction part", skew=0.1)
def two_apart(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    margin = 5.0 * world.ratio
    yield from judge_grid(world, rng, [0, margin / 2, margin / 2, margin], margin)


@generator("No pair of a grid gains anything", SIGN, "noise ratio paired slices", skew=0.05)
def order_of_grid(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    planned = tuple({"depth": depth, "width": width} for depth in range(5) for width in range(3))
    drawn = np.stack([arms(world, rng) for _ in planned], axis=1)
    for ran in range(3 if world.slices else len(planned), len(planned) + 1, 3):
        pairs = tuple((Sample.of(ours), Sample.of(theirs)) for ours, theirs in drawn[:, :ran].swapaxes(0, 1).tolist())
        part = GridPart(pairs=pairs, cells=planned[:ran], planned=planned) if ran < len(planned) else None
        ours, theirs = (Sample.of(arm.mean(axis=0).tolist()) for arm in drawn[:, :ran])
        claim = GainClaim(gain=1.0, margin=None, better="higher")
        pairs_there = ran, len(planned)
        yield judge_gain(
            claim, ComparedArms(ours, theirs, rules=RULES, pairing="none", planned=5, part=part, pairs=pairs_there)
        )


def judge_family(
    judge: Callable[[World, np.ndarray, Any, Rules], Iterator[Verdict]],
    argument: Any,
    claimed: int,
    cases: int,
    world: World,
    rng: np.random.Generator,
) -> Iterator[Verdict]:
    """Judge a paper's count of cases, with α divided as in `tally_tests`."""
    drawn = [arms(world, rng) for _ in range(cases)]
    tests = []
    for parts in tally_tests(claimed, cases):
        strict = dataclasses.replace(
            RULES, alpha_within=RULES.alpha_within / parts, alpha_outside=RULES.alpha_outside / parts
        )
        tests.append(zip(*(judge(world, both, argument, strict) for both in drawn), strict=True))
    for at_support, at_reversal in zip(*tests, strict=True):
        yield judge_tally(claimed, at_support, at_reversal)


@generator("Nine of nine orders are only just true", {Status.REVERSED: OUTSIDE}, "noise planned paired", skew=OUTSIDE)
def tally(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_family(judge_sign, "none", 9, 9, world, rng)


@generator(
    "None of three orders holds, one is claimed to", {Status.SUPPORTED: OUTSIDE}, "noise planned paired", skew=OUTSIDE
)
def tally_of_one(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_family(judge_sign, "none", 1, 3, world, rng)


@generator(
    "One of three arms is claimed to be comparable, all are worse",
    {Status.HOLDS_UNDER_READING: WITHIN},
    "noise",
    skew=WITHIN,
)
def tally_as_read(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield from judge_family(judge_alike, 4.0, 1, 3, world, rng)


def on_two_data_sets(world: World, rng: np.random.Generator) -> np.ndarray:
    """Return errors of sixteen orders in five replicates, correlated by `cluster` on each of two data sets."""
    shared = rng.standard_normal((2, 1, 5)).repeat(8, axis=1).reshape(16, 5)
    return world.cluster**0.5 * shared + (1 - world.cluster) ** 0.5 * noise(world, rng, 16, 5)


def orders_of(drawn: np.ndarray) -> list[PrintedOrder]:
    """Judge gains [orders, replicates]; the first eight are on one data set."""
    claim, zeros = GainClaim(gain=1.0, margin=None, better="higher"), Sample.of([0.0] * drawn.shape[1])
    return [
        PrintedOrder(
            verdict=judge_gain(claim, ComparedArms(Sample.of(row), zeros, rules=RULES, pairing="fold", planned=5)),
            printed=1.0,
            dataset=str(number // 8),
            gains=dict(enumerate(row)),
        )
        for number, row in enumerate(drawn.tolist())
    ]


def judge_count_of_wins(claimed: int, drawn: np.ndarray) -> Verdict:
    orders = orders_of(drawn)
    return judge_wins(claimed, [order.verdict for order in orders], RULES, n=5, effect=design_effect(orders))


@generator(
    "A paper's count of wins is repeated",
    {Status.NOT_REPRODUCED: RULES.alpha_outside},
    "noise best_of cluster",
    skew=0.05,
    best=0.13,
)
def wins(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    gains = np.zeros(16) if world.cluster else rng.normal(0.3, 0.5, 16)  # no gain is the hardest case
    runs = np.stack([on_two_data_sets(world, rng) for _ in range(world.best_of)]).mean(axis=-1).max(axis=0)
    yield judge_count_of_wins(int(np.sum(runs + gains > 0)), on_two_data_sets(world, rng) + gains[:, None])


@generator(
    "Fifteen of sixteen wins are claimed, nothing gains", {Status.REPRODUCED: WITHIN}, "noise cluster", skew=0.05
)
def wins_by_chance(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    yield judge_count_of_wins(15, on_two_data_sets(world, rng))


def failed(world: World, rng: np.random.Generator, chance: float) -> Failures:
    """Return failed trainings of five seeds in each of 29 networks, correlated by `cluster` within a network."""
    rates = np.full(29, chance)
    if world.cluster:
        size = 1 / world.cluster - 1
        rates = rng.beta(chance * size, (1 - chance) * size, 29)
    return Failures(counts=tuple(rng.binomial(5, rates).tolist()), each=5)


@generator("Trainings of both arms fail alike", SIGN, "cluster")
def failures(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    ours, theirs = (failed(world, rng, 0.2) for _ in range(2))
    yield judge_proportions(ours, theirs, rules=RULES)


@generator("A proportion of failures is off by the margin", SIZE, "cluster")
def proportion(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    (count, of), ours = failed(world, rng, 0.2).total, failed(world, rng, 0.4)
    yield judge_proportion((count, of), ours, count / of, rules=RULES, slope=1.0)  # the margin has all of its error


@generator("The orders of a table gain nothing on average", SIGN, "noise cluster", skew=0.05)
def table(world: World, rng: np.random.Generator) -> Iterator[TableSentence]:
    """Sixteen orders on two data sets, with errors correlated by `cluster` on each."""
    gains = rng.standard_normal(16)
    drawn = on_two_data_sets(world, rng) + (gains - gains.mean())[:, None]
    for n in looks(world):
        yield judge_table(orders_of(drawn[:, :n]), RULES)


@generator("A count, a figure or a device is not the printed one", {Status.HOLDS: 0.0, Status.HOLDS_UNDER_READING: 0.0})
def exact(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    """Only the count is drawn."""
    yield judge_count(7, int(rng.integers(8, 100)))
    yield from (judge_shown("a figure"), not_tested("not run"), judge_hardware("A100", "two cores"))


@generator("A count is the printed one", {Status.FAILS: 0.0})
def exact_count(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    count = int(rng.integers(1, 100))
    yield judge_count(count, count)


@generator(
    "Short runs of two equal arms",
    {Status.AGREES: OUTSIDE, Status.DISAGREES: OUTSIDE},
    limit="direction",
    direction=0.5,
)
def indication(world: World, rng: np.random.Generator) -> Iterator[Verdict]:
    ours, theirs = (Sample.of(arm.tolist()) for arm in arms(world, rng))
    yield indicate_order(GainClaim(gain=1.0, margin=None, better="higher"), ours, theirs, epochs_share=0.3)


# Judges that need a generator, found in the code.


def judging_functions() -> dict[str, Callable]:
    """Return the functions of `stages.verdicts` that return a verdict, and the judges of trained claims."""
    public = {name: found for name, found in vars(verdicts).items() if inspect.isfunction(found)}
    reached = {name: found for kind in Kind.classes.values() for name, found in reached_from(kind).items()}
    inside = {
        name: found
        for name, found in reached.items()
        if name.startswith("judge_") and found.__module__.startswith("stages.verdicts")
    }
    gives = ("Verdict", "TableSentence", "Verdict | None")
    return inside | {
        name: found
        for name, found in public.items()
        if getattr(given := inspect.signature(found).return_annotation, "__name__", given) in gives
    }


def reached_from(judge: Any) -> dict[str, Callable]:
    """Return the functions of `stages.claims` and `stages.verdicts` that a judge or a kind's class reaches."""
    methods = [one for base in getattr(judge, "__mro__", ()) for one in vars(base).values() if inspect.isfunction(one)]
    todo, found = methods or [judge], {}
    while todo:
        function = todo.pop()
        code = [function.__code__]
        while code:
            one = code.pop()
            code += [inner for inner in one.co_consts if inspect.iscode(inner)]
            for name in one.co_names:
                named = function.__globals__.get(name)
                known = inspect.isfunction(named) and named.__module__.startswith(("stages.claims", "stages.verdicts"))
                if known and name not in found:
                    found[name] = named
                    todo.append(named)
    return found


def statuses_of(function: Callable) -> set[Status]:
    """Return the decided statuses in the code of a judge and its callees."""
    functions = [function, *reached_from(function).values()]
    codes = [code for one in functions if one.__name__ not in LEFT_OUT for code in _codes(one.__code__)]
    names = {name for code in codes for name in code.co_names}
    return {status for status in DECIDED if status.name in names}


@cache
def judges_of(statement: str) -> frozenset[str]:
    """Return the judging functions that this generator's experiments call."""
    called = called_by(GENERATORS[statement])
    return frozenset(name for name, function in judging_functions().items() if function.__code__ in called)


def _codes(code: Any) -> Iterator[Any]:
    yield code
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from _codes(inner)


def called_by(generator: Generator) -> set[Any]:
    """Return the code in `stages` that this generator's experiments run."""
    seen = set()
    rng = np.random.default_rng(0)
    list(generator.experiment(generator.worlds[0], rng))  # fill caches first
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code) if event == "call" else None)
    try:
        for _ in range(3):
            list(generator.experiment(generator.worlds[0], rng))
    finally:
        sys.setprofile(None)
    return seen


# Table.


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The highest rate of a status among the worlds with one limit, with its world and number of experiments."""

    statement: str
    status: str
    limit: str
    world: str
    rate: float
    experiments: int

    @property
    def highest(self) -> float:
        (world,) = (world for world in WORLDS if world.name == self.world)
        return GENERATORS[self.statement].highest(Status(self.status), world)


def worst_rates(
    statement: str, screened: int, confirmed: int = 0, *, worlds: Collection[str] | None = None
) -> list[Worst]:
    """Find for each status and limit the world with the highest rate in `screened` experiments.

    If `confirmed` is positive, estimate that world's rate with as many new experiments.
    """
    judged = GENERATORS[statement]
    drawn = [world for world in judged.worlds if worlds is None or world.name in worlds]
    rates = {world: judged.rates(world, screened) for world in drawn}
    found = []
    for limit in dict.fromkeys(judged.limit_in(world) for world in drawn):
        there = [world for world in drawn if judged.limit_in(world) == limit]
        again: dict[str, dict[Status, float]] = {}
        for status in judged.levels:
            world = max(there, key=lambda world: rates[world][status])
            if confirmed and world.name not in again:
                again[world.name] = judged.rates(world, confirmed, seed=1)
            rate = again[world.name][status] if confirmed else rates[world][status]
            found.append(
                Worst(
                    statement=statement,
                    status=str(status),
                    limit=limit,
                    world=world.name,
                    rate=rate,
                    experiments=confirmed or screened,
                )
            )
    return found


def too_high(worst: Iterable[Worst]) -> list[str]:
    """Describe the rates that exceed their maximum by more than three standard errors."""
    return [
        f"{one.statement}: {one.status} in {one.rate:.1%}, at most {one.highest:.1%}, in the world: {one.world}"
        for one in worst
        if one.rate > above(one.highest, one.experiments)
    ]


def printed_table(worst: Iterable[Worst]) -> str:
    """Return the table of `docs/verdicts.md` with a row per generator."""
    rows = [
        "| what is false, or only just true | judge | error: level, highest rate, world | limits |",
        "|---|---|---|---|",
    ]
    every = list(worst)
    for statement, judged in GENERATORS.items():
        mine = [one for one in every if one.statement == statement]
        held = [
            f"`{one.status}` {_percent(judged.levels[Status(one.status)])}: {_percent(one.rate)}, {one.world}"
            for one in mine
            if not one.limit
        ]
        limits = [
            f"{one.limit}: `{one.status}` {_percent(one.rate)}, {one.world}"
            for one in _highest_of_each_limit(mine)
            if one.rate > judged.levels[Status(one.status)]
        ]
        names = ", ".join(f"`{name}`" for name in sorted(judges_of(statement)))
        rows.append(f"| {statement} | {names} | {'<br>'.join(held)} | {'<br>'.join(limits)} |")
    return "\n".join([*rows, "", *(f"- *{key}*: {reason}" for key, reason in LIMITS.items())])


def _highest_of_each_limit(worst: Iterable[Worst]) -> list[Worst]:
    found: dict[str, Worst] = {}
    for one in worst:
        if one.limit and (one.limit not in found or one.rate > found[one.limit].rate):
            found[one.limit] = one
    return list(found.values())


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %" if rate else "0 %"
