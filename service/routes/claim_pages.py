"""Pages about verdicts: the front page, papers, claims, method, and two models compared."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator

from service.database import queries
from service.database.comparing import first_of_each_dataset, list_behind
from service.database.queries import lacking_test_images, list_deviations, list_mentioned
from service.dependencies import Compare, ResultsSession, app_state_of, render_page, site_of
from service.http.errors import declared
from service.pages import charts, citing, concluding, models, opening, plots, printed, repository, searching, wording
from stages.results import (
    ClaimFilter,
    JudgedClaim,
    Outlook,
    Question,
    find_judged,
    list_families,
    list_judged,
    read_rules,
    rule_after,
    tally_rows,
    versus,
)

router = APIRouter(include_in_schema=False)
Word = Annotated[str | None, AfterValidator(lambda word: word and wording.known_word(word)), Query(max_length=64)]
CLAIMS_PER_PAGE = 100
MAX_PLOTTED = 10  # numbers at the top of a paper's page
GROUNDS = ("results", "finding", "params", "none")  # order of the list of all claims
COMPUTED = "Computed without training"


def show_papers(request: Request, session: ResultsSession, compare: Compare) -> Response:
    """Show the front page: results at a glance, an answer to each paper's question, and the data sets."""
    papers, datasets = queries.list_papers(session), queries.list_datasets(session)
    judged, comparisons = list_judged(session, ClaimFilter()), compare(Question())
    tallies = tally_rows(session, [(row.claim, row.verdict) for row in judged])
    by_paper = {paper.name: [row for row in judged if row.claim.paper == paper.name] for paper in papers}
    asked = {
        paper.name: [
            row for row in by_paper[paper.name] if any(fnmatchcase(row.claim.id, one) for one in paper.answered_by)
        ]
        for paper in papers
    }
    drawn = {name: [row for row in rows if charts.share_of(row)] for name, rows in by_paper.items()}
    names = wording.name_claims(session, [row for rows in drawn.values() for row in rows])
    by_experiment = {item.experiment: item for item in comparisons}
    marks = Counter(row.verdict.mark for row in judged if row.verdict.registration)
    return render_page(
        request,
        "front.html",
        papers=papers,
        strips={name: charts.draw_strip(rows, names) for name, rows in drawn.items()},
        counts={tally.paper: tally for tally in tallies},
        cards=opening.cards_of(tallies),
        answers={name: opening.answer(rows, by_experiment) for name, rows in asked.items()},
        exploratory=sum(number for mark, number in marks.items() if mark != "confirmatory"),
        planned=opening.prospects(opening.add(Outlook, [tally.outlook for tally in tallies])),
        pair=opening.first_pair(asked.values(), comparisons),
        titles=opening.list_titles(comparisons),
        datasets=datasets,
        overview=first_of_each_dataset([item for item in comparisons if item.provenance]),
    )


@router.get("/papers/{name}", responses=declared(404, 422))
def show_paper(
    name: str,
    request: Request,
    session: ResultsSession,
    compare: Compare,
    verdict: Word = None,
) -> Response:
    """Show a paper's claims with their verdicts, grouped by the paper's tables and sections."""
    paper = queries.find_paper(session, name)
    every = list_judged(session, ClaimFilter(paper=name))
    counts = next(one for one in tally_rows(session, [(row.claim, row.verdict) for row in every]) if one.paper == name)
    judged = [row for row in every if wording.has_word(row, verdict)]
    parts = printed.take_apart(judged)
    groups = {**parts.results, COMPUTED: parts.computed, "counted": parts.counted, "settings": parts.settings}
    looks = models.first_looks(name, judged, compare, queries.list_datasets(session))
    titles, arms = wording.titles_of(session)
    deviations = list_deviations(session, name)
    names = {row.claim.id: wording.name_claim(row, titles, arms) for row in judged}
    drawn, state = charts.draw_lines(judged, names), app_state_of(request)
    return render_page(
        request,
        "paper.html",
        paper=paper,
        tally=counts,
        before_use=[*paper.before_use, *filter(None, [opening.describe_open(counts)])],
        words=Counter(wording.word_of(row) for row in every),
        prospects=opening.prospects(counts.outlook),
        discoveries=opening.describe_discoveries(counts),
        grounds=opening.by_ground([counts]),
        families=list_families(session, paper=name),
        parts_of=parts,
        groups={place: printed.lay_out(rows, titles, arms) for place, rows in parts.results.items()},
        summaries={place: wording.describe_verdicts(rows, looks) for place, rows in groups.items()},
        counts={
            "counted": wording.count_verdicts(parts.counted),
            "settings": wording.count_verdicts(parts.settings),
        },
        computed=COMPUTED,
        errors={place: wording.shared_errors(rows, counts) for place, rows in groups.items()},
        names=names,
        error_counts=printed.count_errors(every),
        looks=looks,
        chances={place: models.list_chances(rows, looks) for place, rows in groups.items()},
        shortened=models.describe_looks(looks, judged, titles),
        deviations=deviations if verdict is None else [],
        explained=opening.first_places(session, deviations, groups),
        tests=opening.describe_tests(deviations, arms, compare),
        answer=opening.answer(
            [row for row in every if any(fnmatchcase(row.claim.id, one) for one in paper.answered_by)],
            {item.experiment: item for item in compare(Question(paper=name))},
        ),
        drawn=drawn[:MAX_PLOTTED],
        counts_drawn=len(drawn),
        bibtex=citing.bibtex_paper(
            paper, counts, state.settings.address, queries.content_digest(session), state.project
        ),
        linked_data=citing.article_of(paper, f"{site_of(request)}/papers/{name}"),
        verdict=verdict,
    )


@router.get("/versus", responses=declared(404, 422))
def show_versus(
    request: Request,
    session: ResultsSession,
    compare: Compare,
    dataset: str | None = None,
    a: Annotated[str, Query(max_length=120)] = "",
    b: Annotated[str, Query(max_length=120)] = "",
) -> Response:
    """Show whether one model beats another on a data set; without two models, show the form alone."""
    chosen = queries.find_dataset(session, dataset) if dataset is not None else None
    found = versus(session, chosen, a.strip(), b.strip()) if chosen and a.strip() and b.strip() else None
    claims = [find_judged(session, claim) for claim in found.claims] if found else []
    return render_page(
        request,
        "versus.html",
        found=found,
        sentence=opening.answer_versus(found) if found else "",
        images=opening.describe_images(found) if found else "",
        sides=opening.name_sides(found) if found else (),
        plot=opening.draw_gain(found) if found else None,
        facts=opening.facts_of(found) if found else [],
        claims=claims,
        names=wording.name_claims(session, claims),
        pair=opening.Pair(a=a, b=b, dataset=dataset),
        titles=opening.list_titles(compare(Question(dataset=dataset))),
        datasets=queries.list_datasets(session),
    )


@router.get("/claims", responses=declared(422))
def search_claims(
    request: Request,
    session: ResultsSession,
    compare: Compare,
    q: Annotated[str, Query(max_length=100)] = "",
    verdict: Word = None,
    page: Annotated[int, Query(ge=1, le=1000)] = 1,
    sort: searching.ClaimColumn | None = None,
    reverse: bool = False,
) -> Response:
    """Show the claims that match `q`, grouped by paper, best first; without `q`, all claims, decided ones first.

    If sorted by a column, they are in one table.
    """
    everything = list_judged(session, ClaimFilter())
    judged = [row for row in everything if wording.has_word(row, verdict)]
    titles, arms = wording.titles_of(session)
    names = {row.claim.id: wording.name_claim(row, titles, arms) for row in everything}
    papers = {paper.name: paper for paper in queries.list_papers(session)}
    if q.strip():
        known, content = app_state_of(request).indexes, request.scope["state"]["content"]
        if content not in known:
            index = searching.ClaimIndex(
                everything, names, arms, {name: paper.title for name, paper in papers.items()}, titles
            )
            known.clear()  # drop the index of a replaced database
            known[content] = index
        found = known[content].find(q, judged)
    else:
        judged.sort(key=lambda row: GROUNDS.index(row.verdict.basis) if wording.is_decided(row.verdict.status) else 9)
        found = searching.Found(judged, True, [], [])
    groups: dict[str, list[JudgedClaim]] = {}
    listed = searching.sort_claims(found.claims, sort, names, is_reversed=reverse) if sort else found.claims
    for row in listed[CLAIMS_PER_PAGE * (page - 1) : CLAIMS_PER_PAGE * page]:
        groups.setdefault("" if sort else row.claim.paper, []).append(row)
    looks = {
        claim: look
        for paper, rows in (groups if q.strip() and not sort else {}).items()
        for claim, look in models.first_looks(paper, rows, compare, queries.list_datasets(session)).items()
    }
    return render_page(
        request,
        "claims.html",
        q=q,
        verdict=verdict,
        found=found,
        groups=groups,
        papers=papers,
        names=names,
        looks=looks,
        shortened=models.describe_looks(looks, found.claims, titles),
        words=Counter(wording.word_of(row) for row in everything),
        sort=sort,
        reverse=reverse,
        page=page,
        pages=-(-len(found.claims) // CLAIMS_PER_PAGE),
    )


@router.get("/method")
def show_method(request: Request, session: ResultsSession) -> Response:
    """Show how a verdict is reached and what its words mean."""
    # Claims whose rule was written after some of their results had been seen.
    later = [row for row in list_judged(session, ClaimFilter()) if row.verdict.seen_before_rule is not None]
    every = [experiment.name for experiment in queries.list_experiments(session, paper=None, dataset=None)]
    names, parts = wording.name_claims(session, later), app_state_of(request)
    text = concluding.describe_method(
        read_rules(session),
        concluding.describe_whole(lacking_test_images(session, every), wording.titles_of(session)[0]),
        (
            (after, f"/claims/{quote(row.claim.id)}", names[row.claim.id])
            for row in later
            if (after := rule_after(row.claim, row.verdict))
        ),
    )
    shown, terms = frozenset(parts.files), (concluding.DOCS / "glossary.md").read_text(encoding="utf-8")
    method = repository.render("docs/verdicts.md", text, shown, parts.settings.repository)
    return render_page(
        request,
        "method.html",
        method=method,
        text=concluding.add_badges(method.body),
        terms=repository.render("docs/glossary.md", terms, shown, parts.settings.repository),
        papers=queries.list_papers(session),
    )


@router.get("/claims/{claim_id:name}/badge.svg", responses=declared(404))
def show_claim_badge(claim_id: str, session: ResultsSession) -> Response:
    """Return the verdict as a badge for a README."""
    record = find_judged(session, claim_id)
    return Response(citing.claim_badge(record, wording.side_of(record.verdict.status)), media_type="image/svg+xml")


@router.get("/claims/{claim_id:name}", responses=declared(404))
def show_claim(
    claim_id: str,
    request: Request,
    session: ResultsSession,
    compare: Compare,
    cited: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """Show one claim: its verdict, the interval against the margin, deviations, runs and cost.

    `cited` is the start of the verdict's digest in a citation; the page says whether the verdict is still the same.
    """
    record = find_judged(session, claim_id)
    experiments = [queries.find_experiment(session, name) for name in record.experiments]
    names = wording.name_claims(session, [record])
    arms = [arm for item in experiments for arm in item.arms]
    titles = {arm.name: arm.title for arm in arms}
    paper, address = queries.find_paper(session, record.claim.paper), str(request.url.replace(query=""))
    state = app_state_of(request)
    observed = list_behind(session, record, arms, compare)
    related = list_mentioned(session, record.claim)
    of_paper = list_judged(session, ClaimFilter(paper=paper.name)) if record.same_error else []
    alike = [row for row in of_paper if row.claim.id in record.same_error]
    lacking = lacking_test_images(session, record.experiments if record.verdict.basis == "params" else ())
    trend, inks = concluding.find_trend(record, arms), plots.inks_of(session)
    return render_page(
        request,
        "claim.html",
        record=record,
        name=names[claim_id],
        paper=paper,
        conclusion=concluding.conclude(record, titles, trend),
        reading=concluding.describe_other_reading(trend) if trend else "",
        found=concluding.range_of(trend, record.claim) if trend else wording.ours_in_words(record),
        trend_chart=charts.draw_trend(trend, titles, record.claim) if trend else None,
        qualifications=concluding.qualify(record),
        changes=concluding.sort_changes(record.changes),
        planned=concluding.plan_in_words(record.claim, record.verdict),
        departing=sum(deviation.departs for deviation in record.deviations),
        look=models.first_looks(paper.name, [record], compare, queries.list_datasets(session)).get(claim_id),
        timed=models.timed_here(record, titles, compare),
        counted=concluding.describe_counted(record, lacking),
        related=related,
        names=wording.name_claims(session, [*related, *alike]),
        tried=citing.times_reproduced(record),
        tests=opening.describe_tests(record.deviations, wording.titles_of(session)[1], compare),
        cited=cited,
        bibtex=citing.bibtex(record, names[claim_id], paper, state.settings.address, state.project),
        linked_data=citing.json_ld(record, names[claim_id], paper, address, wording.side_of(record.verdict.status)),
        plot=charts.draw_claim(record, names[claim_id]),
        strip=concluding.strip_of(record),
        posterior=concluding.describe_chance_of_truth(record),
        pairs=charts.mark_pairs(record.pairs, titles, record.claim),
        labs=charts.mark_labs(record),
        observed_chart=charts.draw_blocks(observed, titles, inks),
        arms_charts=charts.draw_arms(record, titles, inks),
        shown=printed.list_shown(session, record, compare),
        titles=titles,
        experiments=experiments,
    )


@router.get("/papers/{name}/badge.svg", responses=declared(404))
def show_paper_badge(name: str, session: ResultsSession) -> Response:
    """Return a badge for a README that counts a paper's decided claims."""
    (counts,) = queries.tally_claims(session, ClaimFilter(paper=name))
    return Response(citing.paper_badge(counts), media_type="image/svg+xml")
