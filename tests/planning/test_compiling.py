from pathlib import Path

import pytest
from fixture_types import MakeRecipe

from brimful.planning.compiling import COLD_S, WARM_S, compile_s, note_compiled


def test_compiling_costs_less_where_a_run_compiled_this_step_before(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of this recipe, device and precision; and as much as at first once the kernels are gone."""
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kernels))
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    recipe, longer = tiny(), tiny("sequence_length=80")

    note_compiled(recipe, "A100", "bf16")

    assert compile_s(recipe, "A100", "bf16") == WARM_S
    assert compile_s(longer, "A100", "bf16") == COLD_S
    assert compile_s(recipe, "A100", "fp32") == compile_s(recipe, "T4", "bf16") == COLD_S
    kernels.rmdir()
    assert compile_s(recipe, "A100", "bf16") == COLD_S
