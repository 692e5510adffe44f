"""The only part of the sampler that knows vLLM and torch."""
