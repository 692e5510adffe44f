"""Points of curves on the wire."""

from __future__ import annotations

from tinkermesh.v1 import console_pb2 as pb

from services.scheduler.store.curves import CurvePoint


def point_message(point: CurvePoint) -> pb.CurvePoint:
    return pb.CurvePoint(
        step=point.step,
        unix_ms=point.unix_ms,
        loss_sum=point.loss_sum,
        positions=point.positions,
        learning_rate=point.learning_rate,
        grad_norm=point.grad_norm,
    )
