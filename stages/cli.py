"""The `claimcheck` command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stages.claims import ClaimsError
from stages.commands import claims, command, evidence, proposal, repro, status, trainings, why
from stages.commands.command import USAGE, Command, Parser, UsageError, names, print_answer
from stages.datasets.packed import PackedDataError
from stages.faults import FAULTS, INTERRUPTED, STOPPED, Mistake, describe_fault, mend_streams
from stages.params.schema import nearest
from stages.proving.show import STEPS
from stages.results import UnknownName
from stages.scheduling.engine.choice import default_engine

CODES = {0: "done", 1: "it couldn't be done; one line on stderr says why", USAGE: "a word of the command is mistyped"}


def add_experiments(parser: argparse.ArgumentParser, nargs: str = "*") -> None:
    taken = parser.add_argument("experiments", nargs=nargs, metavar="experiment", help="a file of params/")
    names(taken, "experiments")


def add_run(parser: argparse.ArgumentParser) -> None:
    add_experiments(parser)
    trainings.add_run(parser)


def add_plan(parser: argparse.ArgumentParser) -> None:
    add_experiments(parser)
    trainings.add_plan(parser)


def add_next(parser: argparse.ArgumentParser) -> None:
    add_experiments(parser)
    parser.add_argument("--budget", type=proposal.seconds_of, required=True, help="device time: 90min, 2h, 1.5d")
    parser.add_argument("--device", default="cpu", help="a rate of params.yaml: cpu, cuda (default: %(default)s)")
    parser.add_argument("--run", action="store_true", help="train them, best first; needs the profile paper")
    parser.add_argument("--engine", default=default_engine(), help="with --run: local or ray (default: %(default)s)")


def add_why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="<experiment>.<arm>.<replicate>, or the beginning of a run key")


def add_profile(parser: argparse.ArgumentParser) -> None:
    taken = parser.add_argument("name", metavar="profile", help="smoke, quick, paper, or another of params.yaml")
    names(taken, "profiles")


def add_shown(parser: argparse.ArgumentParser) -> None:
    taken = parser.add_argument(
        "names", nargs="+", metavar="experiment|claim", help="a file of params/, a row of data/claims.csv"
    )
    names(taken, "shown")


def add_papers(parser: argparse.ArgumentParser) -> None:
    names(parser.add_argument("papers", nargs="*", metavar="paper", help="only these"), "papers")
    parser.add_argument("--watch", action="store_true", help="the trainings, live until Ctrl-C on a terminal")
    parser.add_argument("--prometheus", type=Path, metavar="FILE", help="write metrics for node_exporter's textfiles")


def add_register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of the new file in data/registrations/")
    names(parser.add_argument("claims", nargs="*", metavar="claim", help="a claim, or a pattern of ids"), "claims")
    parser.add_argument("--why", type=str.strip, help="the reason, as a sentence")
    parser.add_argument(
        "--runs", nargs="+", metavar="PATTERN", help="of <experiment>.<arm>.<replicate> (default: all that they need)"
    )
    parser.add_argument("--check", action="store_true", help="instead: do the registrations still fit?")


def add_history(parser: argparse.ArgumentParser) -> None:
    names(parser.add_argument("claims", nargs="?", default="*", help="pattern of claim ids"), "claims")
    parser.add_argument("--why", type=str.strip, help="write down, with this reason, what changed since the last line")
    parser.add_argument(
        "--alters-nothing",
        action="store_true",
        help="with --why: changed code touched no rule, metric, statement or verdict",
    )


def add_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", help="a data set of images that is packed here")
    parser.add_argument("--index", type=int, default=0, help="of the image in the test set (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="file to write (default: <dataset>-<index>.png)")


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="*", metavar="checkpoint", help="list every link of these")
    parser.add_argument("--all", action="store_true", help="list every link of every checkpoint")
    parser.add_argument("--weights", action="store_true", help="predict whole test sets with all weights; minutes")
    parser.add_argument(
        "--equivalences", action="store_true", help="train a path of each equivalence again, with both codes; minutes"
    )


def add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--retract", type=str.strip, metavar="WHY", help="give this reason for everything that is missing now"
    )


def add_release(parser: argparse.ArgumentParser) -> None:
    names(parser.add_argument("experiment", help="a file of params/"), "experiments")
    parser.add_argument("arms", nargs="+", metavar="arm", help="a model of it, with published results")


def add_crate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a folder that isn't there yet")


def add_equivalent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("revision", help="whose code made the evidence, or that an earlier line leads to")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each path (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="compare what lines cover already; write nothing")
    parser.add_argument("--plain", action="store_true", help="without C++: for a change that takes out a fast path")


def add_shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=command.SHELLS, metavar="shell", help=" or ".join(command.SHELLS))


COMMANDS = {
    "repro": Command(
        does="Run the pipeline, or what the named experiments need of it, and tell how far it is.",
        example="claimcheck repro ninformer-mnist",
        add_to=add_experiments,
        run=repro.repro,
        codes={1: "a stage failed, whose output is shown; dvc's own code where it is another"},
        has_json=False,
    ),
    "run": Command(
        does="Train what the named experiments lack, all at once and the longest first, here or on a cluster.",
        example="claimcheck run --all --engine ray",
        add_to=add_run,
        run=trainings.run,
        codes={1: "a training failed or was stopped; the others are in the store"},
    ),
    "plan": Command(
        does="Say what the trainings will cost, on each device and under each profile, and which are done.",
        example="claimcheck plan ninformer-mnist",
        add_to=add_plan,
        run=trainings.plan,
    ),
    "next": Command(
        does="Propose the trainings from which most decided claims can be expected within a budget.",
        example="claimcheck next --budget 2h --device cuda",
        add_to=add_next,
        run=proposal.next_trainings,
    ),
    "profile": Command(
        does="Set the profile in params.yaml: how much work is done.",
        example="claimcheck profile quick",
        add_to=add_profile,
        run=trainings.set_profile,
    ),
    "status": Command(
        does="Tell where things stand: how many claims have which verdict, and what trains now.",
        example="claimcheck status --watch",
        add_to=add_papers,
        run=status.status,
    ),
    "show": Command(
        does="Show an experiment's whole params, or a claim with what we have and the verdict.",
        example="claimcheck show dac.sgemm.gain",
        add_to=add_shown,
        run=claims.show,
    ),
    "history": Command(
        does="Tell how claims, rules and judging code changed, and why.",
        example="claimcheck history 'dac.sgemm.*'",
        add_to=add_history,
        run=claims.history,
    ),
    "register": Command(
        does="Write down claims, rules, margins and planned runs before the runs are trained.",
        example='claimcheck register sgemm dac.sgemm.gain --why "Three more depths"',
        add_to=add_register,
        run=claims.register,
        codes={1: "nothing was written, or with --check a registration no longer fits"},
    ),
    "why": Command(
        does="Say why a run was trained or would be: what its key holds, what changed, which claims want it.",
        example="claimcheck why dac-sgemm.mlp-25x5.0",
        add_to=add_why,
        run=why.why,
    ),
    "verify": Command(
        does="Recompute what served models rest on, from checkpoint to data, and list what is broken.",
        example="claimcheck verify",
        add_to=add_verify,
        run=evidence.verify,
        codes={1: "a link is broken, or it couldn't be checked"},
    ),
    "audit": Command(
        does="Compare the published record with every commit of it, and print one digest for the whole.",
        example="claimcheck audit",
        add_to=add_audit,
        run=evidence.audit,
        codes={1: "something that was committed is missing, and no retraction says why"},
    ),
    "sample": Command(
        does="Write a test image of a packed data set, to try a model on.",
        example="claimcheck sample mnist --index 7",
        add_to=add_sample,
        run=evidence.sample,
    ),
    "publish": Command(
        does="Turn results on real data into evidence to commit.",
        example="claimcheck publish ninformer-mnist",
        add_to=lambda parser: add_experiments(parser, "+"),
        run=evidence.publish,
    ),
    "release": Command(
        does="Put published models into data/models/, rounded to float16.",
        example="claimcheck release ninformer-mnist vit",
        add_to=add_release,
        run=evidence.release,
    ),
    "crate": Command(
        does="Write everything that ran, with its inputs, numbers and verdicts, as a Process Run RO-Crate.",
        example="claimcheck crate ../claimcheck-crate",
        add_to=add_crate,
        run=evidence.crate,
    ),
    "equivalent": Command(
        does="Show, by training with both, that code changed since a revision changes no number.",
        example="claimcheck equivalent HEAD~1",
        add_to=add_equivalent,
        run=evidence.equivalent,
    ),
    "du": Command(
        does="Tell what data and trainings take on disk.",
        example="claimcheck du",
        run=evidence.usage,
    ),
    "gc": Command(
        does="Remove what killed trainings left behind; no outcome goes.",
        example="claimcheck gc",
        run=evidence.clean_up,
    ),
    "completion": Command(
        does="Print a script by which a shell completes commands, options and names.",
        example='eval "$(claimcheck completion bash)"',
        add_to=add_shell,
        run=lambda options: command.script(build_parser()[0], options.shell),
        has_json=False,
    ),
}


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and that of each command."""
    parser = Parser(
        prog="claimcheck",
        description="Claimcheck tells whether the numbers that papers print hold: run it in the root of a clone.",
        example="claimcheck status",
        codes=CODES,
    )
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="command", required=True, parser_class=Parser
    )
    parsers = {}
    for name, one in COMMANDS.items():
        parsers[name] = commands.add_parser(
            name,
            prog=f"claimcheck {name}",
            help=one.does[0].lower() + one.does[1:].rstrip("."),
            description=one.does,
            example=one.example,
            codes=CODES | one.codes,
        )
        one.add_to(parsers[name])
        if one.has_json:
            parsers[name].add_argument("--json", action="store_true", help="print one JSON document")
    return parser, parsers


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The words of the command line.

    Raises:
        UsageError: one of them is mistyped.
    """
    parser, parsers = build_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        parsers[options.command].refuse_rest(rest)
    return options


def main(arguments: list[str] | None = None) -> int:
    mend_streams()
    try:
        options = parse(arguments)
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    mistake = ""
    try:
        answer = COMMANDS[options.command].run(options)
        print_answer(answer, as_json=getattr(options, "json", False))
        sys.stdout.flush()
        return answer.code
    except BrokenPipeError:  # `claimcheck plan | head`: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"claimcheck {options.command}: {STOPPED}", file=sys.stderr)
        return INTERRUPTED
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    except FAULTS as error:
        mistake = describe_fault(error)
    except UnknownName as error:
        mistake = f"no {error.kind} {error.name!r}{nearest(error.name, error.known)}"
    except (Mistake, ClaimsError, PackedDataError) as error:
        mistake = str(error)
    print(f"claimcheck {options.command}: {mistake}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
