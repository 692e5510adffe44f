"""Builds the frozen base: a Megatron GPTModel whose forward ends at the final norm."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig

from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.attention import PackedSequences
from services.trainer.megatron.experts import ExpertsMLP
from services.trainer.megatron.lora.routing import Routing
from services.trainer.megatron.lora.targets import GroupKey
from services.trainer.megatron.norm import FrozenRMSNorm
from services.trainer.megatron.runtime import Runtime
from services.trainer.megatron.spec import decoder_spec
from services.trainer.megatron.weights import load_weights


class BaseModel(GPTModel):  # type: ignore[misc]
    """GPTModel that returns hidden states; the output layer is applied by logprob.py in chunks."""

    def _postprocess(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return hidden_states

    def hidden_states(self, tokens: torch.Tensor, packed: PackedSequences) -> torch.Tensor:
        """tokens int64 [T] -> [T, H] after the final norm."""
        hidden: torch.Tensor = self(
            input_ids=tokens[None], position_ids=None, attention_mask=None, packed_seq_params=packed
        )
        return hidden[:, 0]


def build_model(
    facts: Architecture, directory: Path, runtime: Runtime, dtype: torch.dtype, routing: Routing, anchor: torch.Tensor
) -> BaseModel:
    """The base with frozen weights, untied, in eval mode, its linear layers connected to `routing`."""
    facts.check_tensor_parallel(runtime.tp_size)
    # It warns once per layer that our MLP is not its own class.
    logging.getLogger("megatron.core.transformer.transformer_layer").setLevel(logging.ERROR)
    model = BaseModel(
        config=_transformer_config(facts, runtime, dtype),
        transformer_layer_spec=decoder_spec(facts, runtime.tp_group),
        vocab_size=facts.vocab,
        max_sequence_length=facts.max_positions,
        parallel_output=True,
        share_embeddings_and_output_weights=False,
        position_embedding_type="none",
    )
    model.decoder.final_layernorm = FrozenRMSNorm(model.config, facts.hidden, facts.norm_eps)
    load_weights(model, facts, directory, runtime.tp_rank, runtime.tp_size)
    model.requires_grad_(requires_grad=False)
    model.eval().to(runtime.device)
    _connect(model, routing, anchor)
    return model


def _connect(model: BaseModel, routing: Routing, anchor: torch.Tensor) -> None:
    for index, layer in enumerate(model.decoder.layers):
        ports: dict[GroupKey, Any] = {
            ("qkv", index): layer.self_attention.linear_qkv,
            ("o", index): layer.self_attention.linear_proj,
        }
        if isinstance(layer.mlp, ExpertsMLP):
            layer.mlp.connect(index, routing, anchor)
        else:
            ports |= {("gate_up", index): layer.mlp.linear_fc1, ("down", index): layer.mlp.linear_fc2}
        for key, port in ports.items():
            port.connect(key, routing, anchor)


def _transformer_config(facts: Architecture, runtime: Runtime, dtype: torch.dtype) -> TransformerConfig:
    return TransformerConfig(
        num_layers=facts.layers,
        hidden_size=facts.hidden,
        ffn_hidden_size=facts.ffn,
        num_attention_heads=facts.heads,
        num_query_groups=facts.kv_heads,
        kv_channels=facts.head_dim,
        layernorm_epsilon=facts.norm_eps,
        normalization="RMSNorm",
        qk_layernorm=facts.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=runtime.tp_size,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        # Weights are read from files: build on the CPU, uninitialised, then move.
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
