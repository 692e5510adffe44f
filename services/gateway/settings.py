"""Settings of the gateway, read from TINKERMESH_GATEWAY_<FIELD>."""

from __future__ import annotations

import msgspec

from services.common.settings import ServiceSettings

MEBIBYTE = 1 << 20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request may hold; beyond it the request fails, in its turn where it has one."""

    max_datums: int = 1024
    max_tokens_per_datum: int = 32_768
    max_tokens_per_request: int = 4_000_000
    max_parts: int = 1 << 18
    max_targets_per_position: int = 256
    max_targets_per_request: int = 4_000_000
    max_samples: int = 64
    max_topk_logprobs: int = 20
    max_prompt_draws: int = 64
    max_prompt_cells: int = 1 << 17
    max_stops: int = 64
    relaxed_loss_config: bool = False


class Settings(ServiceSettings, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:8000"
    # An inherited listening socket, so that replicas on one machine share a port; replaces `listen`.
    listen_fd: int | None = None
    # host:port of every scheduler replica, separated by commas; or one gRPC target.
    scheduler: str = "127.0.0.1:7001"
    # What clients call this mesh, for download links: https://host/prefix. "" = as the request came in.
    public_url: str = ""
    key_file: str
    pepper_file: str

    long_poll_seconds: float = 30.0
    max_body_bytes: int = 64 * MEBIBYTE
    # Of bodies without an order key and without tensors.
    max_small_body_bytes: int = MEBIBYTE
    # A compressed body may always grow to `zstd_free_bytes`; beyond that by this factor at most.
    zstd_max_ratio: int = 500
    zstd_free_bytes: int = 8 * MEBIBYTE
    header_timeout_seconds: float = 30.0
    body_timeout_seconds: float = 120.0
    rpc_timeout_seconds: float = 10.0
    retry_seconds: float = 15.0
    drain_seconds: float = 10.0
    # Bodies above this are decoded on a worker thread.
    offload_bytes: int = 256 * 1024
    decoder_threads: int = 2
    max_polls_per_tenant: int = 8192
    # Files and archives on their way at once, by links of one tenant and of all.
    max_downloads_per_tenant: int = 16
    max_downloads: int = 128
    # The OpenAI routes: requests under way at once, of one tenant and of all; a stream says that it lives so
    # often while nothing comes; values (tokens times alternatives) one answer may hold.
    max_completions_per_tenant: int = 256
    max_completions: int = 2048
    completion_heartbeat_seconds: float = 10.0
    max_completion_values: int = 2_000_000
    # In one answer of retrieve_futures: each is then fetched by a request of its own, all at once.
    completions_per_answer: int = 16

    compress_requests: bool = False  # tells the SDK to send forward_backward zstd-compressed
    # The SDK exchanges its key for tokens of this lifetime and sends those; off = it sends the key.
    jwt_auth: bool = False
    jwt_lifetime_seconds: int = 600
    # Serve the read-only page at /console, and what it reads.
    console: bool = True
    # Audit lines also go to this file, renamed at this size; "" = to the log alone.
    audit_file: str = ""
    audit_file_bytes: int = 64 * MEBIBYTE
    cancel_samples: bool = True  # tells the SDK that cancel_future exists
    retrieve_futures: bool = True  # tells the SDK to wait for all samples of a client with one request
    sample_max_concurrent_requests: int = 2000
    # Prompts (4 bytes a token) the SDK has on their way at once, each on a connection of its own.
    sample_dispatch_bytes: int = 16 * 1024

    max_datums: int = 1024
    max_tokens_per_datum: int = 32_768
    max_tokens_per_request: int = 4_000_000
    max_targets_per_position: int = 256
    max_targets_per_request: int = 4_000_000
    max_samples: int = 64
    max_topk_logprobs: int = 20
    max_prompt_draws: int = 64  # prompt_alt_tokens_k
    max_prompt_cells: int = 1 << 17  # of one table over a prompt: target_prompt_logprobs, prompt_alt_tokens
    relaxed_loss_config: bool = False

    @property
    def limits(self) -> Limits:
        return Limits(
            max_datums=self.max_datums,
            max_tokens_per_datum=self.max_tokens_per_datum,
            max_tokens_per_request=self.max_tokens_per_request,
            max_targets_per_position=self.max_targets_per_position,
            max_targets_per_request=self.max_targets_per_request,
            max_samples=self.max_samples,
            max_topk_logprobs=self.max_topk_logprobs,
            max_prompt_draws=self.max_prompt_draws,
            max_prompt_cells=self.max_prompt_cells,
            relaxed_loss_config=self.relaxed_loss_config,
        )
