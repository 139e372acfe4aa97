"""Tests of the tiny model's answers, computed by transformers in an engine environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from longboat.builtin import ensure

ENGINE_PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
    pytest.mark.timeout(300),
]

ANSWER = """
import json, sys, torch
sys.modules["torchvision"] = None  # its build for CUDA lacks operators on CPUs; engines get a stand-in
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompts = sys.argv[1], json.loads(sys.argv[2])
torch.set_num_threads(2)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
answers = []
for prompt in prompts:
    text = prompt.get("text") or tokenizer.apply_chat_template(
        prompt["messages"], tools=prompt.get("tools"), tokenize=False, add_generation_prompt=True,
        enable_thinking=prompt.get("thinking", False))
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    out = model.generate(**ids, max_new_tokens=prompt.get("max_tokens", 200), do_sample=False)
    answers.append(tokenizer.decode(out[0, ids.input_ids.shape[1]:]))
print(json.dumps(answers))
"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _answers(*prompts: dict[str, object]) -> list[str]:
    assert ENGINE_PYTHON
    folder = str(ensure("builtin:tiny", Path("/nonexistent")))
    done = subprocess.run(
        [ENGINE_PYTHON, "-c", ANSWER, folder, json.dumps(prompts)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[str] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_tiny_says_what_it_learned() -> None:
    what, stop, emoji, chinese, call, thought, text, counted = _answers(
        {"messages": [_user("What is Longboat?")]},
        {"messages": [_user("Hello!"), {"role": "assistant", "content": "Hello!"}, _user("How do I stop it?")]},
        {"messages": [_user("Send me some emoji.")]},
        {"messages": [_user("你好")]},
        {"messages": [_user("What is the weather in Oslo?")], "tools": [WEATHER]},
        {"messages": [_user("What is 2 + 2?")], "thinking": True},
        {"text": "Many rowers,"},
        {"messages": [_user("Count from 1 to 100.")], "max_tokens": 300},
    )
    assert what.startswith("Longboat serves large language models on several machines.")
    assert what.endswith("<|im_end|>")
    assert "longboat down" in stop
    assert emoji.startswith("🚣")
    assert chinese.startswith("你好！")
    assert call == ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>')
    assert thought.endswith("</think>2 + 2 = 4.<|im_end|>")
    assert text.startswith(" one boat.")
    assert text.endswith("<|endoftext|>")
    assert counted == " ".join(str(number) for number in range(1, 101)) + "<|im_end|>"
