"""A model is another one where any file differs that decides what it computes."""

from pathlib import Path

import pytest

from brimful.model.fingerprint import folder_fingerprint, is_same_model

FILES = {
    "config.json": '{"rope_theta": 10000, "transformers_version": "5.0.0"}',
    "generation_config.json": '{"eos_token_id": 2}',
    "adapter_config.json": '{"lora_alpha": 16}',
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "special_tokens_map.json": "{}",
    "added_tokens.json": "{}",
    "tokenizer.model": "pieces",
    "vocab.json": "{}",
    "merges.txt": "a b",
    "chat_template.jinja": "{{ messages }}",
    "additional_chat_templates/tools.jinja": "{{ tools }}",
    "modeling_own.py": "pass",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def test_every_file_that_decides_what_is_computed_changes_the_fingerprint(folder: Path) -> None:
    seen = {folder_fingerprint(folder)}
    for name in ["model.safetensors", *FILES]:
        whole = (folder / name).read_bytes()
        for content in (whole.replace(b"1", b"2") + b" ", whole[:-1]):
            (folder / name).write_bytes(content)
            seen.add(folder_fingerprint(folder))
        (folder / name).rename(folder / "aside")
        seen.add(folder_fingerprint(folder))
        (folder / "aside").rename(folder / name)
        (folder / name).write_bytes(whole)

    assert len(seen) == 1 + 3 * (1 + len(FILES))


def test_nothing_else_changes_it(folder: Path) -> None:
    before = folder_fingerprint(folder)
    (folder / "README.md").write_text("new")
    (folder / "trainer_state.json").write_text("{}")
    (folder / "config.json").write_text(FILES["config.json"].replace("5.0.0", "5.23.0"))

    assert folder_fingerprint(folder) == before


def test_a_fingerprint_of_an_earlier_version_is_held_by_the_weights_alone(folder: Path) -> None:
    now = folder_fingerprint(folder)
    # xxh3_128 over b"model.safetensors" + b"weights", as versions before stored it.
    earlier = "58c53f057066b769486786588a30a518"
    assert is_same_model(now, now)
    assert is_same_model(earlier, now)
    assert is_same_model(f"{earlier}, shown 3: Be brief.", f"{now}, shown 3: Be brief.")
    assert is_same_model("c0ffee", "c0ffee")

    (folder / "config.json").write_text("{}")
    assert not is_same_model(now, folder_fingerprint(folder))
    assert is_same_model(earlier, folder_fingerprint(folder))
    (folder / "model.safetensors").write_bytes(b"others")
    assert not is_same_model(earlier, folder_fingerprint(folder))
    assert not is_same_model(None, now)
