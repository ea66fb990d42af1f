"""Rates of this CPU's products: measured once, then kept. Nothing is timed here."""

from typing import Any

import pytest

from brimful.hardware import host
from brimful.hardware import matrix_rates as rates
from brimful.hardware.matrix_rates import bf16_pays_here, matrix_rates, new_product_s


@pytest.mark.parametrize(("bf16", "pays"), [(8.3e10, False), (4e11, True)])
def test_bf16_pays_where_its_products_were_measured_to_be_faster(
    bf16: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def measure(*arguments: Any) -> dict[str, float]:
        asked.append(arguments)
        return {"fp32": 1.58e11, "bf16": bf16}

    monkeypatch.setattr("brimful.hardware.calibrate.measure_matrix_rates", measure)
    monkeypatch.setattr("brimful.hardware.contention.lost_share", lambda before, after: 0.0)

    assert bf16_pays_here() is pays
    assert matrix_rates(host.cpu_name()).bf16_pays is pays
    assert len(asked) == 1


def test_what_a_new_shape_costs_is_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = new_product_s()
    monkeypatch.setattr(rates, "_measure_new_product_s", lambda: pytest.fail("measured again"))

    assert 0 <= measured < 1
    assert new_product_s() == measured
