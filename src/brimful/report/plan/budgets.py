"""Answers to a budget and to sessions, in sentences."""

from collections.abc import Mapping, Sequence

from brimful.base.units import format_count, format_duration, format_money
from brimful.planning.budget import BudgetCheck, Offer, Sessions

MOST_OTHERS = 5
"""Other devices that are named."""


def budget_lines(answer: BudgetCheck, tokens_per_step: int) -> list[str]:
    """For one device: fits or not, by how much, and what would."""
    budget, amount = answer.budget, answer.amount
    told = (
        f"{budget.format(amount.value)} expected, {budget.format(amount.low)} to"
        f" {budget.format(amount.high)}"
    )
    times = amount.value / budget.limit
    by = (
        f"{budget.format(abs(answer.over))} {'over' if answer.over > 0 else 'left'},"
        f" {f'{times:,.0f} times' if times >= 10 else f'{times:.0%} of'} the budget"
    )
    verdict = {
        "fits": "is kept",
        "uncertain": "may or may not be kept",
        "does not fit": "is not kept",
    }[answer.verdict]
    lines = [f"Budget {budget.format(budget.limit)} {verdict}: {told}; {by}."]
    if answer.verdict == "fits":
        return lines
    if answer.steps:
        lines.append(
            f"  Fewer steps: training.steps={answer.steps} surely keeps to it,"
            f" {answer.steps / answer.total_steps:.1%} of {answer.total_steps:,} steps,"
            f" {format_count(answer.steps * tokens_per_step)} tokens."
        )
    else:
        lines.append(
            "  Fewer steps: not even one surely keeps to it, as the start alone may take longer."
        )
    return lines + _others(answer)


def list_lines(answers: Mapping[str, BudgetCheck]) -> list[str]:
    """For several devices: how many keep to the budget and the best of them, else what comes
    nearest.
    """
    first = next(iter(answers.values()), None)
    if first is None:
        return []
    surely = [name for name, answer in answers.items() if answer.verdict == "fits"]
    least = min(surely or answers, key=lambda name: answers[name].amount.value)
    best = answers[least]
    devices = f"{len(answers)} device{'s' * (len(answers) != 1)} that can hold it"
    told = best.budget.format
    if surely:
        return [
            f"Budget {told(best.budget.limit)}: {len(surely)} of {devices} surely"
            f" keep{'s' * (len(surely) == 1)} to it, at best {least} with"
            f" {told(best.amount.value)}."
        ]
    over = f"{told(abs(best.over))} {'over' if best.over > 0 else 'left, but not surely'}"
    nearest = f"nearest is {least} with {told(best.amount.value)} ({over})"
    fewer = (
        f"; training.steps={best.steps} of {best.total_steps:,} would surely do there"
        if best.steps
        else ""
    )
    return [
        f"Budget {told(best.budget.limit)}: none of {devices} surely keeps to it; {nearest}{fewer}."
    ]


def session_lines(sessions: Sessions) -> list[str]:
    """For one device: how many sessions, and the checkpoint interval that loses least."""
    expected, low, high = sessions.count
    between = f" ({low} to {high})" if low != high else ""
    count = (
        f"{expected} session{'s' * (expected != 1)} of"
        f" {format_duration(sessions.session_s)}{between}"
    )
    return [
        f"Sessions: {count}; the same command continues where the last one was killed.",
        (
            f"  checkpoint.every={sessions.every} loses least: every"
            f" {format_duration(sessions.interval_s)}, as a checkpoint takes"
            f" {format_duration(sessions.checkpoint_s)}; {sessions.lost_share:.1%} of a session"
            " goes to saving and to work done again"
        ),
        "  (square root of 2 x time of a checkpoint x length of a session; Young 1974, Daly 2006).",
    ]


def _others(answer: BudgetCheck) -> list[str]:
    budget = answer.budget
    surely = [offer for offer in answer.others if offer.keeps_to(budget)]
    if surely:
        first = "cheapest" if budget.kind == "time" else "quickest"
        more = [f"    and {len(surely) - MOST_OTHERS} more"] * (len(surely) > MOST_OTHERS)
        return [
            f"  Other devices that surely keep to it, the {first} first:",
            *_offers(surely[:MOST_OTHERS]),
            *more,
        ]
    if answer.others:
        return [
            "  No device of the catalog surely keeps to it; nearest:",
            *_offers(answer.others[:1]),
        ]
    return [
        "  No other device of the catalog holds it"
        + " and has a known price" * (budget.kind == "money")
        + "."
    ]


def _offers(offers: Sequence[Offer]) -> list[str]:
    rows = []
    for offer in offers:
        low, value, high = (
            format_duration(seconds)
            for seconds in (offer.time.low, offer.time.value, offer.time.high)
        )
        money = (
            "no price known"
            if offer.money is None
            else f"{format_money(offer.money.value)} at {offer.money.basis}"
        )
        rows.append((offer.device, f"{value} ({low} to {high})", money))
    device, time = (max(len(row[index]) for row in rows) for index in (0, 1))
    return [f"    {row[0]:<{device}}  {row[1]:<{time}}  {row[2]}" for row in rows]
