"""A family from recordings of small steps, in which everything that it leaves open differs.

Every size, and every summand of the operators' counts, is a whole number times one product of
these, or one of a few sums (`family_key`). That is checked, and so are further recordings, with one
block more: what is no such number raises `Irregular`.

Suffixes: P recordings, N numbers that are recorded in each, K terms; others as in `family`.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brimful.base.arrays import Ints
from brimful.planning.architecture import LETTERS, Widths
from brimful.planning.block_rows import BlockRows, Irregular
from brimful.planning.family import LAUNCHES, BlockSegment, Family, Sums, joined_sums
from brimful.planning.family_key import TraceFamilyKey
from brimful.planning.parametric import equal, stretch
from brimful.planning.products import Products, SmallRecording
from brimful.planning.trace import Trace, same_events
from brimful.planning.work import (
    COUNTS,
    GLOBAL,
    PARTS,
    Calls,
    Details,
    IrregularWork,
    Work,
    block_growth,
    refuse_others,
)

_BYTES = ("bytes_W", "fused_bytes_W")
_UNLISTED = [
    index for index, name in enumerate(COUNTS) if name not in _BYTES and index not in LAUNCHES
]


_Update = tuple[Calls, dict[str, Sums]]
"""The calls of an update, and sums by name (`Family`, `BlockSegment`)."""


@dataclass(frozen=True, eq=False)
class Recordings:
    """Recordings of small members, from which a family is made.

    Attributes:
        key: What they share.
        few: Those that the family is made from.
        checks: Those that it is compared with; they have more blocks, where the model has more. Of
            a model that is divided among devices two, on different numbers of them.
        rows: The blocks of the few, and of the model.
        longer: The blocks of the checks.
        times: How many times the model has what the checks have more.
        weight_rows: As in `Family`.
        networks: Widths of the networks by the number of a member, where the family is of every
            one.
    """

    key: TraceFamilyKey
    few: tuple[SmallRecording, ...]
    checks: tuple[SmallRecording, ...]
    rows: BlockRows
    longer: str
    times: int = 0
    weight_rows: int = 1
    networks: tuple[Widths, ...] = ()

    def refuse_unlike(self) -> None:
        """Raise Irregular if recordings with the same number of blocks differ in more than
        sizes.
        """
        first, *others = (each.trace for each in self.few)
        for other in others:
            if not same_events(first, other) or first.marks != other.marks:
                raise Irregular("the events differ between two members")
            if not self.key.is_alone:
                _refuse_other_work(first, other)

    def family(self) -> Family:
        """Return the family.

        Raises:
            TooFew: a further recording would tell what a number is.
            Irregular: a number is none that it can be, or a check differs from the others.
        """
        self.refuse_unlike()
        first = self._first
        sizes = self._products.found(
            np.stack([each.trace.sizes_S for each in self.few]), first.is_evaluation_S, sums=True
        )
        parameters, more_parameters = self._parameters()
        work = self._work_or_none()
        no_calls = Calls(*[np.zeros(0, np.int64)] * 4)
        operators, (calls, sums), (more_calls, more) = work or (
            None,
            (no_calls, {}),
            (no_calls, {}),
        )
        sums |= {"sizes": sizes.gathered(), "parameters": parameters}
        more |= {"outside": self._outside(sizes), "parameters": more_parameters}
        made = Family(
            dataclasses.replace(
                first, sizes_S=np.zeros_like(first.sizes_S), work=None, details=None
            ),
            operators,
            calls,
            self._products.terms,
            sums,
            (BlockSegment(self.times, more_calls, more),) if self._stretches else (),
            self.rows,
            1 if not self.checks or self.checks[-1].size.micro_batch == 1 else 2,
            self.weight_rows,
        )
        self._refuse_other_than(made)
        if made.work is not None and self._stretches:
            try:
                self._refuse_other_growth(made, made.work)
            except Irregular:
                if not self.key.is_alone:
                    raise
                made = dataclasses.replace(made, work=None)
        return made

    @cached_property
    def _products(self) -> Products:
        letters = LETTERS if self.networks else ""
        if any(each.values["n"] == each.values["g"] for each in self.networks):
            letters = letters.replace("g", "")  # it is n
        return Products(self.key, self.few, self.checks, self._stretches, letters)

    @property
    def _first(self) -> Trace:
        return self.few[0].trace

    @property
    def _rows_of_checks(self) -> BlockRows:
        return BlockRows(self.rows.few, self.longer)

    @property
    def _stretches(self) -> bool:
        return self.rows.few != self.longer

    def _outside(self, sizes: Sums) -> Sums:
        """Return the sizes of storages outside the blocks with the further blocks."""
        inside = np.flatnonzero(self._first.layers_S == GLOBAL)
        places = np.full(sizes.count, -1, np.int64)
        places[inside] = np.arange(len(inside))
        kept = places[sizes.places_A] >= 0
        like = Sums(
            len(inside), places[sizes.places_A[kept]], sizes.factors_A[kept], sizes.terms_A[kept]
        )
        if not self._stretches:
            return like.gathered()
        check = self.checks[-1]
        outside = np.flatnonzero(check.trace.layers_S == GLOBAL)
        if len(inside) != len(outside):
            raise Irregular("the number of tensors outside the blocks depends on their number")
        evaluates = self._first.is_evaluation_S[inside]
        return self._products.longer(
            like, check, check.trace.sizes_S[outside], evaluates
        ).gathered()

    def _parameters(self) -> tuple[Sums, Sums]:
        """Return the numbers of parameters and of those that are trained, with few blocks and with
        the further ones.
        """
        values, groups = [], []
        for trace in (each.trace for each in (*self.few, *self.checks)):
            parameters, trains = np.array([trace.parameters, trace.trainable]), np.arange(2)
            details = trace.details
            if details is not None and not self.key.is_alone:
                of_trained = details.parameters_P[details.trains_P.astype(bool)]
                parameters = np.concatenate([details.parameters_P, of_trained])
                trains = np.repeat([0, 1], [len(details.parameters_P), len(of_trained)])
            values.append(parameters)
            groups.append(trains)
        return self._products.summed(values, 2, groups)

    def _work_or_none(self) -> tuple[Work, _Update, _Update] | None:
        try:
            return self._work()
        except Irregular:
            if self.key.is_alone:
                return None
            raise

    def _work(self) -> tuple[Work, _Update, _Update]:
        """Return the operators, without counts, and the update as it is with few blocks and as it
        is with those of the checks.
        """
        first, last = self._first, (*self.few, *self.checks)[-1].trace
        for other in self.few[1:]:
            _refuse_other_work(first, other.trace)
        work, details = _work(first), [_details(each.trace) for each in (*self.few, *self.checks)]
        calls, longer = details[0].calls, details[-1].calls
        moved = dataclasses.replace(longer, rows_L=longer.rows_L - len(_work(last)) + len(work))
        if not np.array_equal(calls.rows_L, moved.rows_L):
            raise Irregular("updates call other operators with more blocks")
        counts, growth = self._counts()
        elements, longer_elements = self._products.summed(
            [each.elements_N for each in details],
            len(calls.rows_L),
            [each.calls_N for each in details],
        )
        few, more = (
            dataclasses.replace(each, elements_L=np.zeros_like(each.elements_L))
            for each in (calls, moved)
        )
        return (
            work.with_counts(np.zeros_like(work.counts())),
            (few, {"counts": counts, "elements": elements}),
            (more, {"growth": growth, "elements": longer_elements}),
        )

    def _counts(self) -> tuple[Sums, Sums]:
        """Return the counts of operators but for the launches of updates, and what the further
        blocks add to them.
        """
        few = [_work(each.trace) for each in self.few]
        details = [_details(each.trace) for each in (*self.few, *self.checks)]
        number, (update_W, evaluation_W) = (
            len(few),
            (few[0].parts_W == PARTS.index(name) for name in ("optimizer", "evaluation")),
        )
        rows, size = len(few[0]), len(COUNTS) * len(few[0])
        rest = np.flatnonzero(~update_W)
        parts = []
        for index, name in enumerate(COUNTS):
            places, values = rest, [getattr(each, name)[rest] for each in few]
            if name in _BYTES:
                places = details[0].rows_D
                values = [getattr(each, name.replace("_W", "_D")) for each in details[:number]]
            found = self._products.found(np.stack(values), evaluation_W[places], sums=True)
            parts.append(found.moved(size, index * rows + places))
        accesses, groups = [], []
        shifts = [len(_work(each.trace)) - rows for each in (*self.few, *self.checks)]
        for each, shift in zip(details, shifts, strict=True):
            accesses.append(np.concatenate([each.bytes_U, each.fused_bytes_U]))
            groups.append(
                np.concatenate([COUNTS.index(name) * rows + each.rows_U - shift for name in _BYTES])
            )
        short, longer = self._products.summed(accesses, size, groups)
        plain, longer_plain = self._plain_updates(np.flatnonzero(update_W), size)
        growth = joined_sums([longer, longer_plain]).less(joined_sums([short, plain]))
        return joined_sums([*parts, short, plain]).gathered(), growth

    def _plain_updates(self, update: Ints, size: int) -> tuple[Sums, Sums]:
        """Return the counts of the update that are no sums over accesses."""
        works = [_work(each.trace) for each in (*self.few, *self.checks)]
        values = [
            each.counts()[_UNLISTED][:, each.parts_W == PARTS.index("optimizer")].ravel()
            for each in works
        ]
        rows = len(works[0])
        places = np.concatenate([index * rows + update for index in _UNLISTED])
        none = np.zeros(len(places), np.bool_)
        few = self._products.found(np.stack(values[: len(self.few)]), none)
        longer = few
        if self._stretches:
            if len(values[-1]) != len(places):
                raise Irregular("updates call other operators with more blocks")
            longer = self._products.longer(few, self.checks[-1], values[-1], none)
        return few.moved(size, places).gathered(), longer.moved(size, places).gathered()

    def _refuse_other_than(self, made: Family) -> None:
        """Raise Irregular where the sizes of a check are not what the family says."""
        first, rows = self._first, self._rows_of_checks
        outside = first.layers_S == GLOBAL
        for check in self.checks:
            sizes_S = self._products.at(made.sums["sizes"], check, first.is_evaluation_S)
            short = dataclasses.replace(first, sizes_S=sizes_S)
            long, origin_S = stretch(short, rows) if self._stretches else (short, slice(None))
            grown_S = sizes_S.copy()
            for each in made.segments:
                grown_S[outside] = self._products.at(
                    each.sums["outside"], check, first.is_evaluation_S[outside]
                )
            long = dataclasses.replace(long, sizes_S=grown_S[origin_S])
            if not equal(long, check.trace):
                raise Irregular("a further trace is not what the others say it is")

    def _refuse_other_growth(self, made: Family, work: Work) -> None:
        """Raise Irregular where the operators of a check are not what the family says."""
        evaluates = np.tile(work.parts_W == PARTS.index("evaluation"), len(COUNTS))
        for check in self.checks:
            counts, growth = (
                self._products.at(sums, check, evaluates).reshape(len(COUNTS), -1)
                for sums in (made.sums["counts"], made.segments[0].sums["growth"])
            )
            elements_L = made.sums["elements"].at(self._products.worth(check)[0])
            calls = dataclasses.replace(made.calls, elements_L=elements_L)
            counts[LAUNCHES] += calls.launches(len(work))
            short = work.with_counts(counts)
            try:
                grown = block_growth(short, _work(check.trace), self._rows_of_checks)
            except IrregularWork as irregular:
                raise Irregular(str(irregular)) from irregular
            grown[LAUNCHES] = growth[LAUNCHES] = 0
            if not np.array_equal(grown, growth):
                raise Irregular("updates do not grow by equal blocks")


def _refuse_other_work(first: Trace, other: Trace) -> None:
    """Raise Irregular if operators of two recordings differ in more than sizes."""
    try:
        refuse_others(_work(first), _work(other))
    except IrregularWork as irregular:
        raise Irregular(str(irregular)) from irregular
    one, another = _details(first), _details(other)
    for name in ("rows_D", "rows_U", "calls_N", "trains_P"):
        if not np.array_equal(getattr(one, name), getattr(another, name)):
            raise Irregular("operators touch other tensors")
    if not one.calls.alike(another.calls):
        raise Irregular("updates call other operators")


def _work(trace: Trace) -> Work:
    if trace.work is None:
        raise Irregular("what the operators compute was not recorded")
    return trace.work


def _details(trace: Trace) -> Details:
    if trace.details is None:
        raise Irregular("what the operators compute was not recorded")
    return trace.details
