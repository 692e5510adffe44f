"""Text for a client that waits on a connection: the Completions service over the port to the samplers."""
