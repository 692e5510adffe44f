"""OpenAI's completions and chat completions: bodies, checks, answers, streams, errors in OpenAI's shape."""
