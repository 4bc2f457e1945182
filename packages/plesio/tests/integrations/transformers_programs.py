"""Training with Transformers; here, because worker processes import it by name."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from plesio.core.results import read_results
from plesio.integrations.transformers import PlesioTrainer
from support.frameworks import lines_of

VOCABULARY = 32


class Texts(Dataset[dict[str, Any]]):
    """Sequences of tokens that count up from a random one; the label says whether that is even."""

    def __init__(self, number: int, *, seed: int, causal: bool) -> None:
        starts = torch.randint(VOCABULARY, (number,), generator=torch.Generator().manual_seed(seed))
        self.tokens = (starts[:, None] + torch.arange(8)) % VOCABULARY
        self.causal = causal

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": tokens.clone() if self.causal else int(tokens[0]) % 2}


def model_of(task: str) -> PreTrainedModel:
    set_seed(5)
    if task == "classification":
        small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **small)
        return BertForSequenceClassification(config)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0)
    config.eos_token_id = 0
    model = GPT2LMHeadModel(config)
    return get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"])) if task == "lora" else model


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


def trainer_of(task: str, policy: str, folder: Path, **arguments: Any) -> Trainer:
    causal = task != "classification"
    settings = TrainingArguments(
        **{
            "output_dir": str(folder),
            "num_train_epochs": 3,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "learning_rate": 0.01,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 2,
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "logging_steps": 4,
            "report_to": "none",
            "disable_tqdm": True,
            # the graph of the forward pass has no parameters then
            "gradient_checkpointing": task == "causal",
            "gradient_checkpointing_kwargs": {"use_reentrant": True},
        }
        | arguments
    )
    parts = {
        "model": model_of(task),
        "args": settings,
        "train_dataset": Texts(58, seed=0, causal=causal),
        "eval_dataset": Texts(21, seed=1, causal=causal),
        "compute_metrics": None if causal else accuracy,
    }
    return Trainer(**parts) if policy == "ddp" else PlesioTrainer(policy=policy, trace=folder / "trace", **parts)


def values(model: torch.nn.Module) -> list[float]:
    return [value for p in model.parameters() if p.requires_grad for value in p.detach().flatten().tolist()]


def told(trainer: Trainer, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if key in row]


def trained(*, task: str, policies: list[str], folder: str) -> dict[str, Any]:
    """Train under each policy, and by the trainer's own DDP."""
    found = {}
    for policy in policies:
        trainer = trainer_of(task, policy, Path(folder) / policy.replace(":", ""))
        trainer.train()
        found[policy] = {
            "losses": told(trainer, "eval_loss"),
            "eval_accuracy": told(trainer, "eval_accuracy"),
            "norms": told(trainer, "grad_norm"),
            "rates": told(trainer, "learning_rate"),
            "steps": trainer.state.global_step,
            "after": trainer.evaluate()["eval_loss"],
            "values": values(trainer.model),
        }
        if policy != "ddp" and trainer.is_world_process_zero():
            (result,) = read_results(Path(trainer.args.output_dir) / "trace" / "results.json")
            counts = {"steps": result.steps, "samples": result.samples, "status": result.status}
            found[policy]["results"] = counts | {"fallbacks": result.fallbacks}
    return found


def resumed(*, policy: str, folder: str, task: str = "causal") -> dict[str, Any]:
    """Save in the middle, load the best model at the end, and go on from what was saved in a second run."""
    saves = {"save_strategy": "steps", "save_steps": 8, "eval_strategy": "steps", "eval_steps": 8}
    straight = trainer_of(task, policy, Path(folder), load_best_model_at_end=True, **saves)
    straight.train()
    best, best_loss = straight.state.best_model_checkpoint, straight.evaluate()["eval_loss"]
    straight.end()  # another trainer may follow
    again = trainer_of(task, policy, Path(folder), save_strategy="no", eval_strategy="no")
    again.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-8"))
    plain = trainer_of(task, policy, Path(folder) / "plain", **saves)
    plain.train()
    return {
        "best": Path(best).name,
        "best_loss": best_loss,
        "losses": told(straight, "eval_loss"),
        "steps": again.state.global_step,
        "again": values(again.model),
        "plain": values(plain.model),
    }


def refused() -> dict[str, str]:
    folder = Path(tempfile.gettempdir())  # nothing is written
    return lines_of(
        {
            "fsdp": lambda: trainer_of("causal", "fsdp", folder),
            "buffers": lambda: trainer_of("causal", "bsp", folder, ddp_broadcast_buffers=False),
        }
    )
