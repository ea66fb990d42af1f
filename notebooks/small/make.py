"""Write the small data that notebooks read with BRIMFUL_NOTEBOOK=small: `python
notebooks/small/make.py`. All of it is made up here.
"""

import json
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNITS = (("hour", "minutes", 60), ("minute", "seconds", 60), ("day", "hours", 24), ("week", "days", 7), ("foot", "inches", 12), ("metre", "millimetres", 1000))
CALM = "station monday photos dinner train home bus late again garden river music letter window coffee rain winter book kitchen friend walk evening".split()
LOUD = "free prize cash win claim ticket urgent cheap loan reply voucher bonus award text now call offer credit winner chance click gift".split()


def texts(drawn: random.Random) -> str:
    """Documents of worked conversions."""
    documents = []
    for number in range(40):
        lines = [f"# sheet {number}"]
        for _ in range(8):
            unit, small, factor = drawn.choice(UNITS)
            count = drawn.randint(1, 40)
            lines.append(f"1 {unit} = {factor} {small}. {count} x {factor} = {count * factor} {small}")
            lines.append(f"Sheet {drawn.randint(1, 99)}: how many {small} make one {unit}? <answer>{factor}</answer>")
        documents.append("\n".join(lines) + "\n")
    return "".join(documents)


def code(drawn: random.Random) -> str:
    """Tasks with small functions as answers."""
    rows = []
    for verb, sign in (("adds", "+"), ("subtracts", "-"), ("multiplies by", "*")):
        for number in drawn.sample(range(2, 90), 20):
            name = f"{verb.split()[0]}_{number}"
            task = f"Write a Python function `{name}(value)` that {verb} {number}."
            rows.append({"prompt": task, "completion": f"def {name}(value):\n    return value {sign} {number}\n"})
    drawn.shuffle(rows)
    return "".join(json.dumps(row) + "\n" for row in rows)


def questions(drawn: random.Random) -> str:
    """Questions whose answers are numbers, with the working as a demonstration."""
    rows = []
    for unit, small, factor in UNITS:
        for sheet in drawn.sample(range(1, 100), 20):
            asked = f"Sheet {sheet}: how many {small} make one {unit}?"
            rows.append({"question": asked, "answer": str(factor), "completion": f"<answer>{factor}</answer>"})
    drawn.shuffle(rows)
    return "".join(json.dumps(row) + "\n" for row in rows)


def preferences(drawn: random.Random) -> str:
    """Pairs of a short and a long-winded answer to one prompt."""
    rows = []
    for subject in CALM:
        for asked in ("Tell me about the {}.", "What is the {} like?", "Describe the {}."):
            words = drawn.sample(CALM, 2)
            short = f"The {subject} is like a {words[0]}."
            long = f"Well, one might say that the {subject} is, as it were, like a {words[0]}, or rather like a {words[1]}."
            rows.append({"prompt": asked.format(subject), "chosen": short, "rejected": long})
    drawn.shuffle(rows)
    return "".join(json.dumps(row) + "\n" for row in rows)


def messages(drawn: random.Random) -> str:
    """Messages with labels, a quarter of them advertisements."""
    rows = []
    for number in range(160):
        words = drawn.choices(LOUD if number % 4 == 0 else CALM, k=drawn.randint(5, 9)) + drawn.choices(CALM, k=3)
        rows.append(f"{' '.join(words)},{'spam' if number % 4 == 0 else 'ham'}")
    return "text,label\n" + "\n".join(rows) + "\n"


def main() -> None:
    """Write the files, the same each time."""
    for name, make in (("texts.txt", texts), ("code.jsonl", code), ("questions.jsonl", questions), ("messages.csv", messages), ("preferences.jsonl", preferences)):
        (HERE / name).write_text(make(random.Random(0)), encoding="utf-8")


if __name__ == "__main__":
    main()
