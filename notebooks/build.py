"""Write the notebooks from their texts: `python notebooks/build.py`. The texts in `text/` are the
source; the notebooks are made of them.

A text is Markdown; a block fenced as ```python is a code cell, and what stands between two of them
is a text cell. `{{head}}` becomes the badges, `{{setup}}` the cell of `text/setup.py`, `{{setup
EXTRA}}` with an extra of the package, and `{{drive}}`, `{{plan}}` ... what `text/drive.md`,
`text/plan.md` ... hold for all of them.
"""

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = "github.com/brimful/brimful"
"""Not published yet; this is the one place that says where it will be."""
NAMES = ("tour", "gpt-from-scratch", "code-lora", "okadfa", "moderation", "reasoning-rft", "preferences")
SHARED = ("drive", "plan", "train", "watch", "report", "home")
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def notebook(name: str) -> dict[str, Any]:
    """The notebook of a text, as nbformat 4.5 stores it, without outputs."""
    text = _filled((HERE / "text" / f"{name}.md").read_text(encoding="utf-8"), name)
    cells = []
    for index, part in enumerate(FENCE.split(text)):
        source = part.strip()
        if source:
            kind = "code" if index % 2 else "markdown"
            only_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
            cells.append(
                {
                    "cell_type": kind,
                    "id": f"{name}-{len(cells)}",
                    "metadata": {},
                    **only_code,
                    "source": source.splitlines(keepends=True),
                }
            )
    metadata = {
        "accelerator": "GPU",
        "colab": {"gpuType": "T4", "name": f"{name}.ipynb", "provenance": []},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def as_text(name: str) -> str:
    """As it lies in the repository."""
    return json.dumps(notebook(name), indent=1, ensure_ascii=False) + "\n"


def _filled(text: str, name: str) -> str:
    file = f"https://{REPOSITORY}/blob/main/notebooks/{name}.ipynb"
    colab = f"https://colab.research.google.com/{file.removeprefix('https://').replace('github.com', 'github', 1)}"
    kaggle = f"https://kaggle.com/kernels/welcome?src={file}"
    badges = (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}) "
        f"[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]({kaggle})"
    )
    setup = (
        (HERE / "text" / "setup.py").read_text(encoding="utf-8").replace("REPOSITORY", REPOSITORY)
    )
    text = text.replace("{{head}}", badges)
    for part in SHARED:
        text = text.replace(
            f"{{{{{part}}}}}", (HERE / "text" / f"{part}.md").read_text(encoding="utf-8")
        )
    return re.sub(
        r"\{\{setup ?([\w,]*)\}\}",
        lambda found: f"```python\n{setup.replace('EXTRAS', found[1])}```",
        text,
    )


def main() -> None:
    """Write all of them."""
    for name in NAMES:
        (HERE / f"{name}.ipynb").write_text(as_text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
