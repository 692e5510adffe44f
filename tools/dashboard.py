"""Write charts/tinkermesh/files/dashboard.json: the Grafana dashboard, from a short list of panels.

Usage: python tools/dashboard.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "charts" / "tinkermesh" / "files" / "dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "[$__rate_interval]"
LONG_POLLS = 'route!~".*/(retrieve_future|retrieve_futures)"'
WIDTH, HEIGHT, ACROSS = 8, 7, 3


@dataclass(frozen=True)
class Panel:
    """`queries`: legend -> expression."""

    title: str
    unit: str
    queries: dict[str, str]


def quantiles(name: str, by: str = "", labels: str = "", shares: tuple[float, ...] = (0.5, 0.99)) -> dict[str, str]:
    legend = "".join(f" {{{{{label}}}}}" for label in by.split(", ") if label)
    inside = f"sum by (le{', ' + by if by else ''}) (rate({name}_bucket{{{labels}}}{RATE}))"
    return {f"p{share * 100:.0f}{legend}": f"histogram_quantile({share}, {inside})" for share in shares}


def per_second(name: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({name}{{{labels}}}{RATE}))"


def of_pool(name: str, by: str = "", labels: str = "") -> str:
    return f"max by (pool{', ' + by if by else ''}) (tinkermesh_pool_{name}{{{labels}}})"


def total(name: str) -> str:
    return f"max by (pool) (rate(tinkermesh_pool_{name}{RATE}))"


BUSY = f"rate(tinkermesh_trainer_busy_seconds_total{RATE})"
UNITS = per_second("tinkermesh_scheduler_units_total", "kind, purpose, outcome")
HALF = (0.5,)

ROWS: dict[str, list[Panel]] = {
    "What clients see": [
        Panel("Requests", "reqps", {"{{code}}": per_second("tinkermesh_gateway_http_requests_total", "code")}),
        Panel("Latency without long polls", "s", quantiles("tinkermesh_gateway_http_seconds", labels=LONG_POLLS)),
        Panel(
            "Share of 5xx",
            "percentunit",
            {
                "5xx": f'(sum(rate(tinkermesh_gateway_http_requests_total{{code=~"5.."}}{RATE})) or vector(0))'
                f" / sum(rate(tinkermesh_gateway_http_requests_total{RATE}))"
            },
        ),
        Panel(
            "Requests settled",
            "reqps",
            {"{{op}} {{outcome}}": per_second("tinkermesh_scheduler_requests_settled_total", "op, outcome")},
        ),
        Panel(
            "Age of the oldest that waits",
            "s",
            {"{{pool}} {{path}} {{tenant_class}}": of_pool("queue_age_seconds", "path, tenant_class")},
        ),
        Panel(
            "Wait before a unit or sampler",
            "s",
            quantiles("tinkermesh_scheduler_queue_wait_seconds", "path, tenant_class", shares=(0.99,)),
        ),
        Panel("Refused", "reqps", {"{{error}}": per_second("tinkermesh_gateway_refused_total", "error")}),
        Panel(
            "Open",
            "short",
            {
                "HTTP requests": "sum(tinkermesh_gateway_http_requests_open)",
                "waits at gateways": "sum(tinkermesh_gateway_open_waits)",
                "waits at schedulers": "sum(tinkermesh_scheduler_open_waits)",
            },
        ),
        Panel("Wake-up of an idle pool", "s", quantiles("tinkermesh_scheduler_wakeup_seconds", "pool")),
    ],
    "Training": [
        Panel("Tokens", "short", {"{{pool}} per second": total("tokens_total")}),
        Panel(
            "Units", "ops", {"{{kind}} {{purpose}} {{outcome}}": UNITS}
        ),
        Panel("Time of a unit", "s", quantiles("tinkermesh_scheduler_unit_seconds", "kind", 'purpose="live"')),
        Panel("Fill of a pass", "percentunit", quantiles("tinkermesh_scheduler_unit_fill_ratio", "pool", shares=HALF)),
        Panel(
            "Tenants of a pass",
            "short",
            {"{{pool}}": f"{total('pass_tenants_total')} / {total('passes_total')}"},
        ),
        Panel(
            "Size of a pass",
            "short",
            {
                **{f"tokens {k}": v for k, v in quantiles("tinkermesh_scheduler_unit_tokens").items()},
                **{f"datums {k}": v for k, v in quantiles("tinkermesh_scheduler_unit_datums").items()},
            },
        ),
        Panel("Share of time in units", "percentunit", {"{{instance}}": BUSY}),
        Panel("Slots", "short", {"{{pool}} {{state}}": of_pool("slots", "state")}),
        Panel("Models", "short", {"{{pool}} {{state}}": of_pool("models", "state")}),
        Panel("Saves: time to publish", "s", quantiles("tinkermesh_trainer_publish_seconds", "kind", shares=(0.99,))),
        Panel(
            "Saves on their way",
            "short",
            {"captured {{pool}}": of_pool("captures"), "in memory": "sum(tinkermesh_trainer_publications_waiting)"},
        ),
        Panel("Trainers", "short", {"{{pool}} {{state}}": of_pool("trainers", "state")}),
    ],
    "What would be replayed": [
        Panel("Log", "bytes", {"{{pool}}": of_pool("log_bytes")}),
        Panel(
            "Longest log and window",
            "short",
            {"log {{pool}}": of_pool("log_entries"), "window {{pool}}": of_pool("window_entries")},
        ),
        Panel(
            "Durable points",
            "short",
            {"steps not covered {{pool}}": of_pool("durable_lag_steps"), "due {{pool}}": of_pool("durable_due")},
        ),
        Panel("Durable point overdue", "s", {"{{pool}}": of_pool("durable_overdue_seconds")}),
        Panel(
            "Replay",
            "short",
            {"done {{pool}}": of_pool("replay_entries_done"), "left {{pool}}": of_pool("replay_entries_left")},
        ),
        Panel(
            "Since the start of the mesh",
            "short",
            {
                f"{name} {{{{pool}}}}": f"max by (pool) (tinkermesh_pool_{metric})"
                for name, metric in {
                    "trainers lost": "trainers_lost_total",
                    "models restored": "models_restored_total",
                    "poisoned": "poisoned_total",
                    "replays that differ": "replay_mismatches_total",
                    "breaker trips": "breaker_trips_total",
                    "pages": "pages_total",
                }.items()
            },
        ),
    ],
    "Sampling": [
        Panel("Tokens", "short", {
            "generated": f"sum(rate(tinkermesh_sampler_generated_tokens_total{RATE}))",
            "prompt": f"sum(rate(tinkermesh_sampler_prompt_tokens_total{RATE}))",
            "prompt, cached": f"sum(rate(tinkermesh_sampler_cached_tokens_total{RATE}))",
        }),
        Panel("Time of a sample", "s", quantiles("tinkermesh_sampler_sample_seconds")),
        Panel("Samples", "reqps", {"{{outcome}}": per_second("tinkermesh_sampler_samples_total", "outcome")}),
        Panel("Sequences", "short", {
            "open": "sum(tinkermesh_sampler_sequences_open)",
            "in the engine, {{state}}": "sum by (state) (tinkermesh_sampler_engine_sequences)",
            "limit": "sum(tinkermesh_sampler_sequences_limit)",
        }),
        Panel("Adapters", "short", {
            "{{state}}": "sum by (state) (tinkermesh_sampler_adapters)",
            "places": "sum(tinkermesh_sampler_adapter_places)",
            "waiting for one": "sum(tinkermesh_sampler_adapter_seekers)",
        }),
        Panel("Adapter loads and evictions", "ops", {
            "loads {{outcome}}": per_second("tinkermesh_sampler_adapter_loads_total", "outcome"),
            "evictions, {{cause}}": per_second("tinkermesh_sampler_adapter_evictions_total", "cause"),
        }),
        Panel("Samplers", "short", {"{{pool}} {{state}}": of_pool("samplers", "state")}),
        Panel("vLLM: time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
        Panel("vLLM: KV cache in use, preemptions", "short", {
            "share of the cache": "max(vllm:kv_cache_usage_perc)",
            "preemptions": f"sum(rate(vllm:num_preemptions_total{RATE}))",
        }),
    ],
    "OpenAI routes": [
        Panel("Completions", "reqps", {
            "{{route}} {{outcome}}": per_second("tinkermesh_gateway_completions_total", "route, outcome"),
        }),
        Panel("Completions open", "short", {"{{instance}}": "tinkermesh_gateway_completions_open"}),
        Panel("Time to the first token", "s", quantiles("tinkermesh_gateway_completion_first_token_seconds", "route")),
        Panel("Time to the last byte", "s", quantiles("tinkermesh_gateway_completion_seconds", "route")),
        Panel("Tokens of completions", "short", {
            "{{kind}} per second": per_second("tinkermesh_gateway_completion_tokens_total", "kind"),
        }),
    ],
    "Jobs": [
        Panel("Tasks settled", "ops", {
            "{{pool}} {{outcome}}": per_second("tinkermesh_scheduler_job_tasks_settled_total", "pool, outcome"),
        }),
        Panel("Tasks running", "short", {"{{pool}}": "sum by (pool) (tinkermesh_scheduler_job_tasks_running)"}),
        Panel("Tokens of jobs", "short", {
            "{{pool}} per second": per_second("tinkermesh_scheduler_job_tokens_total", "pool"),
        }),
        Panel("Attempts gone on with", "ops", {
            "{{pool}} {{where}}": per_second("tinkermesh_scheduler_job_retries_total", "pool, where"),
        }),
        Panel("Torn files", "short", {"{{pool}}": "sum by (pool) (tinkermesh_scheduler_jobs_torn_total)"}),
    ],
    "KV tier": [
        Panel("Blocks of prefill legs", "ops", {
            "{{outcome}}": per_second("tinkermesh_sampler_kv_blocks_saved_total", "outcome"),
        }),
        Panel("Blocks of decode legs", "ops", {
            "loaded {{when}}": per_second("tinkermesh_sampler_kv_blocks_loaded_total", "when"),
            "missed": f"sum(rate(tinkermesh_sampler_kv_blocks_missed_total{RATE}))",
            "refused, {{cause}}": per_second("tinkermesh_sampler_kv_blocks_refused_total", "cause"),
        }),
        Panel("Prompt tokens computed by decode legs", "short", {
            "{{instance}} per second": per_second("tinkermesh_sampler_kv_recomputed_tokens_total", "instance"),
        }),
        Panel("Size of the tier", "bytes", {
            "{{instance}}": "tinkermesh_sampler_kv_tier_bytes",
            "limit {{instance}}": "tinkermesh_sampler_kv_tier_limit_bytes",
            "not written yet {{instance}}": "tinkermesh_sampler_kv_pending_bytes",
        }),
        Panel("Blocks dropped", "ops", {"{{why}}": per_second("tinkermesh_sampler_kv_blocks_collected_total", "why")}),
        Panel("Catalog: calls not answered", "ops", {
            "{{instance}}": per_second("tinkermesh_sampler_kv_catalog_failures_total", "instance"),
        }),
        Panel("Catalog: time of a call", "s", quantiles("tinkermesh_sampler_kv_catalog_seconds", shares=(0.99,))),
        Panel("Wait for blocks", "s", quantiles("tinkermesh_sampler_kv_wait_seconds", "stage", shares=(0.99,))),
        Panel("Waits in vain", "ops", {"{{stage}}": per_second("tinkermesh_sampler_kv_wait_failures_total", "stage")}),
    ],
    "Control plane": [
        Panel("Leaders", "short", {"{{pool}} {{instance}}": "tinkermesh_scheduler_leading"}),
        Panel("Redis memory", "percentunit", {
            "fill": "max(tinkermesh_scheduler_redis_memory_fill_ratio)",
            "high water": "max(tinkermesh_scheduler_redis_memory_high_water_ratio)",
        }),
        Panel("Room in the store", "bytes", {
            "free": "min(tinkermesh_scheduler_store_free_bytes)",
            "size": "min(tinkermesh_scheduler_store_size_bytes)",
        }),
        Panel("gRPC calls that fail", "reqps", {
            "{{method}} {{code}}": per_second("tinkermesh_grpc_requests_total", "method, code", 'code!="ok"')
        }),
        Panel("gRPC latency", "s", quantiles("tinkermesh_grpc_seconds", "method", shares=(0.99,))),
        Panel("Memory", "bytes", {"{{service}} {{instance}}": (
            "process_resident_memory_bytes * on (instance) group_left (service) tinkermesh_build_info"
        )}),
    ],
}  # fmt: skip


def target(index: int, legend: str, expression: str) -> dict[str, Any]:
    return {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}


def drawn(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [target(n, legend, text) for n, (legend, text) in enumerate(panel.queries.items())],
    }


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": WIDTH * ACROSS, "h": 1}
        found.append(
            {"id": len(found) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        y += 1
        for index, panel in enumerate(row):
            x, line = index % ACROSS, index // ACROSS
            found.append(drawn(panel, len(found) + 1, x * WIDTH, y + line * HEIGHT))
        y += -(-len(row) // ACROSS) * HEIGHT
    return found


def dashboard() -> dict[str, Any]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "refresh": 1}
    return {
        "uid": "tinkermesh",
        "title": "tinkermesh",
        "tags": ["tinkermesh"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the file is up to date instead of writing it")
    text = json.dumps(dashboard(), indent=1) + "\n"
    if parser.parse_args().check:
        return 0 if TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
