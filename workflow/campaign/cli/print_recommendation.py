"""A recommendation on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from campaign import wording
from campaign.insight.recommend.document import Answer, Choice, RecommendationDocument

_WIDTH = 132  # where nobody looks at a terminal


def print_recommendation(document: RecommendationDocument, console: Console | None = None) -> None:
    """Every answer with what it rests on, then how far the models are to be believed."""
    out = console or Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    for objective in dict.fromkeys(answer.objective for answer in document.answers):
        answers = [answer for answer in document.answers if answer.objective == objective]
        out.print(_table(answers))
    if document.constraints:
        out.print(escape(f"Only what fulfils: {', '.join(document.constraints)}."))
    for model in document.models:
        out.print(escape(f"Model of {model.sentence}"))
    for sentence in document.basis:
        out.print(escape(sentence), style="dim")


def _table(answers: Sequence[Answer]) -> Table:
    table = Table(title=escape(f"{answers[0].objective}: {answers[0].meaning}"), title_justify="left", show_lines=True)
    for heading in ("For", "Build", "Gives", "Tied with", "Rests on"):
        table.add_column(heading, overflow="fold")
    for answer in answers:
        table.add_row(*(escape(text) for text in _row(answer)))
    return table


def _row(answer: Answer) -> tuple[str, ...]:
    beyond = answer.beyond
    further = (
        f"Beyond what was measured: {_built(beyond)}, {beyond.said}. Extrapolated: {beyond.extrapolated}"
        if beyond
        else ""
    )
    if answer.choice is None:
        return answer.about, "no answer", "\n".join([answer.sentences[0], *([further] if further else [])]), "", ""
    choice = answer.choice
    how = "measured" if choice.measured else "predicted, not measured"
    memory = "; whether the batch fits is not known" if choice.memory == "unknown" else ""
    said = f"{choice.said}, {how}{memory}"
    return (
        answer.about,
        _built(choice),
        f"{said}\n{further}" if further else said,
        answer.tied_words(),
        _evidence(choice),
    )


def _built(choice: Choice) -> str:
    return f"{choice.configuration} ({choice.words}), {choice.batches}"


def _evidence(choice: Choice) -> str:
    shown = "; ".join(
        f"{each.words} ({each.cell_id[:8]}, {wording.plural(each.runs, 'run')})" for each in choice.evidence
    )
    rest = choice.evidence_total - len(choice.evidence)
    return f"{shown}; {rest} more" if rest > 0 else shown
