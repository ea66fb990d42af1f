"""What comes of a budget and of sessions, in sentences."""

from collections.abc import Iterator, Mapping

from brimful.base.text import plural
from brimful.base.units import format_between, format_count, format_duration, format_money
from brimful.planning.budget import BudgetCheck, Offer, Sessions
from brimful.planning.plan import Verdict
from brimful.report.plan.table import INTERVAL
from brimful.report.table import Row, table_of
from brimful.report.views import Block, Paragraph

MAX_OTHERS = 5
"""Other devices that are named."""
VERDICTS: Mapping[Verdict, str] = {
    "fits": "is kept",
    "uncertain": "may or may not be kept",
    "does not fit": "is not kept",
}


def budget_blocks(check: BudgetCheck, tokens_per_step: int) -> Iterator[Block]:
    """Return whether one device keeps to the budget, by how much, and what would help."""
    budget, amount = check.budget, check.amount
    expected, low, high, limit = map(
        budget.format, (amount.value, amount.low, amount.high, budget.limit)
    )
    ratio = amount.value / budget.limit
    share = f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.0%} of"
    difference = f"{budget.format(abs(check.over))} {'over' if check.over > 0 else 'left'}"
    yield Paragraph(
        f"Budget {limit} {VERDICTS[check.verdict]}: {expected} expected, {low} to {high};"
        f" {difference}, {share} the budget."
    )
    if check.verdict == "fits":
        return
    fewer = "not even one surely keeps to it, as the start alone may take longer."
    if check.steps:
        fewer = (
            f"training.steps={check.steps} surely keeps to it,"
            f" {check.steps / check.total_steps:.1%} of {check.total_steps:,} steps,"
            f" {format_count(check.steps * tokens_per_step)} tokens."
        )
    yield Paragraph(f"Fewer steps: {fewer}", "advice")
    yield from _others(check)


def list_sentences(checks: Mapping[str, BudgetCheck]) -> list[str]:
    """Return how many of several devices keep to the budget, the cheapest and the quickest of them,
    or the one that comes nearest.
    """
    if not checks:
        return []
    keeping = [name for name, check in checks.items() if check.verdict == "fits"]
    devices = f"{plural(len(checks), 'device')} that can hold it"
    if keeping:
        kept = {name: checks[name] for name in keeping}
        limit = checks[keeping[0]].budget.format(checks[keeping[0]].budget.limit)
        verb = "keeps" if len(keeping) == 1 else "keep"
        return [
            f"Budget {limit}: {len(keeping)} of {devices} surely {verb} to it: {_best_of(kept)}."
        ]
    best_name = min(checks, key=lambda name: checks[name].amount.value)
    best = checks[best_name]
    limit, amount, over = map(
        best.budget.format, (best.budget.limit, best.amount.value, abs(best.over))
    )
    over += " over" if best.over > 0 else " left, but not surely"
    line = (
        f"Budget {limit}: none of {devices} surely keeps to it; nearest is {best_name} with"
        f" {amount} ({over})"
    )
    if best.steps:
        line += f"; training.steps={best.steps} of {best.total_steps:,} would surely do there"
    return [f"{line}."]


def _best_of(kept: Mapping[str, BudgetCheck]) -> str:
    """Return the best device in the unit of the budget and, where it is another, in the other."""

    def told(name: str) -> str:
        check = kept[name]
        amounts = [check.budget.format(check.amount.value)]
        if check.beside is not None:
            amounts.append(check.budget.other.format(check.beside.value))
        return f"{name} with {' and '.join(amounts)}"

    budget = next(iter(kept.values())).budget
    words = {"time": "quickest", "money": "cheapest"}
    least = min(kept, key=lambda name: kept[name].amount.value)
    found = [f"{words[budget.kind]} {told(least)}"]
    known = {name: check.beside.value for name, check in kept.items() if check.beside is not None}
    if known and (other := min(known, key=lambda name: known[name])) != least:
        found.append(f"{words[budget.other.kind]} {told(other)}")
    return "; ".join(found)


def session_sentences(sessions: Sessions) -> list[str]:
    """Return how many sessions one device takes, and the checkpoint interval that loses least."""
    expected, low, high = sessions.count
    between = f" ({low} to {high})" if low != high else ""
    count = f"{plural(expected, 'session')} of {format_duration(sessions.session_s)}{between}"
    return [
        f"Sessions: {count}; the same command goes on after each.",
        (
            f"checkpoint.every={sessions.every} loses least: every"
            f" {format_duration(sessions.interval_s)}, as a checkpoint takes"
            f" {format_duration(sessions.checkpoint_s)}; {sessions.lost_share:.1%} of a session"
            " goes to saving and to work done again"
        ),
        "(square root of 2 x time of a checkpoint x length of a session; Young 1974, Daly 2006).",
    ]


def _others(check: BudgetCheck) -> Iterator[Block]:
    """Return other devices that keep to the budget, or the one that comes nearest."""
    budget, shown = check.budget, check.others[:1]
    keeping = tuple(offer for offer in check.others if offer.keeps_to(budget))
    told = "No device of the catalog surely keeps to it; nearest:"
    if keeping:
        first, shown = "cheapest" if budget.kind == "time" else "quickest", keeping[:MAX_OTHERS]
        more = f" ({len(shown)} of {len(keeping)})" * (len(keeping) > len(shown))
        told = f"Other devices that surely keep to it, the {first} first{more}:"
    elif not check.others:
        price = " and has a known price" if budget.kind == "money" else ""
        told = f"No other device of the catalog holds it{price}."
    yield Paragraph(told)
    if offers := table_of(("Device", "Time", INTERVAL, "Cost"), map(_offer, shown)):
        yield offers


def _offer(offer: Offer) -> Row:
    between = format_between(format_duration, offer.time.low, offer.time.high)
    money = "no price known"
    if offer.money is not None:
        money = f"{format_money(offer.money.value)} at {offer.money.basis}"
    return offer.device, format_duration(offer.time.value), between, money
