"""What a GGUF file says of itself, and every way in which it is not what is needed."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import PlanError
from brimful.model.catalog import config_of_model
from brimful.model.gguf_file import TENSOR_TYPES, config_values, read_gguf
from brimful.planning.specs import facts_of_values

Write = Callable[..., Path]


def test_sizes_types_and_config_are_read_from_the_header(write_gguf: Write) -> None:
    file = read_gguf(write_gguf())

    assert file.types == {"Q8_0": 15, "F32": 5}
    assert 8.5 < file.bits_per_weight < 9
    values = config_values(file)
    assert values["model_type"] == "llama"
    assert values["tie_word_embeddings"] is True
    assert (values["hidden_size"], values["vocab_size"]) == (32, 262)
    config = config_of_model(str(file.path))
    assert (config.num_hidden_layers, config.intermediate_size) == (2, 64)
    assert config.rope_parameters["rope_theta"] == 10000.0
    assert facts_of_values(config.to_dict(), None).context == 128
    assert file.parameters == 262 * 32 + 5 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 64)


def test_describing_a_file_loads_no_torch(write_gguf: Write) -> None:
    code = (
        "import sys; from pathlib import Path; from brimful.model.gguf_file import *;"
        " config_values(read_gguf(Path(sys.argv[1]))); assert 'torch' not in sys.modules;"
        " assert 'gguf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(write_gguf())], check=True)


def test_every_type_is_as_the_package_that_reads_it_has_it() -> None:
    constants = pytest.importorskip("gguf.constants")
    for number, (name, block, num_bytes) in TENSOR_TYPES.items():
        kind = constants.GGMLQuantizationType(number)
        assert kind.name == name
        assert constants.GGML_QUANT_SIZES[kind] == (block, num_bytes)


def test_an_unknown_architecture_is_refused(write_gguf: Write, refuses: Refuses) -> None:
    with refuses(PlanError, names=["lama", "llama"]):
        read_gguf(write_gguf(general__architecture="lama"))


def test_a_model_that_only_embeds_is_refused(write_gguf: Write, refuses: Refuses) -> None:
    with refuses(PlanError, names=["bert"]):
        read_gguf(write_gguf(general__architecture="bert"))


def test_an_unknown_type_of_weights_is_refused(write_gguf: Write, refuses: Refuses) -> None:
    with refuses(PlanError, names=["token_embd.weight", "99", "Q4_K"]):
        read_gguf(write_gguf(kind=99))


def test_a_file_without_a_tokenizer_is_refused(write_gguf: Write, refuses: Refuses) -> None:
    with refuses(PlanError, names=["tokenizer.ggml.tokens"]):
        read_gguf(write_gguf(drop=("tokenizer.ggml.tokens",)))


def test_a_file_without_a_size_that_every_model_has_is_refused(
    write_gguf: Write, refuses: Refuses
) -> None:
    with refuses(PlanError, names=["hidden_size"]):
        config_values(read_gguf(write_gguf(drop=("llama.embedding_length",))))


@pytest.mark.parametrize("left", [0, 10, 100, 3000, -1])
def test_a_cut_off_file_is_refused_wherever_it_is_cut(write_gguf: Write, left: int) -> None:
    path = write_gguf()
    content = path.read_bytes()
    path.write_bytes(content[:left])

    with pytest.raises(PlanError, match=r"is cut off: .* Download it again|is no GGUF file"):
        read_gguf(path)


def test_any_damaged_byte_of_the_header_is_an_error_or_another_value(write_gguf: Write) -> None:
    path = write_gguf()
    content = bytearray(path.read_bytes())
    for place in range(4, 2000, 37):
        damaged = bytes(content[:place]) + b"\xff" + bytes(content[place + 1 :])
        path.write_bytes(damaged)
        with contextlib.suppress(PlanError):
            config_values(read_gguf(path))


def test_what_is_no_gguf_file_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK" * 100)

    with refuses(PlanError):
        read_gguf(other)
    with refuses(PlanError):
        read_gguf(tmp_path / "absent.gguf")


@pytest.mark.parametrize("version", [1, 4, 50331648])
def test_another_version_is_refused(write_gguf: Write, version: int, refuses: Refuses) -> None:
    path = write_gguf()
    content = path.read_bytes()
    path.write_bytes(content[:4] + version.to_bytes(4, "little") + content[8:])

    with refuses(PlanError):
        read_gguf(path)
