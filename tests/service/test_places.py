"""In which order a paper's page has its claims, and in which tables."""

from service.pages.printed import IN_THE_TEXT, Cell, group_by_place, lay_out, take_apart
from stages.results import Claim, JudgedClaim, VerdictRow


def judge(place: str, kind: str = "value", basis: str = "none", arm: str | None = "vit") -> JudgedClaim:
    claim = Claim(id=f"{place} {kind}", place=place, kind=kind, arm=arm, experiment=arm and "x")
    return JudgedClaim(claim=claim, verdict=VerdictRow(basis=basis), experiments=(), datasets=())


def grouped(*places: str) -> dict[str, list[str]]:
    found = group_by_place([judge(place) for place in places])
    return {title: [row.claim.place for row in rows] for title, rows in found.items()}


def test_tables_come_first_then_figures_then_the_text_each_by_number() -> None:
    found = grouped("section 5", "Figure 10", "abstract", "section 3.2", "Table 2", "Figure 3", "section 3.10")
    assert list(found) == ["Table 2", "Figure 3", "Figure 10", IN_THE_TEXT]
    assert found[IN_THE_TEXT] == ["abstract", "section 3.2", "section 3.10", "section 5"]


def test_what_is_said_of_a_table_in_the_text_stands_with_the_table() -> None:
    assert grouped("Table 1", "section 5, Table 1", "section 5, Figure 9", "Figures 6 and 11") == {
        "Table 1": ["Table 1", "section 5, Table 1"],
        "Figures 6 and 11": ["Figures 6 and 11"],
        "Figure 9": ["section 5, Figure 9"],
    }


def test_a_section_with_several_claims_and_a_lone_passage_keep_their_headings() -> None:
    assert list(grouped("section 4", *["section 5"] * 3)) == ["Section 4", "Section 5"]
    assert list(grouped("AetherGPT", "AetherGPT, Efficiency", "AetherGPT", "AetherResNet")) == [
        "AetherGPT",
        "AetherResNet",
    ]


def test_a_model_s_number_is_a_result_though_computing_decides_it() -> None:
    cell, theorem = judge("Table 3", basis="finding"), judge("section 4", "theorem", "finding", arm=None)
    setting, size = judge("section 3", "setup", "params"), judge("section 3", "count", "params")
    operations = judge("Table 2", basis="finding", arm=None)
    parts = take_apart([setting, cell, size, theorem, operations])
    assert parts.results == {"Table 3": [cell]}
    assert (parts.computed, parts.settings, parts.counted) == ([theorem, operations], [setting], [size])


def test_claims_that_fill_no_table_keep_their_order_beside_it() -> None:
    titles = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
    arms = {(f"x-{dataset}", arm): arm.upper() for dataset in titles for arm in ("vit", "mixer")}

    def claim(name: str, arm: str | None, dataset: str, kind: str = "value", metric: str = "accuracy") -> JudgedClaim:
        row = Claim(id=name, kind=kind, arm=arm, metric=metric)
        return JudgedClaim(claim=row, verdict=VerdictRow(), experiments=(f"x-{dataset}",), datasets=(dataset,))

    a, b, c = claim("a", "vit", "mnist"), claim("b", "vit", "cifar10"), claim("c", "mixer", "cifar10")
    order, lone = claim("order", "vit", "mnist", "order"), claim("lone", "vit", "mnist", metric="loss")
    twice, foreign = claim("twice", "vit", "mnist"), claim("foreign", "resnet", "mnist")
    (table,), rest = lay_out([lone, a, order, b, twice, c, foreign], titles, arms)
    assert (table.metric, table.columns) == ("Test accuracy, last epoch", ("MNIST", "CIFAR-10"))
    assert table.rows == (("VIT", (Cell(a), Cell(b))), ("MIXER", (None, Cell(c))))
    assert [row.claim.id for row in rest] == ["lone", "order", "twice", "foreign"]
    for row in (order, gain := claim("gain", "vit", "cifar10", "gap", metric="loss")):
        row.claim.baseline_arm = "mixer"
    more = claim("more", "vit", "mnist", "ratio", metric="loss")
    more.claim.baseline_arm = "mixer"
    (table, pairs), rest = lay_out([a, order, b, gain, c, more], titles, arms)
    assert table.rows[0] == ("VIT", (Cell(a, [("MIXER", order)]), Cell(b))), "a gain stands beside the model's number"
    assert pairs.rows == (("VIT against MIXER", (Cell(None, [("", gain)]), Cell(None, [("", more)]))),)
    assert (pairs.is_of_pairs, pairs.columns, rest) == (True, ("CIFAR-10", "MNIST"), [])
