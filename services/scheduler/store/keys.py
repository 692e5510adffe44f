"""Every Redis key of the mesh, and what lies under it.

Pool state carries the hash tag ``{p:<pool>}``, so one function call touches one cluster slot;
a session and the index of its children carry ``{s:<session>}``, a tenant's catalog ``{t:<tenant>}``.

Each trainer of a pool is a *cell* with slots, clock and indexes of models of its own. Keys of the first
cell have no suffix, those of any other end in ``@<cell>``.

Request row ``req(pool, key)``, a hash (training commands and samples alike):

    request_id   <pool>.<key>.<generation>         fingerprint   hex
    tenant       owner                             session       session id
    parent       model id or sampling session id   kind          train | sample
    op           see core.view.Op                  seq           decimal string (full int64)
    arrival      decimal string                    state         queued | running | captured | done | failed
    command      serialized v1.Command             upload        payload's upload id, "" = none
    segments     number of payload segments        payload_bytes
    traceparent  of the Submit span                units         space-separated unit ids
    admitted_ms, issued_ms, settled_ms             result        serialized v1.Result once settled
    result_bytes                                   sequence_ids  space-separated (samples)
    expires_ms   when the result may go            charged       what it holds of its tenant's quota
    pack, datums, tokens, issued, reported, flying, group, rejected, captured_ms, artifact (training)
    logged       log entries that need its payload     deaths        of the trainer while it ran
    events       what happened to it (_events.lua)     delivered_ms  its result went to a gateway
    sequences, adapter_name, adapter_path, recorded (samples)
    result_upload, result_segments, kept (large results; what any result holds of its tenant's quota)
"""

from __future__ import annotations

from services.common.cells import FIRST_CELL, cell_suffix

PREFIX = "tm"

POOLS = f"{PREFIX}:{{dir}}:pools"  # set of pool names
SESSIONS = f"{PREFIX}:{{dir}}:sessions"  # zset session id -> last beat plus credited downtime, unix ms
CATALOG_DUE = f"{PREFIX}:{{dir}}:catalog_due"  # zset tenant id -> when something of its catalog may be due, unix ms
CLOCK = f"{PREFIX}:{{dir}}:clock"  # hash: alive_ms (a gateway was connected), sweeper, sweeper_until_ms
KEYS = f"{PREFIX}:{{dir}}:keys"  # hash: keyed digest of an API key -> JSON of common.keyring.KeyEntry
TENANTS = f"{PREFIX}:{{dir}}:tenants"  # hash: tenant id -> JSON of tenancy.records.TenantRecord
LAYOUT = f"{PREFIX}:{{dir}}:layout"  # number of the layout of all this (store/functions.py)
REPLICAS = f"{PREFIX}:{{dir}}:replicas"  # hash replica -> JSON: layout, library, seen_ms
LIBRARIES = f"{PREFIX}:{{dir}}:libraries"  # zset function library -> last used, unix ms
CHECKUP = f"{PREFIX}:{{dir}}:checkup"  # hash: life (of the server that was checked), report (JSON)
CHECKUP_LOCK = f"{PREFIX}:{{dir}}:checkup_lock"  # the replica that checks now
PROBE = f"{PREFIX}:{{dir}}:probe"  # written to see what WAITAOF does
TENANCY_VERSION = f"{PREFIX}:{{dir}}:tenancy_version"  # number of changes to the two above


def pool_prefix(pool: str) -> str:
    """Functions on pool state get this one key and build the others from it."""
    return f"{PREFIX}:{{p:{pool}}}"


def _pool(pool: str, rest: str) -> str:
    return f"{pool_prefix(pool)}:{rest}"


def _cell(pool: str, cell: str, rest: str) -> str:
    return _pool(pool, f"{rest}{cell_suffix(cell, '@')}")


def session_prefix(session_id: str) -> str:
    return f"{PREFIX}:{{s:{session_id}}}"


def _session(session_id: str, rest: str) -> str:
    return f"{session_prefix(session_id)}:{rest}"


def session(session_id: str) -> str:
    """Hash: tenant, state open|finished|expired, created_ms, beat_ms, sdk_version, tags, metadata."""
    return _session(session_id, "session")


def session_models(session_id: str) -> str:
    """Hash model_seq_id -> pool: the write-once directory of a session's models."""
    return _session(session_id, "models")


def session_samplers(session_id: str) -> str:
    """Hash sampling_session_seq_id -> sampling session id (aliases included)."""
    return _session(session_id, "samplers")


def session_key(tenant_id: str, idempotency_key_hash: str) -> str:
    """String: the session id a (tenant, x-idempotency-key) pair already made."""
    return f"{PREFIX}:{{t:{tenant_id}}}:session_key:{idempotency_key_hash}"


def tenant_sessions(tenant_id: str) -> str:
    """Zset session id -> when it was admitted, unix ms, of the tenant's open sessions."""
    return f"{PREFIX}:{{t:{tenant_id}}}:sessions"


def usage(pool: str, tenant_id: str) -> str:
    """Hash of what the tenant occupies, and of its buckets; functions/_quota.lua names the fields."""
    return _pool(pool, f"usage:{tenant_id}")


def tenant_prefix(tenant_id: str) -> str:
    """Functions on a tenant's catalog get this one key; functions/catalog.lua says what lies under ``:cat:``.

    runs, cks, sessions, project_runs:<project>, session_runs:<session>, run_cks:<run>[:<kind>]: zsets by
    creation time. run:<run>, ck:<run>/<kind>/<name>, session:<session>: hashes. expiring: zset
    checkpoint -> end, unix ms. doomed: set of ``<checkpoint> <version>`` whose files may go.
    """
    return f"{PREFIX}:{{t:{tenant_id}}}"


def catalog_checkpoint(tenant_id: str, checkpoint: str) -> str:
    """Hash: version, created_ms, size, expires_ms, metadata, public, doomed."""
    return f"{tenant_prefix(tenant_id)}:cat:ck:{checkpoint}"


def catalog_expiring(tenant_id: str) -> str:
    """Zset checkpoint -> its end, unix ms."""
    return f"{tenant_prefix(tenant_id)}:cat:expiring"


def catalog_doomed(tenant_id: str) -> str:
    """Set of ``<checkpoint> <version>`` whose files may go."""
    return f"{tenant_prefix(tenant_id)}:cat:doomed"


def catalog_session(tenant_id: str, session_id: str) -> str:
    """Hash: created_ms, status, reason, detail, metadata, display_name, project."""
    return f"{tenant_prefix(tenant_id)}:cat:session:{session_id}"


def catalog_session_runs(tenant_id: str, session_id: str) -> str:
    """Zset run -> created_ms."""
    return f"{tenant_prefix(tenant_id)}:cat:session_runs:{session_id}"


def facts(pool: str) -> str:
    """String: serialized v1.PoolFacts as the trainer registered them; a sampler's own until there is one."""
    return _pool(pool, "facts")


def trainers(pool: str) -> str:
    """Hash trainer id -> JSON: incarnation, since_ms, seen_ms, registration."""
    return _pool(pool, "trainers")


def cells(pool: str) -> str:
    """Set of the names of all cells but the first."""
    return _pool(pool, "cells")


def draining(pool: str) -> str:
    """Set of trainer ids that get no further unit."""
    return _pool(pool, "draining")


def draining_samplers(pool: str) -> str:
    """Set of sampler ids that get nothing more."""
    return _pool(pool, "draining_samplers")


def samplers(pool: str) -> str:
    """Hash sampler id -> JSON: incarnation, since_ms, seen_ms, registration."""
    return _pool(pool, "samplers")


def lease(pool: str) -> str:
    """Hash: term, replica, life (the holding process), expires_ms (Redis TIME)."""
    return _pool(pool, "lease")


def arrival(pool: str) -> str:
    """Counter of arrival numbers."""
    return _pool(pool, "arrival")


def req(pool: str, key: str) -> str:
    """Hash: the request row described above."""
    return _pool(pool, f"req:{key}")


def outputs(pool: str, key: str) -> str:
    """Hash first datum index -> serialized v1.BatchResult part of a batch op."""
    return _pool(pool, f"out:{key}")


def payload(pool: str, upload: str, index: int) -> str:
    """String of <= 512 KiB; set with a TTL, persisted by the admitting function."""
    return _pool(pool, f"pay:{upload}:{index}")


def model(pool: str, model_id: str) -> str:
    """Hash: tenant, session, state creating|open|closing|closed, reason, slot, load_number, layout, ...

    Of recovery: phase (functions/_seats.lua), base, base_pos, log_end, applied, barrier_pos, log_bytes,
    steps_since (functions/_log.lua), captures, home (last slot), seated_ms, worked_ms, replay_deaths,
    replay_faults, faults_of (trainer), replay_alone, seat_after, durable_soon, durable_after, durable_covers,
    durable_steps, durable_ms. `cell` unless it is the first. Of its curve: curve_* (functions/_curves.lua).

    Beside it ``names:<model id>``, the set of the names its snapshots took.
    """
    return _pool(pool, f"model:{model_id}")


def curve(pool: str, model_id: str) -> str:
    """List of packed points of its training, one an optimizer step or fewer (functions/_curves.lua)."""
    return _pool(pool, f"curve:{model_id}")


def causes(pool: str, tenant_id: str) -> str:
    """List of why requests of the tenant failed, the newest first (functions/_causes.lua)."""
    return _pool(pool, f"causes:{tenant_id}")


def queue(pool: str, model_id: str) -> str:
    """Hash seq -> request key of commands that arrived and are not settled."""
    return _pool(pool, f"queue:{model_id}")


def active(pool: str, cell: str = FIRST_CELL) -> str:
    """Zset model id -> arrival of its head command, of live models that have one.

    The other indexes of models by the phase of their slots follow (functions/_index.lua).
    """
    return _cell(pool, cell, "active")


def seekers(pool: str, cell: str = FIRST_CELL) -> str:
    """Zset model id -> since when (unix ms), of unseated models that something waits for."""
    return _cell(pool, cell, "seekers")


def recovering(pool: str, cell: str = FIRST_CELL) -> str:
    """Zset model id -> since when (unix ms) its slot is being filled."""
    return _cell(pool, cell, "recovering")


def unseated(pool: str, cell: str = FIRST_CELL) -> str:
    """Zset model id -> last request (unix ms) of every unseated model, 0 = it was paged out."""
    return _cell(pool, cell, "unseated")


def durables(pool: str, cell: str = FIRST_CELL) -> str:
    """Zset model id -> not before (unix ms), of live models whose durable point is due."""
    return _cell(pool, cell, "durables")


def creates(pool: str, cell: str = FIRST_CELL) -> str:
    """Zset model id -> arrival, of models that wait for a slot."""
    return _cell(pool, cell, "creates")


def gaps(pool: str) -> str:
    """Zset model id -> since when (unix ms) its next command is missing while later ones wait."""
    return _pool(pool, "gaps")


def closed(pool: str) -> str:
    """Zset model id -> when it closed, unix ms."""
    return _pool(pool, "closed")


def rows(pool: str, model_id: str) -> str:
    """Set of the request keys of a model, so that all of them can go with it."""
    return _pool(pool, f"rows:{model_id}")


def pool_session_models(pool: str, session_id: str) -> str:
    """Set of the session's model ids in this pool. Beside it ``ended:<session>``, for a day once it has ended."""
    return _pool(pool, f"session_models:{session_id}")


def slots(pool: str, cell: str = FIRST_CELL) -> str:
    """Hash slot number -> "" (free), model id, unload:<model id> (awaits its unload), quarantine:<model id>."""
    return _cell(pool, cell, "slots")


def cell(pool: str, cell: str = FIRST_CELL) -> str:
    """Hash: incarnation, of the trainer whose slots these are; token, of its last takeover; poison_deaths,
    durable_steps, durable_bytes, durable_idle_ms, paging; broken, broken_reason: the incarnation that gets no
    work, and why."""
    return _cell(pool, cell, "cell")


def superseded(pool: str) -> str:
    """Zset incarnation -> when its cell was taken from it, unix ms."""
    return _pool(pool, "superseded")


def counters(pool: str) -> str:
    """Hash: units_total, datums_total, shared_units_total, and the totals of v1.Packing."""
    return _pool(pool, "counters")


def expiring(pool: str) -> str:
    """Zset request key -> when its result may be dropped, unix ms (samples too)."""
    return _pool(pool, "expiring")


def dropped_blobs(pool: str) -> str:
    """List of blob names whose files may be deleted."""
    return _pool(pool, "dropped_blobs")


def served(pool: str, cell: str = FIRST_CELL) -> str:
    """Hash tenant id -> finish tag, "" -> virtual time (core/fairness.py)."""
    return _cell(pool, cell, "served")


def unit(pool: str, unit_id: str) -> str:
    """Hash: term, cell, incarnation, state running|settled|lost, work (v1.Unit without payload), items (JSON)."""
    return _pool(pool, f"unit:{unit_id}")


def running_units(pool: str) -> str:
    """Set of unit ids sent and not settled."""
    return _pool(pool, "units")


def log(pool: str, model_id: str) -> str:
    """List of JSON entries: what changed the model's slot since its base (functions/_log.lua)."""
    return _pool(pool, f"log:{model_id}")


def durables_running(pool: str) -> str:
    """Hash model id -> unit id of its durable point that is issued or captured and not settled."""
    return _pool(pool, "durables_running")


def dropped_durables(pool: str) -> str:
    """List of version directories of durable points whose files may be deleted."""
    return _pool(pool, "dropped_durables")


def capturing(pool: str) -> str:
    """Set of request keys whose artifact is captured but not published."""
    return _pool(pool, "capturing")


def pending_samples(pool: str) -> str:
    """Zset request key -> arrival, of samples waiting for a sampler."""
    return _pool(pool, "samples")


def running_samples(pool: str) -> str:
    """Hash request key -> sampler id."""
    return _pool(pool, "samples_running")


def sampling_session(pool: str, sampling_session_id: str) -> str:
    """Hash: tenant, session, base_model, model_path, adapter_name, adapter_path, state open|closed."""
    return _pool(pool, f"sampling:{sampling_session_id}")


def open_samples(pool: str, sampling_session_id: str) -> str:
    """Set of request keys of a sampling session that are queued or running."""
    return _pool(pool, f"sampling_open:{sampling_session_id}")


def sample_counts(pool: str) -> str:
    """Hash tenant id -> samples queued or running (the bound behind 429)."""
    return _pool(pool, "sample_counts")


def generations(pool: str, tenant_id: str) -> str:
    """Zset ``<generation>:<prompt>`` -> until when it counts as a sample in flight, unix ms."""
    return _pool(pool, f"generations:{tenant_id}")


def settled_samples(pool: str) -> str:
    """Zset request key -> when its result may be dropped, unix ms."""
    return _pool(pool, "samples_settled")


def large_results(pool: str) -> str:
    """List of request keys whose results are to be moved to the shared store."""
    return _pool(pool, "large_results")


def records(pool: str) -> str:
    """Zset "<tenant> <request key> <index>" -> when this recorded sequence ends, unix ms."""
    return _pool(pool, "records")


def record(pool: str, key: str, index: int) -> str:
    """String with a TTL: serialized v1.SequenceRecord of sequence `index` of a sample's request."""
    return _pool(pool, f"record:{key}:{index}")


def record_upload(pool: str, upload: str, index: int) -> str:
    """The same before its sample is settled."""
    return _pool(pool, f"recording:{upload}:{index}")


def completions(pool: str, sampling_session_id: str, clone: int) -> str:
    """Zset ``<result bytes | failed> <request id>`` -> its number in the order of settlement."""
    return _pool(pool, f"completions:{sampling_session_id}:{clone}")


def job(pool: str, job_id: str) -> str:
    """Hash; functions/jobs.lua says what lies under the names of jobs."""
    return _pool(pool, f"job:{job_id}")


def job_tasks(pool: str, job_id: str) -> str:
    """Hash index -> how it stands, of tasks that run or are settled."""
    return _pool(pool, f"jobtasks:{job_id}")


def jobs_open(pool: str) -> str:
    """Zset job id -> arrival, of jobs that have not ended."""
    return _pool(pool, "jobs_open")


def jobs_ended(pool: str) -> str:
    """Zset job id -> when it may go, unix ms."""
    return _pool(pool, "jobs_ended")


def jobs_doomed(pool: str) -> str:
    """Set of job ids whose files may go."""
    return _pool(pool, "jobs_doomed")


def tenant_jobs(tenant_id: str) -> str:
    """Zset job id -> when it was made, unix ms, of all pools."""
    return f"{tenant_prefix(tenant_id)}:jobs"


def settled_channel(pool: str) -> str:
    """Pub/sub: space-separated request ids that have just been settled, and for samples
    ``@<sampling session id>:<clone>`` of the client each belongs to; ``#<job id>`` of a job that has changed."""
    return f"{PREFIX}:settled:{pool}"


def ready_channel(pool: str) -> str:
    """Pub/sub: ``train`` or ``sample`` = new work for the lease holder, ``requeued`` = a sample waits again at its
    old place, ``job`` = a job, ``job_cancelled`` = one was, ``trainer`` = one came, is drained or serves again,
    ``lease`` = the lease is free."""
    return f"{PREFIX}:ready:{pool}"
