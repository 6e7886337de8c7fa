"""The `claimcheck` command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stages import stage
from stages.claims import ClaimsError
from stages.commands import claims, command, evidence, repro, status, trainings
from stages.commands.command import USAGE, Answer, Argument, Command, Parser, UsageError, arg, print_answer
from stages.datasets.packed import PackedDataError
from stages.faults import FAULTS, INTERRUPTED, STOPPED, Mistake, UnknownName, describe_fault, mend_streams
from stages.params.schema import nearest
from stages.reported import TableError
from stages.reported.command import COMMANDS as LIBRARY
from stages.reported.command import LibraryCommand
from stages.scheduling.groups import default_engine
from stages.upkeep.proving import STEPS

CODES = {0: "done", 1: "failed; one line on stderr explains why", USAGE: "mistyped command, option or name"}


def experiments(nargs: str = "*") -> Argument:
    return arg("experiments", nargs=nargs, metavar="experiment", help="name of a file in params/", names="experiments")


def device_option(words: str) -> Argument:
    default = os.environ.get("CLAIMCHECK_DEVICE", "auto")
    return arg("--device", default=default, help=f"{words} (default: CLAIMCHECK_DEVICE, else auto)")


def of_library(one: LibraryCommand) -> Command:
    return Command(
        does=one.does,
        example=one.example,
        takes=lambda: [arg(*flags, **given) for flags, given in one.takes],
        run=lambda options: Answer(**one.run(options)._asdict()),
        codes=dict(one.codes),
        document=one.document,
    )


COMMANDS = {
    "init": Command(
        does="Start a project of your own in this folder, with an example that trains, records and judges.",
        example="claimcheck init",
        run=repro.start,
        document="`files`, names of what was written",
    ),
    "repro": Command(
        does="Run the pipeline, or only what the named experiments need, and show progress.",
        example="claimcheck repro ninformer-mnist",
        takes=lambda: [experiments()],
        run=repro.repro,
        codes={1: "a stage failed (its output is shown); otherwise dvc's exit code"},
    ),
    "run": Command(
        does="Train all missing runs of the named experiments, longest first, here or on a cluster.",
        example="claimcheck run --all --engine ray",
        takes=lambda: [
            experiments(),
            arg("--all", action="store_true", help="all experiments in params.yaml"),
            arg("--engine", default=default_engine(), help="local or ray (default: CLAIMCHECK_ENGINE, else local)"),
            device_option("auto, cpu, cuda, or one per slot: cuda:0,cuda:1"),
            arg("--profile", help="profile to set in params.yaml first, as `claimcheck profile` does"),
        ],
        run=trainings.run,
        codes={1: "a training failed or was stopped; the others are in the store"},
        document="`missing`, `trained`: numbers of runs",
    ),
    "plan": Command(
        does="Estimate what the trainings cost on each device and under each profile, and list which are done.",
        example="claimcheck plan ninformer-mnist",
        takes=lambda: [
            experiments(),
            arg(
                "--measure",
                action="store_true",
                help="train a few steps of each kind of missing network and estimate the total time here",
            ),
            device_option("device for --measure, as for `run`"),
        ],
        run=trainings.plan,
        document=(
            "`profile`; `experiments` and `profiles`, lists of `runs`, `epochs`, `steps`, `flops`, and by device "
            "`hours`, `usd`, `limit_hours`; an experiment has `in_store` (null: its data aren't packed) and "
            "`cut`, a sum over all papers has `paper` null; `devices`, each with the `source` of its speed; "
            "`goals`; `as_printed`, sentences on what the hours are made of; `measured`, with `--measure`, else "
            "null"
        ),
    ),
    "next": Command(
        does="Suggest the trainings that are expected to decide most claims within a budget.",
        example="claimcheck next --budget 2h --device cuda",
        takes=lambda: [
            experiments(),
            arg("--budget", type=trainings.seconds_of, required=True, help="device time: 90min, 2h, 1.5d"),
            arg("--device", default="cpu", help="device with a rate in params.yaml: cpu, cuda (default: %(default)s)"),
            arg("--run", action="store_true", help="train them, best first; needs profile paper"),
            arg("--engine", default=default_engine(), help="with --run: local or ray (default: %(default)s)"),
        ],
        run=trainings.next_trainings,
        document=(
            "`device`, `budget_seconds`, `seconds`, `usd`; `steps`, best first, each with `seconds`, `runs` and "
            "`claims` (`claim`, `look`, `planned`, `power`); `trained`, claims with a complete interim analysis; "
            "`left`; after `--run` `is_trained`"
        ),
    ),
    "profile": Command(
        does="Set the profile (the training budget) in params.yaml.",
        example="claimcheck profile quick",
        takes=lambda: [
            arg(
                "name",
                metavar="profile",
                help="smoke, quick, paper, or another profile in params.yaml",
                names="profiles",
            )
        ],
        run=trainings.set_profile,
        document="`profile`",
    ),
    "plugins": Command(
        does="List the models, optimisers, readers and other objects that installed packages offer by name.",
        example="claimcheck plugins",
        run=trainings.list_plugins,
        document="a list: `kind`, `name`, `distribution`, `version`, `address`, and `fault` of a malformed one",
    ),
    "status": Command(
        does="Count the claims by verdict, and show what trains now.",
        example="claimcheck status --watch",
        takes=lambda: [
            arg("papers", nargs="*", metavar="paper", help="only these papers", names="papers"),
            arg("--watch", action="store_true", help="show trainings live until Ctrl-C"),
            arg("--prometheus", type=Path, metavar="FILE", help="write metrics for node_exporter's textfile collector"),
        ],
        run=status.status,
        document=(
            "`papers`, a list: `paper`, `claims`, `by_word`, and the counts `decidable`, `in_favour`, "
            "`under_reading`, `against`, `open`, `waiting`, the same in `trained`, `computed` and `data`; claims "
            "`by_verdict`, `by_kind`, `by_basis`; `errors` at several places. `trainings`: `sessions` with "
            "`groups`, `rows` by `experiment` and `node`, `left_seconds`, `finished` runs, and what they "
            "`brought`, by claim"
        ),
    ),
    "show": Command(
        does="Show an experiment's complete params, or a claim with our results and its verdict.",
        example="claimcheck show dac.sgemm.gain",
        takes=lambda: [
            arg(
                "names",
                nargs="+",
                metavar="experiment|claim",
                help="a file in params/ or a row of data/claims.csv",
                names="shown",
            )
        ],
        run=claims.show,
        document=(
            "a list: `experiment`, `like`, `params`; or `claim`, `paper`, `place`, `kind`, `arm`, `baseline_arm`, "
            "`metric`, `statement`, `value`, `unit`, `qualifier`, `experiments`, `verdict` (`status`, "
            "`explanation`, `ours`, `low`, `high`, …), `labs`, `pooled`, `runs`, `deviations`"
        ),
    ),
    "history": Command(
        does="Show how claims, rules and judging code changed, and why.",
        example="claimcheck history 'dac.sgemm.*'",
        takes=lambda: [
            arg("claims", nargs="?", default="*", help="pattern of claim ids", names="claims"),
            arg("--why", type=str.strip, help="record what changed since the last line, with this reason"),
            arg(
                "--alters-nothing",
                action="store_true",
                help="with --why: the change affects no rule, metric, statement or verdict",
            ),
        ],
        run=claims.history,
        document=(
            "a list: `date`, `subject`, `claims`, `before`, `after`, `changed`, `after_evidence`, `alters`, "
            "`seen`, `why`; with `--why`: `path`, `changes`"
        ),
    ),
    "register": Command(
        does="Record claims, rules, margins and planned runs before training.",
        example='claimcheck register sgemm dac.sgemm.gain --why "Three more depths"',
        takes=lambda: [
            arg("name", nargs="?", help="name of the new file in data/registrations/"),
            arg("claims", nargs="*", metavar="claim", help="claim id or pattern", names="claims"),
            arg("--why", type=str.strip, help="reason, as a sentence"),
            arg(
                "--runs",
                nargs="+",
                metavar="PATTERN",
                help="runs as <experiment>.<arm>.<replicate> (default: all that the claims need)",
            ),
            arg("--check", action="store_true", help="instead, check whether the registrations still match"),
        ],
        run=claims.register,
        codes={1: "nothing was written, or a registration no longer matches (--check)"},
        document=(
            "`path`, and the numbers `claims`, `runs`, `trained`; with `--check` a list: `name`, `commit`, "
            "`claims`, `faults`"
        ),
    ),
    **{name: of_library(one) for name, one in LIBRARY.items()},
    "why": Command(
        does="Explain why a run was or would be trained: its key, what changed, which claims need it.",
        example="claimcheck why dac-sgemm.mlp-25x5.0",
        takes=lambda: [arg("run", help="<experiment>.<arm>.<replicate>, or the start of a run key")],
        run=status.why,
        document=(
            "`run`, `run_key`, `profile`, `model`, `replicate`, `reason`; `outcome` in the store, `published` "
            "lines; `changed` parts of the key, `against` which run; `equivalences`, `claims` with their `look`, "
            "`attempts`"
        ),
    ),
    "verify": Command(
        does="Recompute the digests and metrics behind the served models, and list what no longer matches.",
        example="claimcheck verify",
        takes=lambda: [
            arg("checkpoints", nargs="*", metavar="checkpoint", help="list every link of these checkpoints"),
            arg("--all", action="store_true", help="list every link of every checkpoint"),
            arg("--weights", action="store_true", help="predict whole test sets with all weights (takes minutes)"),
            arg("--evidence", action="store_true", help="also check every line of published evidence"),
            arg(
                "--equivalences",
                action="store_true",
                help="train one path of each equivalence again with both versions (takes minutes)",
            ),
        ],
        run=evidence.verify,
        codes={1: "a link is broken or couldn't be checked"},
        document=(
            "`record`, a link; `equivalences`, links (none without `--equivalences`); `checkpoints`, each with "
            "`broken` (the first link, or null) and `links` of `name`, `status`, `detail`; `evidence`, the same of "
            "every line with `--evidence`; `totals` by status"
        ),
    ),
    "audit": Command(
        does="Compare the published record with its git history, and print one digest for all of it.",
        example="claimcheck audit",
        takes=lambda: [
            arg("--retract", type=str.strip, metavar="WHY", help="reason for everything that is now missing")
        ],
        run=evidence.audit,
        codes={1: "something that was committed is missing without a retraction"},
        document="numbers of `commits` and `files`; `missing`, what lacks a retraction; `root`, the digest",
    ),
    "sample": Command(
        does="Write a test image to a file, to try a model on.",
        example="claimcheck sample mnist --index 7",
        takes=lambda: [
            arg("dataset", help="data set of images, packed or in data/samples"),
            arg("--index", type=int, default=0, help="position in the test set (default: %(default)s)"),
            arg("--output", type=Path, help="file to write (default: <dataset>-<index>.png)"),
        ],
        run=evidence.sample,
        document="`path`, `dataset`, `index`, `provenance`, `class`",
    ),
    "publish": Command(
        does="Turn results on real data into evidence to commit.",
        example="claimcheck publish ninformer-mnist",
        takes=lambda: [experiments("+")],
        run=evidence.publish,
        document="a list: `path`, `lines`, `new`",
    ),
    "contribute": Command(
        does="Pack results for another clone of the project, which adds them under your lab's name.",
        example="claimcheck contribute ninformer-mnist --lab uni-oslo --sign ~/.ssh/id_ed25519",
        takes=lambda: [
            experiments(),
            arg("--lab", required=True, help="your lab's name in small letters, digits and hyphens"),
            arg("-o", "--output", type=Path, metavar="FILE", help="file to write (default: <lab>.zip)"),
            arg("--sign", type=Path, metavar="KEY", help="SSH key that signs it"),
            arg("--weights", action="store_true", help="deposit the trained weights, too"),
            arg("--states", type=Path, metavar="FOLDER", help="deposit states kept by CLAIMCHECK_KEEP_STATES=FOLDER"),
            arg("--seeds", action="store_true", help="only list the seeds with which your lab adds replicates"),
        ],
        run=evidence.contribute,
        document="`path`, `lines`, `bytes`; with `--seeds` seeds by experiment",
    ),
    "accept": Command(
        does="Check another lab's contribution and add it to the evidence, or refuse it with the reason.",
        example="claimcheck accept uni-oslo.zip --from uni-oslo --retrain 3",
        takes=lambda: [
            arg("file", type=Path, help="file written by claimcheck contribute"),
            arg("--from", dest="lab", required=True, metavar="LAB", help="lab that you got it from"),
            arg("--key", type=Path, metavar="FILE", help="its public SSH key, needed once"),
            arg("--retrain", type=int, default=0, metavar="N", help="train N random epochs of it again (default: 0)"),
            device_option("device for --retrain"),
        ],
        run=evidence.accept,
        codes={1: "refused; nothing was added"},
        document="`path`, `lines`, `new`, `checked` (as `evidence` of verify), `note`",
    ),
    "release": Command(
        does="Copy published models to data/models/, rounded to float16.",
        example="claimcheck release ninformer-mnist ninformer",
        takes=lambda: [
            arg("experiment", help="name of a file in params/", names="experiments"),
            arg("arms", nargs="+", metavar="arm", help="model of the experiment with published results"),
        ],
        run=evidence.release,
        document="a list: `path`, `bytes`",
    ),
    "export": Command(
        does="Write results or released models for other tools: RO-Crate, Every Eval Ever, Hugging Face, Trackio.",
        example="claimcheck export huggingface ../models",
        takes=lambda: [
            arg(
                "format",
                metavar="format",
                choices=("crate", "every-eval-ever", "huggingface", "trackio"),
                help="crate: everything that ran, with inputs, numbers and verdicts (Process Run RO-Crate); "
                "every-eval-ever: a record of scores per model; huggingface: a repository per released model, with its "
                "card and .eval_results; trackio: a logbook of verdicts and curves",
            ),
            arg("folder", type=Path, help="new folder"),
            experiments(),
        ],
        run=evidence.export,
        document="`folder`, `notes`, and numbers of what was written, such as `models`, `runs`, `verdicts`",
    ),
    "equivalent": Command(
        does="Show that code changes since a revision change no number, by training with both versions.",
        example="claimcheck equivalent HEAD~1",
        takes=lambda: [
            arg("revision", help="revision that made the evidence, or that an earlier line leads to"),
            arg("--steps", type=int, default=STEPS, help="steps for each path (default: %(default)s)"),
            arg("--again", action="store_true", help="compare again what existing lines cover; write nothing"),
            arg("--plain", action="store_true", help="without C++, for a change that removes a fast path"),
        ],
        run=evidence.equivalent,
        document="`compared`, `left_out`, and `path` of the line, null if none was written",
    ),
    "du": Command(
        does="Show disk usage of data and trainings.",
        example="claimcheck du",
        run=evidence.usage,
        document="`bytes` by place",
    ),
    "gc": Command(
        does="Remove leftovers of killed trainings, never an outcome.",
        example="claimcheck gc",
        run=evidence.clean_up,
        document="`removed`, paths",
    ),
    "stage": Command(
        does="Run a stage of a project's dvc.yaml.",
        example="claimcheck stage preprocess mnist",
        takes=lambda: [
            arg("verb", help="fetch, train, ..."),
            arg("arguments", nargs="...", help="its data set or experiment, and options"),
        ],
        run=lambda options: Answer(document=None, code=stage.run([options.verb, *options.arguments])),
    ),
    "completion": Command(
        does="Print a shell script that completes commands, options and names.",
        example='eval "$(claimcheck completion bash)"',
        takes=lambda: [arg("shell", choices=command.SHELLS, metavar="shell", help=" or ".join(command.SHELLS))],
        run=lambda options: command.script(build_parser()[0], options.shell),
    ),
}


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and that of each command."""
    parser = Parser(
        prog="claimcheck",
        description="Check the numbers that papers print. Run it in the root of a clone.",
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
        for flags, kind, given in one.takes():
            action = parsers[name].add_argument(*flags, **given)
            if kind:
                action.complete = dict.fromkeys(command.SHELLS, f"_claimcheck_{kind}")  # type: ignore[attr-defined]
        if one.document:
            parsers[name].add_argument("--json", action="store_true", help="print one JSON document")
    return parser, parsers


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The words of the command line."""
    parser, parsers = build_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        parsers[options.command].refuse_rest(rest)
    return options


def main(arguments: list[str] | None = None) -> int:
    mend_streams()
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m stages.…` has it: a user's own models may lie there
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
    except BrokenPipeError:  # `claimcheck plan | head`: the reader has seen enough
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
    except (Mistake, ClaimsError, PackedDataError, TableError) as error:
        mistake = str(error)
    print(f"claimcheck {options.command}: {mistake}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
