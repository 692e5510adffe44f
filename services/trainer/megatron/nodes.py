"""Calls one of our autograd nodes; torch leaves `apply` untyped."""

from __future__ import annotations

from typing import Any, cast

import torch


def run_node(node: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    return cast(torch.Tensor, node.apply(*arguments))  # type: ignore[no-untyped-call]
