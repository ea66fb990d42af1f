"""All that a view says, as lines for a snapshot."""

from collections.abc import Iterator

from brimful.report.chart import Chart, Matrix
from brimful.report.terminal import told_of
from brimful.report.views import Block, Fold, View


def told(view: View) -> list[str]:
    """Cards, what a terminal shows, and what charts say."""
    cards = [f"{each.name}: {each.value} ({each.detail})" for each in view.cards]
    blocks = tuple(block for section in view.sections for block in section.blocks)
    lines = [line.rstrip() for line in told_of(view).plain.splitlines()]
    return [view.status, *cards, *lines, *_pictures(blocks), view.footer]


def _pictures(blocks: tuple[Block, ...]) -> Iterator[str]:
    """Charts with all that is written in them, folded ones too."""
    for block in blocks:
        if isinstance(block, Fold):
            yield from _pictures(block.blocks)
        elif isinstance(block, Matrix):
            yield f"{block.key}: {block.title}. {block.about} {block.note}"
        elif isinstance(block, Chart):
            named = (*block.series, *block.levels, *block.uprights, *block.marks)
            names = "; ".join(each.name for each in named if each.name)
            yield f"{block.key}: {block.title}. {block.about} {block.note} {names}"
