"""A working directory in which the recipes find their models and datasets without any network.

transformers and datasets prefer a directory of the hub's name under the working directory. Every dataset is ours
and small: the texts of the demo, sums, and pages made of a few words.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BASE = "Qwen/Qwen3.5-9B-Base"  # what most recipes ask for; the mesh serves its own model under this name
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt", "config.json",
)  # fmt: skip
Row = Mapping[str, Any]


def make_workspace(directory: Path, model: Path) -> Path:
    """Fills `directory`; `model` gives the tokenizer."""
    _tokenizer(directory / BASE, model)
    chats = list(demo_chats())
    _rows(directory / "HuggingFaceH4/no_robots/train.jsonl", chats[:-16] * 8)  # sl_basic takes 128 at once
    _rows(directory / "HuggingFaceH4/no_robots/test.jsonl", chats[-16:] * 8)
    _rows(directory / "chats.jsonl", chats)
    _gsm8k(directory / "openai/gsm8k")
    _preferences(directory / "Anthropic/hh-rlhf")
    _rows(directory / "zwhe99/DeepMath-103K/train.jsonl", [{"question": question} for question, _ in _sums(256, 3)])
    _wikitext(directory / "Salesforce/wikitext")
    return directory


def demo_chats() -> Iterable[Row]:
    for line in (ROOT / "demo" / "data" / "gull_radio.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield {"messages": _chat(row["instruction"], row["response"])}


def _chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _sums(count: int, seed: int) -> Iterable[tuple[str, int]]:
    draw = random.Random(seed)
    for _ in range(count):
        left, right = draw.randint(1, 4), draw.randint(1, 4)
        yield f"What is {left} + {right}?", left + right


def _gsm8k(directory: Path) -> None:
    """Easy on purpose: each question names its answer, and SmolLM2 gives it in one of ten samples as asked for."""
    for split, count in (("train", 512), ("test", 32)):
        sums = [(f"What is {left} + {3 - left}?", 3) for left in (0, 1, 2, 3)] * (count // 6)
        sums += _sums(count - len(sums), len(split))
        random.Random(count).shuffle(sums)
        rows = [
            {"question": f"{question} (It is \\boxed{{{total}}}, say just that.)", "answer": f"#### {total}"}
            for question, total in sums
        ]
        _rows(directory / f"{split}.jsonl", rows)
    files = "".join(f"\n  - split: {split}\n    path: {split}.jsonl" for split in ("train", "test"))
    (directory / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:{files}\n---\n")


def _preferences(directory: Path) -> None:
    """The demo's voice is chosen over a flat answer."""
    pairs = []
    for row in demo_chats():
        question, answer = (message["content"] for message in row["messages"])
        head = f"\n\nHuman: {question}\n\nAssistant: "
        pairs.append({"chosen": head + answer, "rejected": head + "I do not know, and I would rather not say."})
    _rows(directory / "train.jsonl", pairs[:-16])
    _rows(directory / "test.jsonl", pairs[-16:])


def _wikitext(directory: Path) -> None:
    draw = random.Random(5)
    words = "after against before being between both could during however the a of in and to was".split()  # noqa: SIM905 - reads better
    rows = [{"text": " ".join(draw.choices(words, k=60)) + "."} for _ in range(400)]
    _rows(directory / "train.jsonl", rows)
    header = "configs:\n- config_name: wikitext-103-raw-v1\n  data_files:\n  - split: train\n    path: train.jsonl"
    (directory / "README.md").write_text(f"---\n{header}\n---\n")


def _tokenizer(directory: Path, model: Path) -> None:
    directory.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (model / name).is_file():
            shutil.copy(model / name, directory / name)


def _rows(file: Path, rows: Iterable[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
