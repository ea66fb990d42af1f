"""vLLM, an extra: paged attention and CUDA graphs on a GPU. It loads the model itself, by hub id or
folder.

Written against vllm 0.33 (entrypoints/llm.py, sampling_params.py, v1/engine/llm_engine.py,
v1/sample/sampler.py); it needs a GPU, so what runs here without one is its refusals and the
translation of settings.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.rundir import read_json
from brimful.generation.requests import Finish, Generation, Request, StopRules
from brimful.generation.sampler import SamplingSettings
from brimful.model.published import is_adapter_folder
from brimful.planning.kv_cache import GPU_ROWS

FREE_SHARE = 0.9
"""Share of the GPU's free memory; vLLM takes its share of the whole at once."""
ADAPTER = "brimful"


class VllmEngine:
    """Writes texts with vLLM; a `Backend`.

    Args:
        source: Hub id or folder of the weights, or a folder of LoRA adapters, whose base is loaded
            too.
        device: Where they go; a GPU.
        dtype: Type of the weights.
        most_rows: Texts at the same time; None: as many as our engine on a GPU.

    Raises:
        RequestError: vLLM is not installed, or the device is no CUDA GPU.
    """

    def __init__(
        self, source: str, *, device: torch.device, dtype: torch.dtype, most_rows: int | None = None
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise RequestError(
                "plan.sampling=vllm needs vLLM, which is not installed. Use"
                f" plan.sampling=brimful, or install it. {how_to_install('vllm')}"
            )
        if device.type != "cuda":
            raise RequestError(
                f"vLLM writes on CUDA GPUs only, and the model is on {device}. Use"
                " plan.sampling=brimful."
            )
        self._vllm: Any = importlib.import_module("vllm")
        self._rows = most_rows or GPU_ROWS
        base, adapter = base_and_adapter(source)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        more: dict[str, Any] = {}
        if adapter is not None:
            rank = int(read_json(adapter / "adapter_config.json")["r"])
            more = {"enable_lora": True, "max_lora_rank": rank}
        self._llm = self._vllm.LLM(
            base,
            dtype=str(dtype).removeprefix("torch."),
            max_num_seqs=self._rows,
            gpu_memory_utilization=FREE_SHARE * free_bytes / total_bytes,
            **more,
        )
        lora: Any = importlib.import_module("vllm.lora.request")
        self._adapter = None if adapter is None else lora.LoRARequest(ADAPTER, 1, str(adapter))

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
                    check_room(request, int(self._llm.model_config.max_model_len))
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
                for written in engine.step():
                    if written.finished:
                        yield (
                            running.pop(written.request_id),
                            generation_of(written.outputs[0], logprobs=logprobs),
                        )
        finally:
            if running:
                engine.abort_request([*running])


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


def check_room(request: Request, context: int) -> None:
    """Refuse a text that vLLM would cut.

    Raises:
        RequestError: prompt and new tokens are more than the context.
    """
    if len(request.prompt_ids) + request.max_new_tokens > context:
        raise RequestError(
            f"prompt {request.key} has {len(request.prompt_ids)} tokens; with"
            f" {request.max_new_tokens} new ones that is more than the {context} that vLLM reads."
            " Shorten either, or use plan.sampling=brimful, which goes on from the text's last"
            " half."
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


def generation_of(output: Any, *, logprobs: bool) -> Generation:
    """Return a text from vLLM's CompletionOutput; its logprobs are the model's own (`logprobs_mode`
    raw_logprobs, its default).
    """
    token_ids, finish = list(output.token_ids), _finish_of(output)
    if finish == "end_of_text":
        del token_ids[-1:]
    if not logprobs:
        return Generation(token_ids, finish)
    by_position = zip(output.logprobs, token_ids, strict=False)
    return Generation(token_ids, finish, [known[token].logprob for known, token in by_position])


def _finish_of(output: Any) -> Finish:
    if output.finish_reason != "stop":
        return "length"
    return "end_of_text" if isinstance(output.stop_reason, int) else "stop"
