"""Train a small GPT-2 from nothing with Transformers' Trainer, whose workers exchange under a policy of your choice.

    python examples/transformers_bytes.py
    plesio run --workers 2 examples/transformers_bytes.py --policy ssp:4

The text is the source of this Python's own `json` module, byte by byte: nothing is downloaded.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from plesio.integrations.transformers import PlesioTrainer

CONTEXT = 32


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Pieces of a text, each byte a token."""

    def __init__(self, text: bytes) -> None:
        tokens = torch.tensor(list(text[: len(text) // CONTEXT * CONTEXT]))
        self._pieces = tokens.view(-1, CONTEXT)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._pieces[index], "labels": self._pieces[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT-2 with Transformers.")
    parser.add_argument("--policy", default="bsp", help="as `plesio list policies` lists them (default: bsp)")
    parser.add_argument("--epochs", type=float, default=3, help="passes over the data (default: 3)")
    arguments = parser.parse_args()

    set_seed(0)
    text = b"".join(path.read_bytes() for path in sorted(Path(json.__file__).parent.glob("*.py")))
    config = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, bos_token_id=0)
    config.eos_token_id = 0
    with tempfile.TemporaryDirectory() as folder:
        trainer = PlesioTrainer(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                folder,
                use_cpu=True,
                num_train_epochs=arguments.epochs,
                per_device_train_batch_size=16,
                learning_rate=3e-3,
                average_tokens_across_devices=False,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Windows(text[:-4096]),
            eval_dataset=Windows(text[-4096:]),
            policy=arguments.policy,
        )
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        if trainer.is_world_process_zero():
            print(f"perplexity per byte {torch.tensor(loss).exp():.1f}")
        trainer.end()


if __name__ == "__main__":
    main()
