"""Prefill/decode: cache blocks go from one sampler to another through a tier of content-addressed files."""
