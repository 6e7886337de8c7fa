"""Captions and units of the numbers that findings compute, whose names are those of the code: `captions.csv`."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.pages.formats import flops, memory, plain

FILE = Path(__file__).with_name("captions.csv")
_UNITS: Mapping[str, Callable[[float], str]] = {
    "": plain,
    "FLOP": flops,
    "bytes": memory,
    "percent": lambda number: f"{plain(number)} %",
    "share": lambda number: f"{plain(100 * number)} %",
}
_DATA = {
    "c10": "CIFAR-10",
    "c100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "tiny_imagenet": "Tiny ImageNet, 32 px",
    "tiny_imagenet_64": "Tiny ImageNet, 64 px",
}
_NETS = {"vit": "ViT", "mixer": "MLP-Mixer", "20_16": "VGG 20/16", "14_32": "VGG 14/32"}
_WORDS = {
    "aether": "AetherGPT",
    "gpt2": "GPT-2",
    "linear_relu": "Linear with ReLU",
    "yat": "a Yat layer",
    "differences": "from differences",
    "one_product": "with one product",
    "two_products": "with two products",
    "B": "the batch",
    "d": "the inputs",
    "n": "the units",
    "kronecker": "read as a Kronecker product",
    "per_sample": "read as one number a sample",
    "estimate": "the estimate",
    "variance": "the variance",
    "sigma": "σ",
    "tau": "τ",
}


@dataclass(frozen=True)
class Caption:
    """`pattern` of a number's whole name, its `unit`, and a `text` with the pattern's groups in words; of one paper, or
    of all.
    """

    paper: str | None
    pattern: re.Pattern[str]
    unit: str
    text: str


@cache
def captions() -> tuple[Caption, ...]:
    """The file's rows: DATA and NET in a name stand for a data set and a network, `dac:` before it for one paper."""
    sets = {"DATA": "|".join(_DATA), "NET": "|".join(_NETS)}
    with FILE.open(newline="", encoding="utf-8") as lines:
        rows = [(*row["name"].rpartition(":"), row["unit"], row["caption"]) for row in csv.DictReader(lines)]
    return tuple(
        Caption(paper or None, re.compile(re.sub("DATA|NET", lambda found: sets[found[0]], name)), unit, text)
        for paper, _, name, unit, text in rows
    )


def find_caption(paper: str, name: str) -> tuple[str, Callable[[float], str]] | None:
    """The caption of a number that a finding of the paper has under this name, and its writer; None if it has none."""
    for row in captions():
        if row.paper in (None, paper) and (found := row.pattern.fullmatch(name)):
            groups = [(_DATA | _NETS | _WORDS).get(group, group) for group in found.groups()]
            return row.text.format(*groups, name=name), _writer(row.unit)
    return None


def _writer(unit: str) -> Callable[[float], str]:
    return _UNITS.get(unit, lambda number: f"{plain(number)} {unit}")


def caption_all(computed: Mapping[str, float], paper: str) -> list[tuple[str, str]]:
    """What a finding computed as rows of a table; a name without a caption stands as it is, without underscores."""
    rows = []
    for name, number in computed.items():
        text, write = find_caption(paper, name) or (name.replace("_", " "), plain)
        rows.append((text, write(number)))
    return rows
