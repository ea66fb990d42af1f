"""Numbers as people and models write them, read exactly, and compared without floats."""

import decimal
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from brimful.verify.answers import MAX_FINAL_CHARACTERS, NO_MARK, find_final_answer
from brimful.verify.verifier import Verdict

ARITHMETIC = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])
"""60 digits and exponents far beyond floats; nothing in it raises."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)(?:\.\d*)?|\.\d+"
_TIMES_TEN = r"\s?(?:[x×*·]|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\s?(?P<power>[+-]?\d{1,9})"
_NUMBER = re.compile(
    rf"[=≈]?\s*(?:(?P<sign>[+-]?)\s?[$€£¥]?\s?|[$€£¥]\s?(?P<inner>-)\s?)"
    r"(?:\\[dt]?frac\{(?P<upper>\d+)\}\{(?P<lower>\d+)\}"
    rf"|(?P<digits>{_DIGITS})"
    rf"(?:[eE](?P<exponent>[+-]?\d{{1,9}})|{_TIMES_TEN}|\s?/\s?(?P<under>[1-9]\d*))?)"
    r"(?P<rest>(?![\w.,/]\d).*)",
    re.ASCII | re.DOTALL,
)
_UNIT = re.compile(
    r"[%°]|(?!e$)°?[^\W\d_](?:[^\W\d_]|[ '/*·²³()-]|(?:\^|\*\*)-?\d){0,40}", re.IGNORECASE
)
_MAX_UNIT_WORDS = 3
_CHANGES_THE_NUMBER = re.compile(
    r"[²³]|(?i:squared|cubed)\b"
    r"|.*(?:\b(?:k|(?i:bn|pi|half|(?:hundred|thousand|million|billion|trillion)s?))\b"
    r"|[π¼-¾⅐-ⅿ①-⓿])"
)
"""What changes the number before it, as in 5 million, 5 thousand dollars, 2π, 5² and 5 and a half;
but m² and meters squared are units.
"""
_A_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SPELLINGS = (
    (re.compile(r"[\u2012\u2013\u2212]"), "-"),
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}"), r" \1"),
    (re.compile(r"\\[,;: ]|[\u00a0\u2009\u202f~]"), " "),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\{(-?\d+)\}"), r"^\1"),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\^?\s?\\(?:circ|degree)\s?|\^\{\\circ\}"), "°"),
    (re.compile(r"[*_`]+(?=$|[\s.,])|^[*_`]+"), ""),
)


@dataclass(frozen=True)
class NumberRead:
    """The one number of a text.

    Attributes:
        value: Exact up to 60 digits; None where there is not exactly one number.
        text: What was read; empty where there is no value.
        unit: What stands behind the number ("kg", "dollars", "%"), or empty.
        problem: Why there is no value, as `FinalAnswer.problem`, or "no number", "several numbers",
            "not a plain number".
    """

    value: Decimal | None
    text: str = ""
    unit: str = ""
    problem: str = ""


def read_number(answer: str) -> NumberRead:
    """The number that an answer gives as its result: in the last mark, or the whole answer where
    nothing is marked and a number is all it says.
    """
    final = find_final_answer(answer)
    if final.text is not None:
        return number_in(final.text)
    if final.problem == NO_MARK and len(answer) <= MAX_FINAL_CHARACTERS:
        whole = number_in(answer)
        if whole.value is not None:
            return whole
    return NumberRead(None, problem=final.problem)


def number_in(text: str) -> NumberRead:
    """The one number that a short text is, with a unit of at most three words behind it.

    ASCII digits only: `42`, `-1,234.5`, `1 234`, `.5`, `1.2e3`, `1.2 x 10^3`, `3/4`, a LaTeX
    fraction of whole numbers, `$18`, `18 dollars`, `50%` (which is 50). Not `1,23`, `0x10`, `nan`,
    `inf`.
    """
    plain = _plain(text)
    match = _NUMBER.fullmatch(plain)
    unit = match["rest"].strip() if match else ""
    if match is None or not _is_unit(unit):
        problems = ("no number", "not a plain number", "several numbers")
        return NumberRead(None, problem=problems[min(2, len(_A_NUMBER.findall(plain)))])
    value = _value(match)
    if value is None:
        return NumberRead(None, problem="no number")
    return NumberRead(value, text.strip(), unit)


def is_close(value: Decimal, reference: Decimal, tolerance: Decimal) -> bool:
    """Whether a number is within a share of the reference; of a reference of 0 within 1e-9."""
    allowed = Decimal("1e-9")
    if reference:
        allowed = ARITHMETIC.multiply(tolerance, ARITHMETIC.abs(reference))
    return ARITHMETIC.abs(ARITHMETIC.subtract(value, reference)) <= allowed


def plain_value(number: Decimal) -> float | str:
    """A float, or text for numbers that no float comes near."""
    value = float(number)
    is_out_of_range = math.isinf(value) or (value == 0 and number != 0)
    return str(number) if is_out_of_range else value + 0.0  # never -0.0


def reference_number(reference: str) -> Decimal:
    """The number of a reference, which may be marked like an answer (GSM8K's are).

    Raises:
        ValueError: It is none.
    """
    read = read_number(reference)
    if read.value is None:
        raise ValueError(f"{reference[:80]!r} is not one number ({read.problem})")
    return read.value


def compared(answer: str, reference: str, agrees: Callable[[Decimal, Decimal], bool]) -> Verdict:
    """The verdict on an answer whose result is a number; a unit behind it is not looked at.

    Raises:
        ValueError: The reference is no number.
    """
    right, read = reference_number(reference), read_number(answer)
    if read.value is None:
        return Verdict.unparsed(read.problem)
    is_right = agrees(read.value, right)
    value = plain_value(read.value)
    return Verdict.judged(value, read.text, is_correct=is_right, otherwise="another number")


def _plain(text: str) -> str:
    """Typographic and LaTeX spellings of signs, spaces and units as ASCII has them; without `$...$`
    around, emphasis and a full stop at the end.
    """
    plain = text.strip()
    if len(plain) > 2 and plain[0] == plain[-1] == "$":
        plain = plain[1:-1]
    elif plain.startswith("\\(") and plain.endswith("\\)"):
        plain = plain[2:-2]
    for spelling, replacement in _SPELLINGS:
        plain = spelling.sub(replacement, plain)
    plain = plain.strip()
    if plain.endswith("..") or not plain.endswith("."):
        return plain
    return plain[:-1]


def _is_unit(text: str) -> bool:
    if not text:
        return True
    return (
        _UNIT.fullmatch(text) is not None
        and len(text.split()) <= _MAX_UNIT_WORDS
        and not _CHANGES_THE_NUMBER.match(text)
    )


def _value(match: re.Match[str]) -> Decimal | None:
    """The number of a match of `_NUMBER`; None for a fraction over 0."""
    if match["upper"]:
        over, under = Decimal(match["upper"]), Decimal(match["lower"])
    else:
        power = match["exponent"] or match["power"] or "0"
        over = ARITHMETIC.create_decimal(
            f"{match['digits'].replace(',', '').replace(' ', '')}e{power}"
        )
        under = Decimal(match["under"] or 1)
    if not under:
        return None
    value = ARITHMETIC.divide(over, under)
    if "-" in {match["sign"], match["inner"]}:
        return -value
    return value
