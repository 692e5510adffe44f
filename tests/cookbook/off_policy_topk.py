"""Off-policy top-k distillation through the cookbook's library, which has no command of its own for small data.

python off_policy_topk.py log_path=DIR teacher=tinker://... chats=FILE [max_steps=4]
"""

from __future__ import annotations

import asyncio
import sys

from tinker_cookbook.distillation.datasets import TeacherConfig
from tinker_cookbook.distillation.train_off_policy import Config, DatasetWithTeacher, main
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

MODEL, RENDERER, BATCH = "Qwen/Qwen3.5-9B-Base", "role_colon", 16


def config(log_path: str, teacher: str, chats: str, max_steps: str = "4") -> Config:
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name=RENDERER, max_length=512, batch_size=BATCH, train_on_what=None
    )
    pair = DatasetWithTeacher(
        dataset_builder=FromConversationFileBuilder(common_config=common, file_path=chats),
        teacher_config=TeacherConfig(base_model=MODEL, load_checkpoint_path=teacher),
    )
    return Config(
        learning_rate=3e-3, dataset_configs=[pair], model_name=MODEL, recipe_name="off_policy_topk", lora_rank=16,
        renderer_name=RENDERER, n_teacher_targets=8, batch_size=BATCH, log_path=log_path, max_steps=int(max_steps),
        save_every=0, eval_every=0,
    )  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(config(**dict(argument.split("=", 1) for argument in sys.argv[1:]))))
