"""Makes LoRA adapters of ``builtin:tiny`` with PEFT, and PEFT's own answers; ``make check-adapters`` compares vLLM's.

It runs in vLLM's environment, with PEFT on the import path: ``peft_adapters.py MODEL FOLDER NUMBER TOKENS``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROMPT = "A boat is long when "
MODULES = ["q_proj", "v_proj", "o_proj", "down_proj"]


def main(model: str, folder: str, number: str, tokens: str) -> None:
    """Write ``ad0``, ``ad1`` …, and ``answers.json``: the token ids of the prompt, and of each greedy answer."""
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # without vLLM's overlay, it cannot be loaded
    import transformers.utils.import_utils as available

    available._torchvision_available = False
    from transformers import AutoTokenizer

    prompt = AutoTokenizer.from_pretrained(model)(PROMPT, return_tensors="pt")
    place = Path(folder)
    answers = {f"ad{at}": _answer(model, place / f"ad{at}", at, prompt, int(tokens)) for at in range(int(number))}
    (place / "answers.json").write_text(json.dumps({"prompt": prompt.input_ids[0].tolist(), "answers": answers}))


def _answer(model: str, folder: Path, seed: int, prompt: Any, tokens: int) -> list[int]:
    """Save an adapter of random weights, load it as its user would, and generate with it."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=MODULES, init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), config).save_pretrained(folder)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(plain, folder)
    found = adapted.generate(**prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return [int(token) for token in found[0][prompt.input_ids.shape[1] :]]


if __name__ == "__main__":
    main(*sys.argv[1:])
