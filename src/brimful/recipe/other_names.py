"""What other tools call brimful's keys and verbs, for the suggestion when one of them is typed."""

from brimful.base.types import Texts

_NAMES = {
    "model": "base_model model_name model_name_or_path model_id",
    "method": "finetune finetuning_type stage rl",
    "quantize": "load_in_4bit load_in_8bit quantization_bit quantize_base",
    "sequence_length": """max_length max_seq_length max_seq_len cutoff_len sequence_len
        block_size max_prompt_length""",
    "batch.sequences": """batch_size bs global_batch_size train_batch_size grad_accum
        gradient_accumulation_steps""",
    "training.epochs": "num_epochs num_train_epochs n_epochs",
    "training.steps": "max_steps max_iters num_steps",
    "adapter.rank": "lora lora_r lora_rank r use_peft",
    "adapter.alpha": "lora_alpha",
    "adapter.dropout": "lora_dropout",
    "adapter.targets": """lora_target lora_target_modules lora_target_linear target_modules
        lora_attn_modules apply_lora_to_mlp""",
    "adapter.dora": "use_dora peft_use_dora",
    "adapter.rslora": "use_rslora peft_use_rslora",
    "optimizer.kind": "optim use_muon",
    "optimizer.learning_rate": "lr",
    "optimizer.schedule": "lr_scheduler lr_scheduler_type",
    "optimizer.warmup": "warmup_ratio warmup_steps num_warmup_steps",
    "optimizer.clip_norm": "max_grad_norm clip_grad_norm grad_clip gradient_clipping",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_epsilon",
    "preference.loss": "pref_loss",
    "preference.beta": "rl_beta dpo_beta pref_beta orpo_alpha",
    "preference.label_smoothing": "dpo_label_smoothing",
    "preference.sft_weight": "cpo_alpha pref_ftx rpo_alpha loss_weights",
    "preference.margin": "simpo_gamma",
    "preference.desirable_weight": "kto_desirable_weight kto_chosen_weight",
    "preference.undesirable_weight": "kto_undesirable_weight kto_rejected_weight",
    "preference.reference": "precompute_ref_log_probs ref_model rl_adapter_ref_model",
    "rewards.samples_per_prompt": "num_generations grpo_samples",
    "rewards.max_new_tokens": "max_completion_length max_generated_tokens",
    "rewards.batches": "steps_per_generation generation_batch_size",
    "data.path": "dataset datasets dataset_name dataset_path data_path train_file source",
    "data.splits": "dataset_train_split",
    "data.loss_on": """train_on_inputs train_on_input train_on_prompt assistant_only_loss
        completion_only_loss""",
    "data.validation": "val_size val_set_size validation_file eval_dataset",
    "plan.micro_batch": "micro_batch_size per_device_train_batch_size",
    "plan.recompute": """gradient_checkpointing activation_checkpointing use_reentrant_gc
        enable_activation_checkpointing disable_gradient_checkpointing""",
    "plan.offload": "activation_offloading enable_activation_offloading use_unsloth_gc",
    "plan.attention": """attn_implementation flash_attn flash_attention sdp_attention
        eager_attention use_flash_attention_2""",
    "plan.precision": "bf16 fp16 dtype torch_dtype bfloat16 float16 pure_bf16",
    "plan.sampling": "use_vllm",
    "plan.packing": "sample_packing neat_packing packed dpo_padding_free",
    "plan.spread": "deepspeed fsdp fsdp_config custom_sharded_layers data_parallel_shard_dim",
    "evaluation.every": "eval_steps eval_interval",
    "checkpoint.every": "save_steps save_interval",
    "run.folder": "output_dir out_dir",
    "run.name": "run_name",
    "run.loggers": "report_to",
}
OTHER_NAMES: Texts = {name: key for key, names in _NAMES.items() for name in names.split()}
"""Name of another tool's -> brimful's dotted key."""
OTHER_VERBS: Texts = {
    "finetune": "train",
    "fine-tune": "train",
    "tune": "train",
    "sft": "train",
    "dpo": "train",
    "pretrain": "train",
    "fit": "plan",
    "estimate": "plan",
    "eval": "evaluate",
    "chat": "generate",
    "infer": "generate",
    "inference": "generate",
    "merge": "export",
    "push": "export",
    "convert": "export",
    "webui": "studio",
    "ui": "studio",
    "list": "runs",
    "ls": "runs",
}
"""Verb of another tool's -> brimful's."""
