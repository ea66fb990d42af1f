"""The tables of docs/measured.md, docs/okadfa.md and docs/install.md, made from `benchmarks/records`.

python benchmarks/tables.py
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"
WITHOUT_AMX, SLOW_BF16 = "_without_amx", "_slow_bf16"
CPU_KINDS = {"": "with AMX", WITHOUT_AMX: "without AMX", SLOW_BF16: "on which bf16 is slow"}
"""Kinds of CPU that a benchmark may have a record of each, by the ending of its name."""
MOST_COLD_S = 12
"""CPU time that a first plan may take."""


def main() -> None:
    print(table())
    print(f"\n{ablation()}\n\n{environments()}")


def table() -> str:
    """Markdown rows; every figure comes from a record."""
    rows = [
        *_on_every_cpu("pretrain_cpu", _speed),
        *_on_every_cpu("nanogpt_cpu", _nanogpt),
        *_learned("shakespeare-char"),
        *_learned("wikitext2-small"),
        *_learned("okadfa-small"),
        *_killed(),
        *_killed_sampling(),
        *_corrupted("corruption", ""),
        *_corrupted("corruption_further", ", pairs, rewards, bases and caches among them"),
        *_corrupted("corruption_ranks", ", and runs of two ranks"),
        *_corrupted("corruption_present", ", all kinds again, finished runs above all"),
        *_corrupted(
            "corruption_finished", ", finished runs, bases, mirrors and drawings once more"
        ),
        *_mirrored(),
        *_memory_cpu("memory_cpu", "families x methods x loss x recomputation"),
        *_memory_cpu("memory_compiled", "compiled blocks"),
        *_memory_cpu(
            "memory_rewards", "updates on rewarded answers: losses x adapters x reference"
        ),
        *_memory_pretrained(),
        *_memory_truth(),
        *_allocator_snapshots(),
        *_memory_parallel(),
        *_ranks_equal(),
        *_ranks_killed(),
        *_ranks_traced(),
        *_ranks_speed(),
        *_spread_choice(),
        *_public_recipes(),
        *_trainers(),
        *_foreign_configs(),
        *_sixty_questions(),
        *_time_truth(),
        *_time_plans(),
        *_chosen(),
        *_time_cpu(),
        *_verified(),
        *_plan_speed(),
        *_sandbox(),
        *_sampling_published(),
        *_evaluation(),
        *_rft_offline(),
        *_rft_smollm2(),
        *_code("code_offline", OFFLINE_CODE, ("validation loss", "code-syntax syntax", "bleu")),
        *_code("code_smollm2", PUBLISHED_CODE, tuple(CODE_METRICS)),
        *_moderation("moderation_offline", OFFLINE_ENCODER),
        *_moderation("moderation_minilm", PUBLISHED_ENCODER),
        *_classify_speed(),
        *_tuning_speed(),
        *_preferences_equal(),
        *_on_every_cpu("preferences_cpu", _preferences_speed),
        *_where_made("preferences_planned", _preferences_planned),
        *_where_made("preferences_planned_further", _preferences_timed),
        *_where_made("preferences_held_out", _preferences_held_out),
        *_preferences_learned(),
        *_rewards_learned(),
        *_on_every_cpu("rewards_cpu", _rewards_speed),
        *_where_made("rewards_planned", _rewards_planned),
        *_rewards_public(),
        *_where_made("model_types", _model_types),
        *_where_made("model_types_peaks", _peaks_of_types),
        *_where_made("model_type_plans", _plans_of_types),
        *_where_made("catalog_ids", _catalog_ids),
        *_where_made("published_2026", _published_2026),
        *_where_made("declared_jobs", _declared_jobs),
        *_where_made("memory_brim", _memory_brim),
        *_where_made("jobs_measured", _jobs),
    ]
    return "\n".join(
        [
            "| what | measured | command, record |",
            "| --- | --- | --- |",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


ABLATION_COLUMNS = {
    "validation loss": ("loss", "{:.3f}"),
    "validation loss at equal time": ("loss at equal time", "{:.3f}"),
    "perplexity per token": ("perplexity", "{:,.0f}"),
    "perplexity per word": ("per word", "{:,.0f}"),
    "bits per byte": ("bits/byte", "{:.3f}"),
    "gradient cosine with backprop": ("gradient cosine", "{:.2f}"),
    "attention cosine with softmax": ("attention cosine", "{:.3f}"),
    "orthogonality violation": ("violation", "{:.3g}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "peak_memory_bytes": ("peak memory", "{:.2f} GiB"),
}


def ablation() -> str:
    """The table of docs/okadfa.md: every variant of okadfa-ablation, means and 95 % intervals over
    seeds.
    """
    record, _ = _record("okadfa_ablation")
    rows = [
        f"| variant | {' | '.join(head for head, _ in ABLATION_COLUMNS.values())} |",
        f"| --- |{' --- |' * len(ABLATION_COLUMNS)}",
    ]
    for variant in record["comparison"]["variants"]:
        cells = [
            _told(variant["figures"].get(name), form, 2**30 if name.endswith("bytes") else 1)
            for name, (_, form) in ABLATION_COLUMNS.items()
        ]
        rows.append(f"| {variant['name']} | {' | '.join(cells)} |")
    return "\n".join(rows)


LIBRARIES = ("torch", "transformers", "peft", "tokenizers", "datasets", "numpy", "pydantic")


def environments() -> str:
    """Markdown rows: the environments that were made, libraries in them, and steps that passed."""
    record, _ = _record("environments")
    rows = [
        f"| environment | {' | '.join(LIBRARIES)} | steps that passed |",
        f"| --- |{' --- |' * (len(LIBRARIES) + 1)}",
    ]
    for tried in record["tried"]:
        versions = [tried["packages"].get(name, "") for name in LIBRARIES]
        steps = tried["steps"].values()
        passed = f"{sum(not step['problems'] for step in steps)} of {len(steps)}"
        rows.append(f"| {' | '.join([tried['name'], *versions, passed])} |")
    size = f"{record['wheel_bytes'] / 1e6:.1f} MB"
    return "\n".join([f"The wheel has {size}.", "", *rows])


def _told(figure: dict[str, Any] | None, form: str, unit: int) -> str:
    if figure is None:
        return ""
    value = form.format(figure["value"] / unit)
    if not figure["interval"]:
        return value
    low, high = (form.format(each / unit).removesuffix(" GiB") for each in figure["interval"])
    return f"{value} [{low}, {high}]"


def _record(name: str) -> tuple[dict[str, Any], str]:
    record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    command = record["command"].replace("|", r"\|")  # which would end a cell of the table
    return record, f"`{command}`, [record](../benchmarks/records/{name}.json)"


def _over(result: dict[str, Any], best: str) -> str:
    """How much faster than another library as it comes and at its best, which is named."""
    ratios = {"default": result["speed_over_default"], f"best ({best})": result["speed_over_best"]}
    return ", ".join(
        f"{ratio['median']:.2f}x its {what} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        for what, ratio in ratios.items()
    )


DEFAULT_TRAINER, FASTEST_TRAINER = "Trainer, default", "Trainer, bf16 + fused + compile"


def _on_every_cpu(
    name: str, row: Callable[[str], tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    """A row for each kind of CPU that a benchmark has a record of; a kind without one is named."""
    kinds, rows = {name + ending: kind for ending, kind in CPU_KINDS.items()}, []
    lacks = "".join(
        f"; no record of a CPU {kind} yet" for each, kind in kinds.items() if not _is_made(each)
    )
    for each, kind in kinds.items():
        if _is_made(each):
            what, measured, source = row(each)
            record, _ = _record(each)
            hidden = ", ".join(record.get("cpu", {}).get("hidden_by", ()))
            cpu = f"{record['device']} {kind}" + f" ({hidden})" * bool(hidden)
            rows.append((f"{what}; {cpu}", measured + lacks, source))
    return rows


def _where_made(
    name: str, row: Callable[[str], tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    """The row of a record; none where there is no record yet."""
    return [row(name)] if _is_made(name) else []


def _speed(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    ours, default = record["results"]["brimful"], record["results"][DEFAULT_TRAINER]
    peaks = {
        name: result["memory"]["peak_bytes"] / 2**30 for name, result in record["results"].items()
    }
    key = next(key for key in ours if key.startswith("loss_of_the_last"))
    loss = "equal loss"
    if not ours["valid"]:
        loss = f"loss NOT equal ({ours[key] / default[key] - 1:+.1%} after 53 steps)"
    precision, best = ours.get("precision", "bf16"), record.get("best_of_trainer", FASTEST_TRAINER)
    share = ours.get("share_of_matrix_rate", ours.get("share_of_bf16_matrix_rate"))
    told = "" if share is None else f" {share:.0%} of the core's {precision} matrix rate;"
    return (
        "Training step on a CPU, 16.9M parameters, one thread, beside transformers' Trainer",
        (
            f"{_over(ours, best.removeprefix('Trainer, '))}, n = {record['rounds']} rounds;{told}"
            f" {loss}; peak memory {peaks['brimful']:.2f} GiB beside {peaks[DEFAULT_TRAINER]:.2f}"
            f" and {peaks[best]:.2f}"
        ),
        source,
    )


def _nanogpt(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    timed, whole, best = record["timed"], record["whole"], record["over_the_best_of_nanogpt"]
    ratio, ms = timed["brimful"]["speed_over_nanogpt"], {}
    for each, result in timed.items():
        ms[each] = 1000 * result["step_s"]["median"]
    losses = ", ".join(f"{each} {result['loss']:.3f}" for each, result in whole.items())
    return (
        "nanoGPT's `shakespeare_char` as its README has it for a CPU: its own script beside the"
        f" recipe `shakespeare-char`, {record['contestant_threads']} threads, wall time",
        f"updates a second {ratio['median']:.2f}x nanoGPT's [{ratio['low']:.2f},"
        f" {ratio['high']:.2f}] ({ms['brimful']:.0f} and {ms['nanoGPT']:.0f} ms),"
        f" {best['median']:.2f}x its best ({best['best']}) [{best['low']:.2f},"
        f" {best['high']:.2f}], n = {record['pairs']} rounds; loss on the whole validation"
        f" split after {record['whole_updates']:,} updates: {losses}",
        source,
    )


def _is_made(name: str) -> bool:
    """Whether there is a record: some wait for an idle machine."""
    return (RECORDS / f"{name}.json").exists()


def _equal(results: Iterable[Mapping[str, Any]]) -> str:
    return "equal" if all(result["valid"] for result in results) else "NOT equal"


def _learned(name: str) -> list[tuple[str, str, str]]:
    record, source = _record(f"learn-{name}")
    score = record["scores"]["validation"]
    low, high = score["bits_per_byte_interval"]
    return [
        (
            (
                f"`{name}`, {record['parameters'] / 1e6:.1f}M parameters,"
                f" {record['plan']['threads']} CPU threads, whole validation split"
            ),
            (
                f"loss {score['loss']:.3f}, {score['bits_per_byte']:.3f} bits/byte [{low:.3f},"
                f" {high:.3f}], bigram {score['baselines']['bigram']['bits_per_byte']:.3f};"
                f" {_per_gpt2_token(record)}{record['updates']:,} updates in"
                f" {record['seconds_in_all'] / 60:.1f} min,"
                f" {1000 * record['median_step_time_s']:.0f} ms each"
            ),
            source,
        )
    ]


def _per_gpt2_token(record: dict[str, Any]) -> str:
    found = record.get("per_gpt2_token")
    return f"perplexity {found['perplexity']:.0f} per GPT-2 token; " if found else ""


def _killed() -> list[tuple[str, str, str]]:
    record, source = _record("kill")
    return [
        (
            f"SIGKILL at random moments and file operations ({', '.join(record['by_kind'])})",
            (
                f"{record['equal']} of {record['trials']} runs, {record['kills']} kills: weights,"
                " optimizer, metrics, scores, samples, exported model equal bit for bit"
            ),
            source,
        )
    ]


def _mirrored() -> list[tuple[str, str, str]]:
    record, source = _record("mirror_faults")
    faults = ", ".join(record["by_kind"])
    told = (
        f"{record['sound']} of {record['trials']} runs end bit for bit like the undisturbed one on"
        f" a new machine, from the newest point called durable; {record['sessions_killed']} of"
        f" {record['sessions']} sessions were killed (SIGKILL)"
    )
    drive, drive_source = _record("mirror_drive")
    on_drive = (
        f"{drive['sound']} of {drive['trials']} runs end bit for bit like the undisturbed one"
    )
    return [
        (f"A mirror with random faults ({faults})", told, source),
        (
            f"A mirror on a real file system that misbehaves ({', '.join(drive['by_fault'])})",
            on_drive,
            drive_source,
        ),
    ]


def _memory_pretrained() -> list[tuple[str, str, str]]:
    record, source = _record("memory_pretrained_cpu")
    rows = record["configurations"]
    sizes = sorted(row["parameters"] for row in rows)
    what = (
        f"Peak memory of tuning models of {sizes[0] / 1e6:.0f}M to {sizes[-1] / 1e6:.0f}M"
        " parameters on this CPU (LoRA, QLoRA, all weights, labels), two steps each, beside"
        " its plan; "
    )
    if "by_rows" not in record:
        found, all_of = record["held_out"], record["all"]
        return [
            (
                f"{what}configurations not looked at before",
                f"{_errors_of(found)}; with the {all_of['n'] - found['n']} that were looked at:"
                f" median {all_of['median_error_percent']} %, {all_of['inside']} of"
                f" {all_of['n']} inside",
                source,
            )
        ]
    seen = {"translation": " (not looked at before)"}
    return [
        (
            f"{what}by kind of rows",
            "; ".join(
                f"{kind}{seen.get(kind, '')}: {_errors_of(found)}"
                for kind, found in record["by_rows"].items()
            ),
            source,
        )
    ]


def _errors_of(found: Mapping[str, Any]) -> str:
    """Return count, errors and share inside of a summary."""
    return (
        f"{found['n']} runs: median error {found['median_error_percent']} %, worst"
        f" {found['largest_error_percent']} %, {found['inside']} inside the interval"
    )


def _memory_cpu(name: str, what: str) -> list[tuple[str, str, str]]:
    record, source = _record(name)
    errors = [abs(entry["error_percent"]) for entry in record["configurations"]]
    exact = sum(
        entry["predicted_bytes"] == entry["measured_bytes"] for entry in record["configurations"]
    )
    return [
        (
            (
                "Peak of live tensors, predicted beside the profiler's count of the same step on"
                " this CPU"
            ),
            (
                f"{len(errors)} configurations ({what}): worst {max(errors):.2f} %, median {statistics.median(errors):.4f} %, {exact} equal to"
                " the byte"
            ),
            source,
        )
    ]


def _memory_truth() -> list[tuple[str, str, str]]:
    record, source = _record("memory_truth")
    kinds = {
        "allocated": "Published peaks of allocated memory",
        "reserved": "Published peaks of reserved memory",
        "driver": "Published peaks as the driver shows them",
    }
    rows = []
    for kind, what in kinds.items():
        found = record["results"][f"{kind} | all"]
        told = (
            f"{found['rows']} rows, {found['settings']} settings: median error"
            f" {found['median_percent']} %, nine tenths within {found['ninetieth_percent']} %,"
            f" {found['inside_percent']} % inside our 90 % interval"
        )
        others = [
            f"{name} {peer['median_percent']} %"
            for name, peer in record["peers"].get(kind, {}).items()
        ]
        rows.append(
            (what, f"{told}; medians of others on the rows they take: {', '.join(others)}", source)
        )
    return rows


def _memory_parallel() -> list[tuple[str, str, str]]:
    record, source = _record("memory_parallel")
    kinds = {"allocated": "allocated memory", "driver": "memory as the driver shows it"}
    told = "; ".join(
        f"{what}: {found['rows']} rows, {found['settings']} settings, median error"
        f" {found['median_percent']} %, nine tenths within {found['ninetieth_percent']} %,"
        f" {found['inside_percent']} % inside our 90 % interval"
        for kind, what in kinds.items()
        for found in [record["results"][f"{kind} | all"]]
    )
    late = sum(
        count for reason, count in record["left_out"].items() if "not traced within" in reason
    )
    left_out = sum(record["left_out"].values())
    what = "Published peaks on several GPUs that hold a model in parts, nothing fitted to them"
    ended = ", ".join(f"{ending} {count}" for ending, count in record["verdicts"].items())
    rest = (
        f"{left_out} of {record['rows']} rows left out, {late} of them for want of time; verdicts on"
        f" rows that ran and that failed for want of memory: {ended}"
    )
    return [(what, f"{told}; {rest}", source)]


def _public_recipes() -> list[tuple[str, str, str]]:
    record, source = _record("public_recipes")
    told = [
        f"{found['right']} of {found['recipes']} that {words} are said {right}"
        for ends, words, right in (
            ("runs", "are documented to run", "to fit"),
            ("fails", "are documented to run out of memory", "not to fit"),
        )
        for found in [record["counts"][ends]]
    ]
    wrong = [
        f"{row['name']} ({row['verdict']})"
        for row in record["recipes"]
        if row["verdict"] != {"runs": "fits", "fails": "does not fit"}[row["ends"]]
    ]
    others = f"the others: {'; '.join(wrong)}" if wrong else "no other"
    what = "Public recipes with stated hardware, chosen before they were planned"
    return [(what, f"{'; '.join(told)}; {others}", source)]


def _time_plans() -> list[tuple[str, str, str]]:
    record, source = _record("time_plans")
    names = {
        "source left out": "figures fitted without the row's source",
        "gpu left out": "without its GPU",
        "as shipped": "as shipped, which has seen them",
    }
    told = "; ".join(
        f"{what}: median error {found['median_percent']} %, nine tenths within"
        f" {found['ninetieth_percent']} %, {found['inside_interval_percent']} % inside our 90 %"
        " interval"
        for name, what in names.items()
        for found in [record["results"][name]["all"]]
    )
    rows = record["results"]["as shipped"]["all"]["rows"]
    what = "Published step times on several GPUs, as plans for several devices compute them"
    return [(what, f"{rows} of {record['several_gpus_rows']} rows; {told}", source)]


def _allocator_snapshots() -> list[tuple[str, str, str]]:
    record, source = _record("allocator_snapshots")
    told = (
        f"{record['histories']} histories of {len(record['sources'])} public repositories: after"
        f" {record['same_reserved']:,} of {record['requests']:,} requests both had reserved the same"
        f" bytes; peaks off by at most {record['peak_error']['max']:.1%}"
    )
    what = "The model of torch's CUDA allocator beside what it did on GPUs that are not here"
    return [(what, told, source)]


def _time_truth() -> list[tuple[str, str, str]]:
    record, source = _record("time_truth")
    found = record["results"]["all"]["all"]
    told = "; ".join(
        f"{what}: median error {found[key]['median_percent']} %, nine tenths within"
        f" {found[key]['ninetieth_percent']} %"
        for what, key in (
            ("source left out of the fit", "source left out"),
            ("GPU left out", "gpu left out"),
        )
    )
    others = [
        f"{name} {peer['median_percent']} % ({peer['rows']} rows, ours"
        f" {peer['brimful_median_percent']} %)"
        for name, peer in record["peers"].items()
    ]
    beside = f"; medians of others on the rows they take: {', '.join(others)}" if others else ""
    shipped = record["shipped"]
    beside = (
        f"; as plans use it, on {shipped['rows']} rows of one GPU that the fit has seen: median"
        f" {shipped['median_percent']} %, {shipped['inside_interval_percent']} % inside{beside}"
    )
    what = (
        "Published step times on GPUs that are not here, predicted from data sheets and shares"
        " fitted on the other rows"
    )
    return [
        (
            what,
            (
                f"{found['rows']} rows; {told}; {found['inside_interval_percent']} % inside our 90"
                f" % interval{beside}"
            ),
            source,
        )
    ]


def _time_cpu() -> list[tuple[str, str, str]]:
    record, source = _record("time_cpu")
    errors = [abs(entry["error_percent"]) for entry in record["configurations"]]
    what = (
        "Time of a training step on this CPU after `brimful calibrate`, configurations it had not"
        " seen, CPU time of one thread"
    )
    return [
        (
            what,
            (
                f"{len(errors)} configurations: median error {statistics.median(errors):.1f} %,"
                f" worst {max(errors):.1f} %"
            ),
            source,
        )
    ]


def _ranks_equal() -> list[tuple[str, str, str]]:
    record, source = _record("ranks_equal")
    largest, compared = record["largest"], record["compared"]
    kinds = ", ".join(dict.fromkeys(each["kind"] for each in compared))
    return [
        (
            f"20 steps on 2 and 4 ranks, whole model on each or in parts, beside one process"
            f" ({kinds})",
            f"{len(compared)} comparisons: losses within {largest['loss']:.1e}, gradient norms"
            f" within {largest['grad_norm']:.1e} (relative, fp32)",
            source,
        )
    ]


def _ranks_killed() -> list[tuple[str, str, str]]:
    record, source = _record("several_devices")
    kills, changes = record["kills"], record["changes"]
    return [
        (
            "A rank, or all, killed or halted at a random point and the same command given again",
            f"{kills['equal']} of {kills['trials']} end bit for bit; with another number of ranks"
            f" {changes['same_tokens']} of {changes['trials']} train on the same sequences, losses"
            f" within {changes['largest_loss']:.1e}",
            source,
        )
    ]


def _ranks_traced() -> list[tuple[str, str, str]]:
    record, source = _record("ranks_traced")
    errors = [abs(run["error"]) for run in record["runs"]]
    return [
        (
            "Peak of live tensors of the first of 2 and 4 ranks that hold a model in parts, traced"
            " alone beside real ranks",
            f"{len(errors)} configurations: worst {max(errors):.1e}, median"
            f" {statistics.median(errors):.1e} (relative)",
            source,
        )
    ]


def _ranks_speed() -> list[tuple[str, str, str]]:
    record, source = _record("ranks_speed")
    told = ", ".join(
        f"{way} {ratio['median']:.2f}x [{ratio['min']:.2f}, {ratio['max']:.2f}]"
        for way, ratio in record["ratio_to_one_rank"].items()
    )
    return [
        (
            f"Tokens per second of two ranks beside one rank with two threads,"
            f" {record['parameters'] / 1e6:.0f}M parameters on two cores",
            f"{told}, n = {len(record['rounds'])} rounds (smallest, largest)",
            source,
        )
    ]


def _spread_choice() -> list[tuple[str, str, str]]:
    record, source = _record("spread_choice")
    summary = record["summary"]
    over = summary["over"]
    return [
        (
            "Chosen spread, recomputation and micro-batch beside every other way, under the same"
            " rates",
            f"{summary['planned']} random jobs and groups that fit: {over['within_3_percent']:.0%}"
            f" within 3 % of the quickest, worst {over['worst'] - 1:.1%}; in"
            f" {summary['cases'] - summary['planned']} more nothing surely fits",
            source,
        )
    ]


def _verified() -> list[tuple[str, str, str]]:
    record, source = _record("verify_steps")
    checks = [
        (result["precision"], check) for result in record["results"] for check in result["checks"]
    ]
    passed = sum(check["passed"] for _, check in checks)
    told = [
        f"{precision} gradient 1 - cosine at most"
        f" {max(check['difference'] for kind, check in checks if kind == precision and check['name'] == 'gradient direction'):.1e}"
        for precision in sorted({kind for kind, _ in checks})
    ]
    what = "One real step as planned beside the plainest one (fp32, one sequence, eager, unchunked)"
    return [
        (
            what,
            (
                f"{len(record['results'])} cases, {passed} of {len(checks)} checks within"
                f" tolerances from rounding; {', '.join(told)}"
            ),
            source,
        )
    ]


def _plan_speed() -> list[tuple[str, str, str]]:
    record, source = _record("plan_speed")
    told = "; ".join(
        f"{name}: " + ", ".join(_planned(kind, row) for kind, row in case.items())
        for name, case in record["results"].items()
    )
    return [
        (
            "CPU time and memory to plan, in a fresh process (in parentheses: before, wanted)",
            f"{told}; n = {record['rounds']}",
            source,
        )
    ]


def _planned(kind: str, row: dict[str, Any]) -> str:
    first = ""
    if "first_answer_s" in row:
        first = f", answer shown after {row['first_answer_s']['median']:.1f} s"
    return (
        f"{kind} {row['cpu_s']['median']:.2f} s ({row['before_cpu_s']}, {row['wanted_cpu_s']:g})"
        f"{first}, {row['memory_bytes']['median'] / 2**20:.0f} MiB"
    )


def _sandbox() -> list[tuple[str, str, str]]:
    record, source = _record("sandbox")
    speed, cheats = (
        record["speed"]["landlock"]["programs_per_s_a_core"],
        record["canary"]["landlock"],
    )
    references = ", ".join(
        f"{name} {record[key]['passed']}/{record[key]['n']}"
        for name, key in (("HumanEval", "humaneval"), ("MBPP", "mbpp"))
    )
    ruined = [
        each
        for key in ("humaneval", "mbpp", "mbpp_sanitized")
        for each in record[key]["corrupted"].values()
    ]
    passed = sum(len(each["passed"]) for each in ruined)
    return [
        (
            "Generated programs judged in the sandbox",
            (
                f"reference solutions that pass: {references}; ruined ones: {passed} of"
                f" {sum(each['n'] for each in ruined):,}; cheats: {len(cheats['passed'])} of"
                f" {cheats['n']}; {speed['median']:.0f} programs/s a core of CPU time"
            ),
            source,
        )
    ]


def _sampling_published() -> list[tuple[str, str, str]]:
    record, source = _record("sampling_published")
    results, work = record["results"], record["workload"]
    rows = []
    for name, result in results.items():
        if name != "brimful":
            over = result["brimful_over_it"]
            setting = f" ({result['setting']})" if result["setting"] else ""
            rows.append(
                f"{over['median']:.2f}x {name}{setting} [{over['low']:.2f}, {over['high']:.2f}]"
            )
    return [
        (
            (
                f"Sampling of {record['model']} on one core, bf16,"
                f" {work['prompts_a_round']} prompts a round x {work['samples_per_prompt']} samples"
                f" of {work['tokens_of_every_text']} tokens"
            ),
            (
                f"{results['brimful']['tokens_per_cpu_s']['median']:,.0f} tokens/s of CPU time;"
                f" {', '.join(rows)}; n = {record['rounds']} rounds; log-probabilities"
                f" {'equal' if all(each['valid'] for each in results.values()) else 'NOT equal'}"
            ),
            source,
        )
    ]


def _evaluation() -> list[tuple[str, str, str]]:
    record, source = _record("evaluation_cpu")
    results, rows = record["results"], []
    for name, result in results.items():
        if name != "brimful":
            over, beside = result["brimful_over_it"], result["beside_brimful_fp32"]
            rows.append(
                f"{over['median']:.2f}x {name} [{over['low']:.2f}, {over['high']:.2f}], whose"
                f" answers are those of brimful in fp32 in"
                f" {record['questions'] - beside['different']} of {record['questions']}"
            )
    return [
        (
            (
                f"HumanEval of {record['model']} on one core, end to end,"
                f" {record['questions']} questions, at most {record['most_tokens']} tokens"
            ),
            (
                f"{results['brimful']['tokens_per_cpu_s']['median']:,.0f} tokens judged a CPU"
                f" second; {'; '.join(rows)}; n = {record['rounds']} rounds"
            ),
            source,
        )
    ]


def _corrupted(name: str, among: str) -> list[tuple[str, str, str]]:
    record, source = _record(name)
    outcomes = Counter(record["outcomes"])
    told = (
        f"{record['n']:,} damages: {outcomes['same']:,} changed no answer, {outcomes['told']:,}"
        f" were told, {outcomes['repaired']:,} refused and repaired as the message advises;"
        f" {outcomes['refused']:,} refused without a way out, {outcomes['traceback']:,} tracebacks,"
        f" {outcomes['silent']:,} silent"
    )
    if mended := {(each["seed"], each["number"]) for each in record["bad_before_a_mend"]}:
        told += f" ({len(mended):,} ended badly at first, and were made again after a mend)"
    return [
        (
            f"One file of a run, mirror, study, chain of rounds or drawing damaged at random{among}",
            told,
            source,
        )
    ]


def _killed_sampling() -> list[tuple[str, str, str]]:
    record, source = _record("kill_sampling")
    outcome = "byte for byte that" if record["equal"] else "NOT that"
    told = (
        f"{record['kills']} kills among {record['samples']:,} samples: the final set is {outcome}"
        " of an undisturbed drawing"
    )
    return [("SIGKILL at random moments of drawing samples", told, source)]


def _rft_offline() -> list[tuple[str, str, str]]:
    what = (
        "`unit-rft-offline`: a 0.9M-parameter model pre-trained here, tuned on 100 demonstrations"
        " (sft) and on samples of its own that were verified (rft-1, rft-2), at equal training"
        " tokens; questions with unseen units or values"
    )
    return [_rounds("rft_offline", what, "unit-conversion")]


def _rft_smollm2() -> list[tuple[str, str, str]]:
    record, _ = _record("rft_smollm2")
    demonstrations = record["recipe"]["data"]["max_documents"]
    what = (
        f"`unit-rft-smollm2`: SmolLM2-135M-Instruct, tuned with LoRA on {demonstrations}"
        " demonstrations (sft) and on samples of its own that were verified (rft-1), at equal"
        " training tokens; unit questions that need products of small numbers, with unseen values"
    )
    third, its_source = _record("rft_smollm2_seed3")
    by_name = {each["name"]: each["figures"] for each in third["comparison"]["variants"]}
    words = "; ".join(
        f"{name} {_share(by_name['sft'][f'{task} accuracy'])} ->"
        f" {_share(by_name['rft-1'][f'{task} accuracy'])}"
        for name, task in (
            ("accuracy", "unit-conversion-small"),
            ("a course's own questions", "unit-conversion-guide"),
        )
    )
    what, values, source = _rounds("rft_smollm2", what, "unit-conversion-small")
    values += f"; a third seed by itself, intervals over questions: {words}"
    return [(what, values, f"{source}; third seed: {its_source}")]


def _rounds(name: str, what: str, task: str) -> tuple[str, str, str]:
    """Return the row of a chain's record.

    Args:
        name: Of the record.
        what: Models and questions.
        task: That says how many answers are right.
    """
    record, source = _record(name)
    variants = {each["name"]: each["figures"] for each in record["comparison"]["variants"]}

    def shown(metric: str) -> str:
        return "; ".join(
            f"{name} {_share(figures[metric])}"
            for name, figures in variants.items()
            if metric in figures
        )

    num_seeds = max(len(each["seeds"]) for each in record["comparison"]["variants"])
    first = record["rounds"][0]["statistics"]
    n = next(figures[f"{task} accuracy"]["n"] for figures in variants.values())
    values = (
        f"accuracy: {shown(f'{task} accuracy')}; answered: {shown(f'{task} answer_rate')}; a"
        f" course's own questions: {shown('unit-conversion-guide accuracy')}; n = {n} questions,"
        f" {num_seeds} seeds, intervals over seeds (base: over questions); first round"
        f" {first['correct']['share']:.1%} of {first['samples']:,} samples right,"
        f" {first['fates']['kept']:,} kept"
    )
    return what, values, source


def _share(figure: dict[str, Any]) -> str:
    if not figure["interval"]:
        return f"{figure['value']:.1%}"
    low, high = figure["interval"]
    return f"{figure['value']:.1%} [{low:.1%}, {high:.1%}]"


OFFLINE_ENCODER = (
    "`moderation-offline`: a 0.6M-parameter encoder pre-trained here on the task's training texts"
    " and tuned, beside a tuned bag of words with logistic regression (floor)"
)
PUBLISHED_ENCODER = (
    "`moderation-minilm`: all-MiniLM-L6-v2 of 22.7M parameters tuned for one epoch, beside the same"
    " bag of words (floor)"
)


def _moderation(name: str, what: str) -> list[tuple[str, str, str]]:
    record, source = _record(name)
    took = (
        f"one fold takes {record['alone']['wall_s'] / 60:.1f} min on 2 cores, pre-training included"
    )
    if "--one-at-a-time" in record["command"]:
        took = (
            f"one fold takes {record['alone']['cpu_s'] / 60:.1f} min of processor time, with one"
            " thread on a busy machine"
        )
    sms, sst2 = record["sms"], record["sst2"]

    def told(found: dict[str, Any], metric: str) -> str:
        return "; ".join(
            f"{who} {found[who][metric]['value']:.3f} [{found[who][metric]['low']:.3f},"
            f" {found[who][metric]['high']:.3f}]"
            for who in found
        )

    by_who = {
        who: {metric: sms[metric][who] for metric in ("f1", "pr_auc")}
        for who in ("model", "floor", "difference")
    }
    of_sst2 = {who: sst2[who] for who in ("model", "floor", "difference")}
    return [
        (
            what,
            (
                f"SMS Spam, {record['folds']} folds, {sms['messages']:,} messages ({sms['spam']}"
                f" spam) judged once each, repeats left out: F1 {told(by_who, 'f1')}; PR-AUC"
                f" {told(by_who, 'pr_auc')}; {took}. SST-2, {sst2['texts']:,} test sentences: F1"
                f" {told(of_sst2, 'f1')}; PR-AUC {told(of_sst2, 'pr_auc')}"
            ),
            source,
        )
    ]


CLASSIFIED = {"sst2": "SST-2's sentences", "sms": "SMS Spam's messages"}


def _classify_speed() -> list[tuple[str, str, str]]:
    record, source = _record("classify_cpu")
    return [
        _classified(name, found, record["rounds"], source) for name, found in record["data"].items()
    ]


def _classified(name: str, found: dict[str, Any], rounds: int, source: str) -> tuple[str, str, str]:
    results = found["results"]

    def over(contestant: str) -> str:
        """Beside another library as it comes, and at its best, which is named."""
        result = results[contestant]
        best = result["best_of_others"].partition(", ")[2]
        ratios = {"default": result["speed_over_default"], best: result["speed_over_best"]}
        return ", ".join(
            f"{ratio['ratio']:.2f}x its {what} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
            for what, ratio in ratios.items()
        )

    kept = next(each for each in results if each.endswith("memory kept"))
    trained = "; ".join(
        f"{each} {over(each)}" for each in results if each.partition(",")[0] == "brimful"
    )
    predicted = "; ".join(
        f"{each.removeprefix('brimful predict, ')} {over(each)}, probabilities off by at most"
        f" {results[each]['probability_off_by_at_most']:.0e}"
        for each in results
        if each.startswith("brimful predict")
    )
    theirs = next(each for each in results if each.startswith("pipeline") and "bf16" in each)
    tokens = found["tokens_at"]
    losses = {each: result for each, result in results.items() if "held_out_losses" in result}
    told = ", ".join(
        f"{each} {statistics.fmean(result['held_out_losses']):.3f}"
        for each, result in losses.items()
    )
    seeds = len(next(iter(losses.values()))["held_out_losses"])
    apart = [each for each, result in losses.items() if not result["valid"]]
    equal = f"; above what counts as equal: {'; '.join(apart)}" if apart else ""
    grouped = kept.removesuffix(", memory kept")
    return (
        (
            f"all-MiniLM-L6-v2 as a classifier of {CLASSIFIED[name]} on a CPU (median"
            f" {tokens['50%']} tokens, 99th percentile {tokens['99%']}), one thread, CPU time,"
            " beside transformers"
        ),
        (
            f"training beside Trainer: {trained}; {grouped} {over(grouped)}, with brimful's allocator"
            f" setting {over(kept)}; prediction beside pipeline: {predicted} ({theirs}: {over(theirs)},"
            f" off by {results[theirs]['probability_off_by_at_most']:.0e}); n = {rounds} rounds;"
            f" mean held-out loss of {seeds} seeds: {told}{equal}"
        ),
        source,
    )


OFFLINE_CODE = (
    "`code-offline`: a 4M-parameter model pre-trained and tuned here on Python's own library,"
    " held-out answers, one seed"
)
PUBLISHED_CODE = (
    "`code-smollm2-study`: SmolLM2-135M-Instruct on Python instructions, asked through its chat"
    " template; held-out answers, HumanEval and MBPP"
)
CODE_METRICS = {
    "validation loss": ("loss", "{:.2f}"),
    "code-syntax syntax": ("code that parses", "{:.0%}"),
    "bleu": ("BLEU", "{:.1f}"),
    "humaneval pass@1": ("HumanEval", "{:.1%}"),
    "mbpp pass@1": ("MBPP", "{:.1%}"),
}


def _code(name: str, what: str, metrics: tuple[str, ...]) -> list[tuple[str, str, str]]:
    record, source = _record(name)
    variants = {each["name"]: each["figures"] for each in record["comparison"]["variants"]}
    seeds = {each["name"]: len(each["seeds"]) for each in record["comparison"]["variants"]}

    def told(variant: str) -> str:
        parts = []
        for metric in metrics:
            (short, form), found = CODE_METRICS[metric], variants[variant][metric]
            value, low, high = map(form.format, (found["value"], *found["interval"]))
            parts.append(f"{short} {value} [{low}, {high}]")
        name = variant if seeds[variant] == 1 else f"{variant} ({seeds[variant]} seeds)"
        return f"{name}: {', '.join(parts)}"

    n = ", ".join(
        f"{variants['base'][metric]['n']} for {CODE_METRICS[metric][0]}" for metric in metrics
    )
    measured = f"{'; '.join(map(told, variants))}; n = {n}"
    if missing := record.get("missing"):
        measured += f"; not run yet: {', '.join(missing)}"
    return [(what, measured, source)]


TUNING = {
    "finetune_cpu": ("every weight of 16.9M", "brimful"),
    "finetune_cpu_published_lora": ("LoRA 16 of SmolLM2-135M", "brimful, not compiled"),
    "finetune_cpu_published_qlora": ("QLoRA 16, NF4, of SmolLM2-135M", "brimful, not compiled"),
    "finetune_cpu_published": ("every weight of SmolLM2-135M", "brimful, not compiled"),
}
"""Records of `finetune_cpu.py`: what is tuned, and the contestant of brimful's that counts."""


def _tuning_speed() -> list[tuple[str, str, str]]:
    return [row for name in TUNING for row in _on_every_cpu(name, _tuned_speed)]


def _tuned_speed(name: str) -> tuple[str, str, str]:
    of_any_cpu = name.removesuffix(WITHOUT_AMX).removesuffix(SLOW_BF16)
    (tuned, contestant), (record, source) = TUNING[of_any_cpu], _record(name)
    results = record["results"]
    ours, default = results[contestant], results["TRL, default"]
    peaks = {each: result["memory"]["peak_bytes"] / 2**30 for each, result in results.items()}
    small = f"{contestant}, one at a time"
    words = f"{peaks[contestant]:.1f} GiB"
    if small in results:
        speed = ours["useful_tokens_per_cpu_s"]["median"]
        share = results[small]["useful_tokens_per_cpu_s"]["median"] / speed
        words += f" ({peaks[small]:.1f} with passes of one example, at {share:.2f} of the speed)"
    best = ours["best_of_trl"]
    measured = (
        f"{_over(ours, best.removeprefix('TRL, '))}, n = {record['rounds']}"
        f" rounds; peak memory {words} beside {peaks['TRL, default']:.1f} and"
        f" {peaks[best]:.1f}; loss"
        f" {'equal' if ours['valid'] and default['valid'] else 'NOT equal'}"
    )
    if not results[best]["valid"]:
        apart = results[best]["held_out_loss"] / default["held_out_loss"] - 1
        measured += f" (but {best.removeprefix('TRL, ')}: held out {apart:+.1%})"
    missing = [each for each in record.get("not_run", ()) if each.startswith("TRL, ")]
    if missing:
        measured += f"; not run: {'; '.join(missing)}"
    uncompiled = ", both without compiling" * ("not compiled" in contestant)
    return (
        f"Tuning on instructions on a CPU ({tuned}{uncompiled}), useful tokens a second of CPU"
        " time, one thread, beside TRL's SFTTrainer",
        measured,
        source,
    )


def _preferences_equal() -> list[tuple[str, str, str]]:
    record, source = _record("preferences_trl")
    worst = [
        f"{words} {record['worst'][key]:.0e} ({record['worst_by_rounding'][key]:.0e}) and in doubles"
        f" {record['worst_in_doubles'][key]:.0e}"
        for key, words in (("loss", "loss"), ("rewards", "rewards"), ("gradient", "gradient"))
    ]
    variants = ", ".join(dict.fromkeys(row["variant"] for row in record["rows"]))
    return [
        (
            f"Losses of preferences ({variants}) beside TRL's trainers in fp32 and in doubles: LoRA and all weights"
            f" of {' and '.join(record['same_tokens'])}, packed and padded, any micro-batch",
            "largest relative difference from TRL, and in brackets TRL's from itself with another"
            f" kernel of attention: {'; '.join(worst)}",
            source,
        )
    ]


def _rewards_speed(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    found, best = record["results"], record["best_of_trl"]
    told = []
    by_default = f"by default ({found['brimful']['precision']})"
    for each, words in (("brimful", by_default), ("brimful, fp32", "in fp32")):
        if each not in found:
            continue
        ratios = [
            f"{ratio['median']:.2f}x its {whose} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
            for key, whose in (
                ("round_over_default", "default"),
                ("round_over_best", f"best ({best.removeprefix('TRL, ')})"),
            )
            for ratio in [found[each][key]]
        ]
        told.append(f"{words} {', '.join(ratios)}")
    peaks = [found[each]["memory"]["peak_bytes"] / 2**30 for each in ("brimful", best)]
    load = statistics.median(record["loads"])
    return (
        f"A round of GRPO (draw {record['answers_of_a_round']} answers of at most"
        f" {record['most_tokens']} tokens, verify, one update; about half of the answers are rewarded) with LoRA 16"
        " of SmolLM2-135M-Instruct on a CPU, CPU time, one thread, over TRL's GRPOTrainer with"
        " transformers' generation",
        f"{'; '.join(told)}; n = {record['rounds']} rounds at a load of {load:.0f}; peak memory"
        f" {peaks[0]:.1f} beside {peaks[1]:.1f} GiB",
        source,
    )


def _model_types(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    told = record["summary"]
    return (
        "Every type of causal model and encoder of transformers, from its config, four blocks: is a"
        " step recorded",
        f"{_answered(told)}; median {told['median_cpu_s']} CPU s, most {told['most_cpu_s']}, of one"
        " recording",
        source,
    )


def _answered(told: dict[str, Any]) -> str:
    """Return how many types of models were answered, and how many of the recent ones."""
    return (
        f"{told['answered']} of {told['types']}; of those from 2023 on {told['recent_answered']} of"
        f" {told['recent']}"
    )


def _peaks_of_types(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    told = record["summary"]
    errors = [
        abs(row[way]["error"]) for row in record["types"] for way in ("lora", "full") if way in row
    ]
    return (
        f"Peaks of {told['types']} of these types drawn at random, with adapters and in full,"
        " recorded, beside the profiler's count",
        f"{sum(error <= 0.001 for error in errors)} of {told['compared']} within 0.1 %, largest"
        f" error {100 * told['largest_error']:.1f} %",
        source,
    )


def _plans_of_types(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    told = record["summary"]
    taken = [each["cpu_s"] for each in record["types"] if "refused" not in each]
    within = ", ".join(
        f"{sum(each <= limit for each in taken)} within {limit} s" for limit in (5, MOST_COLD_S)
    )
    return (
        "The same types, planned with adapters (encoders: as classifiers) for an H200, each in a process of its own"
        " with an empty cache",
        f"{_answered(told)}; CPU time of the process, libraries included: median"
        f" {told['median_cpu_s']} s, most {told['most_cpu_s']}; {within}",
        source,
    )


def _published_2026(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    told = record["summary"]
    errors = ", ".join(
        f"{row['notebook']} {100 * row['error']:+.0f}" for row in record["rows"] if "error" in row
    )
    return (
        "Memory reserved by runs of models of 2025 and 2026 (Unsloth's notebooks), listed before"
        " they were planned; rows of full length are planned",
        f"{told['planned']} of {told['rows']} planned; median absolute error"
        f" {100 * told['median_absolute_error']:.0f} %, {told['too_small']} too small; errors in %:"
        f" {errors}",
        source,
    )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _declared_jobs(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    rows, inside = record["versions_known"], record["inside"]
    told = "; ".join(
        f"{group}: {row['rows']} rows, median error {row['median_percent']} %, nine tenths"
        f" {row['ninetieth_percent']}, inside {row['inside_left_out']} (high over low"
        f" {row['high_over_low']})"
        for group, row in {**rows, **record["one_unknown"]}.items()
    )
    return (
        "Memory that runs of other tools published, beside plans of their files; intervals widened by"
        " what holds nine tenths of all other sources",
        f"{inside['source_left_out']} of {inside['rows']} inside with their source left out,"
        f" {inside['shipped']} as shipped; verdicts on what ran:"
        f" {_counted(record['verdicts']['ran'])}, on what failed:"
        f" {_counted(record['verdicts']['failed'])}; {told}",
        source,
    )


def _jobs(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    every = [row for job in record["jobs"] for row in job["phases"] if row.get("measured_s")]
    known = [row for row in every if "value_s" in row]
    inside = sum(row["low_s"] <= row["measured_s"] <= row["high_s"] for row in known)
    totals = "; ".join(
        f"{job['system']} {job['phases'][-1]['value_s']:.0f} s planned,"
        f" {job['phases'][-1]['measured_s']:.0f} measured ({job['wall_s']:.0f} by the wall)"
        for job in record["jobs"]
    )
    return (
        f"Jobs of the five systems in small settings, planned before anything is trained;"
        f" {record['device']}",
        f"{inside} of {len(known)} phases and totals inside their intervals; {totals}; n = 1 each",
        source,
    )


def _catalog_ids(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    told = record["summary"]
    others = ", ".join(each["type"] for each in record["ids"] if "verdict" not in each)
    quick = sum(each["cpu_s"] <= MOST_COLD_S for each in record["ids"])
    return (
        "Hub ids as people type them, planned without a network, with adapters on an H200, each from"
        " an empty cache",
        f"{told['planned']} of {told['ids']}{f' (not {others})' * bool(others)}; CPU time of the process"
        f" {told['median_cpu_s']} s in the median, at most {told['most_cpu_s']};"
        f" {quick} within {MOST_COLD_S} s",
        source,
    )


def _memory_brim(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    told = record["summary"]
    kept = told.get("refused", 0) + told.get("stopped", 0)
    return (
        "Small jobs whose memory is limited (control groups) below what they or another process"
        " take",
        f"{kept} of {told['over']} refused by their plan ({told.get('refused', 0)}) or stopped"
        f" before it is used up, with a checkpoint ({told.get('stopped', 0)}); went on later:"
        f" {told['went_on']} of {told['asked_to_go_on']}",
        source,
    )


def _rewards_planned(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    errors = [
        [row["peaks"][phase]["error_percent"] for row in record["peaks"]]
        for phase in ("drawing", "scoring")
    ]
    (drawn, scored), sizes = errors, record["sizes"]
    phases = ("round", "sampling", "verifying", "scoring", "updating", "held_out")
    inside = [
        f"{phase.replace('_', ' ')} {sum(row['times'][phase]['inside'] for row in sizes)}"
        for phase in phases
    ]
    processes = sum(row["process"]["inside"] for row in sizes)
    return (
        f"Rounds of GRPO of {record['model']} on this CPU: peaks of drawing and scoring"
        f" ({record['layers_of_peaks']} layers), planned, beside the profiler's count, and CPU times"
        " of a round's phases beside the plan's intervals",
        f"{', '.join(row['configuration'] for row in record['peaks'])}: drawing {min(drawn):+.2f} to"
        f" {max(drawn):+.2f} %, scoring {min(scored):+.2f} to {max(scored):+.2f} %;"
        f" {', '.join(row['configuration'] for row in sizes)}: inside, of {len(sizes)}:"
        f" {', '.join(inside)}, memory of the process {processes}; not measured:"
        f" {len(record['not_measured'])} configurations",
        source,
    )


def _rewards_public() -> list[tuple[str, str, str]]:
    record, source = _record("rewards_public")
    rows = record["rows"]
    others = [
        f"{row['name']} ({row['ends']}, {row['verdict']})" for row in rows if not row["is_right"]
    ]
    what = "Public runs of GRPO on one GPU with stated hardware, listed before they were planned"
    told = f"{len(rows) - len(others)} of {len(rows)} verdicts right"
    return [(what, f"{told}; the others: {'; '.join(others) or 'none'}", source)]


def _preferences_speed(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    ours, default = record["results"]["brimful"], record["results"]["TRL, default"]
    peaks = [each["memory"]["peak_bytes"] / 2**30 for each in (ours, default)]
    load = statistics.median(record["loads"])
    return (
        f"DPO with LoRA 16 of SmolLM2-135M-Instruct on a CPU, {record['pairs_per_step']} pairs a"
        " step, pairs a second of CPU time in one epoch, one thread, beside TRL's DPOTrainer",
        f"{_over(ours, ours['best_of_trl'].removeprefix('TRL, '))}, n = {record['rounds']} rounds at"
        f" a load of {load:.0f}; peak memory {peaks[0]:.1f} beside {peaks[1]:.1f} GiB; loss"
        f" {'equal' if ours['valid'] else 'NOT equal'};"
        f" not run: {'; '.join(each.removeprefix('TRL, ') for each in record['not_run'])}",
        source,
    )


def _preferences_planned(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    rows = record["configurations"]
    errors, on_data = (
        max(abs(row[key]["error_percent"]) for row in rows) for key in ("full_rows", "longest_pass")
    )
    return (
        f"DPO of {record['model']} on this CPU: peak of its steps, planned, beside the profiler's"
        " count, and its step time beside the plan's interval (LoRA, NF4, all weights; padded,"
        " packed; reference in every pass, kept, none)",
        f"{len(rows)} configurations: largest error {errors:.3f} % on full rows, {on_data:.2f} %"
        f" on the longest pass of the data; {_beside_intervals(rows)}",
        source,
    )


def _preferences_timed(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    return (
        f"Step times of {record['model']} on this CPU beside the plan's interval, of lengths,"
        " batches, methods (DPO, KTO, demonstrations) and a seed that no constant was chosen on",
        _beside_intervals(record["configurations"]),
        source,
    )


def _beside_intervals(rows: Sequence[Any]) -> str:
    times = [row["step_time"] for row in rows]
    ratios = [each["measured"] / each["predicted"] for each in times]
    widths = [each["interval"][1] / each["interval"][0] for each in times]
    return (
        f"step time inside {sum(each['inside'] for each in times)} of {len(rows)} intervals, whose"
        f" ends are {min(widths):.1f} to {max(widths):.1f} times apart, measured over predicted"
        f" {min(ratios):.2f} to {max(ratios):.2f}"
    )


def _preferences_held_out(name: str) -> tuple[str, str, str]:
    record, source = _record(name)
    results = record["results"]
    names = [name for name in results[0] if isinstance(results[0][name], dict)]
    told = {name: [f"{each[name]['accuracy']:.3f}" for each in results] for name in names}
    accuracies = [f"{name} {', '.join(figures)}" for name, figures in told.items()]
    apart = max(
        abs(ours - theirs)
        for each in results
        for ours, theirs in zip(*(each[name]["losses"] for name in names), strict=True)
    )
    return (
        f"Pairs of SST-2 (a sentence judged as asked, and one judged the other way), learned by"
        f" DPO with LoRA 16 of SmolLM2-135M-Instruct in {len(results[0][names[0]]['losses']) + 1}"
        f" steps of {record['pairs_per_step']}, on the same token ids from the same adapters",
        f"{results[0]['held_out_pairs']} held-out pairs told: {'; '.join(accuracies)} (before"
        f" training the chosen sentence is likelier in {results[0]['likelier_before']:.0%});"
        f" losses of a step differ by at most {apart:.1e}; n = {len(results)} seed(s)",
        source,
    )


def _preferences_learned() -> list[tuple[str, str, str]]:
    record, source = _record("preferences_learned")
    variants = record["comparison"]["variants"]
    return [
        (
            "SmolLM2-135M-Instruct on unit conversion, first tuned on 60 worked demonstrations"
            " (sft), then on 32,000 tokens more: on the demonstrations (sft-longer), on its own"
            " right answers beside them (rft), on pairs of its answers (dpo), on single ones (kto)",
            f"held-out accuracy, 200 questions, mean and 95 % interval over"
            f" {len(variants[1]['seeds'])} seeds: {'; '.join(_accuracies(variants))}",
            source,
        )
    ]


_TENTHS = slice(10), slice(-10, None)


def _accuracies(variants: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{each['name'].removesuffix('-1')} {accuracy['value']:.1%}"
        f" [{accuracy['interval'][0]:.1%}, {accuracy['interval'][1]:.1%}]"
        for each in variants
        for accuracy in [each["figures"]["unit-conversion-small accuracy"]]
    ]


def _rewards_learned() -> list[tuple[str, str, str]]:
    record, source = _record("rewards_learned")
    variants = record["comparison"]["variants"]
    told = [
        f"{text}, n = {len(each['seeds'])}"
        for text, each in zip(_accuracies(variants), variants, strict=True)
    ]
    (pair,) = [
        each
        for each in record["comparison"]["pairs"]
        if (each["first"], each["second"]) == ("sft", "grpo")
        and each["metric"] == "unit-conversion-small accuracy"
    ]
    low, high = sorted(-end for end in pair["interval"])
    grpo = next(each for each in variants if each["name"] == "grpo")
    curves = [record["curves"][run] for run in grpo["runs"]]
    went = [
        f"{name} {statistics.mean(first):.2f} to {statistics.mean(last):.2f}"
        for name in ("reward", "entropy", "equal")
        for first, last in [
            [[each[name] for curve in curves for each in curve[part]] for part in _TENTHS]
        ]
    ]
    tried = [f"{name} {each:.1%}" for name, each in record["accuracy_by_setting"].items()]
    known = _record("preferences_learned")[0]["comparison"]["variants"]
    elsewhere = [each for each in known if each["name"] in {"rft", "dpo-1"}]
    return [
        (
            "SmolLM2-135M-Instruct on unit conversion, first tuned on 60 worked demonstrations"
            " (sft), then by GRPO on 1,600 answers of its own in 50 rounds of 8 x 4, as many as rft"
            " and dpo draw; its setting was chosen with seed 1",
            f"held-out accuracy, 420 questions, mean and 95 % interval over seeds:"
            f" {'; '.join(told)}. GRPO after sft on the same questions {-pair['difference']:+.1%}"
            f" [{low:+.1%}, {high:+.1%}]; means of its first and last ten rounds:"
            f" {', '.join(went)} (share of groups with equal rewards); tried with one seed: {'; '.join(tried)}."
            " The other methods as above, with 200 questions on another CPU:"
            f" {'; '.join(_accuracies(elsewhere))}",
            source,
        )
    ]


def _trainers() -> list[tuple[str, str, str]]:
    jobs, source = _record("trainer_jobs")
    errors = [abs(job["error_percent"]) for job in jobs["jobs"]]
    kinds = Counter(job["job"].partition(",")[0] for job in jobs["jobs"])
    return [
        (
            "Peak of another trainer's own steps on this CPU, predicted from its loop on tensors"
            " without values, beside the profiler's count",
            f"{len(errors)} jobs ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}): median"
            f" error {statistics.median(errors):.3f} %, worst {max(errors):.2f} %",
            source,
        ),
    ]


def _chosen() -> list[tuple[str, str, str]]:
    record, source = _record("chosen")
    numbers = {
        decides: ", ".join(f"{count} {how}" for how, count in counts.items())
        for decides, counts in record["free_parameters"].items()
    }
    inside = [
        f"{kind} bytes, {name}: {found['all']['rows']} rows,"
        f" {found['all']['inside_percent']:.0f} % inside, high over low"
        f" {found['all']['high_over_low_median']:.2f}"
        for kind in ("allocated", "reserved", "driver")
        for name, found in record["memory"][kind].items()
        if found["all"]["rows"]
    ]
    context = record["context"]["gpu_left_out"]
    norm = record["norm"]["source_left_out"]
    return [
        (
            "Numbers that predictions took from measurements or assume, and predictions on what"
            " they were not chosen on",
            f"memory: {numbers['memory']}; time: {numbers['time']}. {'; '.join(inside)}. What the"
            f" driver takes on a GPU left out: median {context['median_mib']} MiB off, worst"
            f" {abs(context['worst_mib'])}. Step times with the roofline's power chosen without the"
            f" source, too: median error {norm['median_percent']} %, nine tenths within"
            f" {norm['ninetieth_percent']} %",
            source,
        )
    ]


def _foreign_configs() -> list[tuple[str, str, str]]:
    record, source = _record("foreign_configs")
    found = record["summary"]
    planned = ", ".join(f"{tool} {count}" for tool, count in found["planned_by_tool"].items())
    return [
        (
            "Public configuration files of other tools, planned as they are",
            f"{found['files']} files in {found['rows']} rows: {found['planned']} planned"
            f" ({planned}), {found['refused']} refused, each with the key that decides",
            source,
        )
    ]


def _sixty_questions() -> list[tuple[str, str, str]]:
    record, source = _record("sixty_questions")
    verdicts = ", ".join(f"{name} {count}" for name, count in record["verdicts"].items())
    return [
        (
            "Questions about models of 135M to 70B, three methods, 14 devices and 1,024 to 32,768"
            f" tokens, {record['reports']} of them answered by public reports ([table](questions.md))",
            f"{record['questions']} questions: {verdicts}; {record['reports_right']} of"
            f" {record['reports']} verdicts agree with the report; high over low end of the"
            f" interval, median: memory {record['width_median']:.2f}, step time"
            f" {record['step_width_median']:.2f}",
            source,
        )
    ]


if __name__ == "__main__":
    main()
