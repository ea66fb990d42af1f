"""A recipe in a few words, with all changes; its description tells what it was made for."""

from brimful.recipe.sections import Recipe


def summary_of(recipe: Recipe) -> str:
    """`LoRA of rank 16 on google/gemma-2-2b, 16 x 768 tokens a step`."""
    batch = f"{recipe.effective_batch:,} x {recipe.sequence_length:,} tokens a step"
    if not isinstance(recipe.model, str):
        model = recipe.model
        shape = f"{model.layers} layers, {model.width} wide"
        return f"a fresh {model.architecture} model ({shape}), {batch}"
    training = "continued pre-training of"
    if recipe.adapter is not None:
        name = "QLoRA" if recipe.quantize == "nf4" else "LoRA"
        training = f"{name} of rank {recipe.adapter.rank} on"
    elif recipe.kind.gives_labels:
        training = "classifier on"
    elif recipe.kind.answers_prompts:
        training = "full fine-tuning of"
    return f"{training} {recipe.model}, {batch}"
