"""What gateway, scheduler and trainer must agree on about the loss that reads recorded sequences.

The gateway sends its datums with `GIVEN` and their provenance; the scheduler replaces the
provenance by the two `RECORDED` vectors, NaN where a position was not sampled.
"""

from __future__ import annotations

NAME = "stable_reinforce"
OBJECTIVE_METRIC = "tinkermesh/truncated-is+k2:sum"
GIVEN = ("advantages",)
RECORDED = ("logprobs", "raw_logprobs")
