"""What is asked of a back end, and what it gives back."""

from brimful.generation.engine import Engine
from brimful.generation.requests import Backend, Generation, Request, StopRules


def test_the_engine_is_a_back_end() -> None:
    def taken(backend: type[Backend]) -> type[Backend]:
        return backend

    assert taken(Engine).stream is Engine.stream


def test_results_without_log_probabilities_and_rules_without_stop_texts_are_the_rule() -> None:
    assert Generation([1], "length").logprobs is None
    assert StopRules(frozenset({0})).texts == ()
    assert Request(0, (1,), 0, 1) == Request(key=0, prompt_ids=(1,), seed=0, max_new_tokens=1)
