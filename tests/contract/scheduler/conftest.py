"""A real Valkey for every contract test of the scheduler."""

from tests.doubles.valkey import functions, redis_client, valkey

__all__ = ["functions", "redis_client", "valkey"]
