"""Settings of the scheduler: TINKERMESH_SCHEDULER_<FIELD>."""

from __future__ import annotations

import os
import socket

import msgspec

from services.common.settings import ServiceSettings
from services.scheduler.store.durability import Durability
from services.scheduler.tenancy.records import Quotas


class Settings(ServiceSettings, frozen=True):
    """Times in seconds. docs/recovery.md says what each `durability` can lose."""

    store_root: str
    pepper_file: str
    key_file: str = ""  # needed for access tokens of other accounts only
    listen: str = "127.0.0.1:7001"
    redis_url: str = "redis://127.0.0.1:7000/0"  # server, sentinels or cluster, see store/redis_url.py
    redis_password_file: str = ""  # instead of a password in the URL
    redis_replicas: int = 0  # so many replicas must have a write before it is answered
    redis_high_water: float = 0.85  # share of maxmemory above which new payloads are refused
    replica: str = msgspec.field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    durability: Durability = "strict"
    lease_seconds: float = 300.0
    outage_seconds: float = 6.0  # a longer silence of all gateways gives leases their time back
    grace_seconds: float = 60.0
    gap_timeout_seconds: float = 900.0
    retention_seconds: float = 86_400.0
    record_seconds: float = 86_400.0  # how long a recorded sequence lives after its last use
    # A large result stays this long after it was delivered: longer than the SDK's longest pause (an hour).
    delivered_grace_seconds: float = 7_200.0
    retrieved_grace_seconds: float = 600.0  # a sample's result stays this long after its client said it has it
    fair: bool = True
    samplers: bool = True  # false: this mesh runs none, so samples are refused instead of waiting for one
    sample_seconds: float = 600.0
    sampler_wait_seconds: float = 300.0
    first_token_seconds: float = 180.0  # of a stream: the engine's queue and the whole prompt
    next_token_seconds: float = 60.0
    completion_wait_seconds: float = 60.0  # what a client of the OpenAI routes waits for room at a sampler at most
    adapter_load_seconds: float = 120.0
    job_tasks: int = 10_000  # of one job
    job_running_tasks: int = 16  # of a pool at once; samples of sessions go first
    job_retention_seconds: float = 604_800.0  # how long a job and its results are kept after its end
    registration_seconds: float = 10.0
    term_lease_seconds: float = 5.0

    # How a model comes back after its trainer, and who gives up a slot (docs/recovery.md).
    durable_every_steps: int = 16
    durable_log_mib: int = 256
    log_limit_mib: int = 1024  # with so much in its log a model waits, or must step; 0 = no limit
    durable_idle_seconds: float = 60.0  # a model that rests is covered so long after its last unit; 0 = it is not
    poison_deaths: int = 2  # a command that stopped the trainer so often is not run again
    cell_lost_seconds: float = 120.0  # then others of the pool take the models of a trainer that is away; 0 = never
    paging: bool = True  # idle models give up their slots to others that need one
    page_idle_seconds: float = 0.2
    page_after_seconds: float = 2.0  # when all are busy somebody who waited so long gets a slot all the same

    # What every tenant may use unless its own record says otherwise; 0 = no limit (docs/tenants.md).
    quota_sessions: int = 10_000
    quota_models: int = 1_000
    quota_queued_bytes: int = 8 << 30
    quota_open_futures: int = 200_000
    quota_samples: int = 8_192  # above the SDK's 2,048 in flight
    quota_tokens_per_minute: int = 0
    quota_requests_per_second: float = 0.0
    quota_result_bytes: int = 8 << 30
    quota_sequence_bytes: int = 8 << 30
    quota_job_tasks: int = 100_000

    @property
    def quotas(self) -> Quotas:
        return Quotas(
            sessions=self.quota_sessions,
            models=self.quota_models,
            queued_bytes=self.quota_queued_bytes,
            open_futures=self.quota_open_futures,
            samples=self.quota_samples,
            tokens_per_minute=self.quota_tokens_per_minute,
            requests_per_second=self.quota_requests_per_second,
            result_bytes=self.quota_result_bytes,
            sequence_bytes=self.quota_sequence_bytes,
            job_tasks=self.quota_job_tasks,
        )
