"""The gateway's side of the scheduler's gRPC API."""
