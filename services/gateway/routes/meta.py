"""Health, capabilities, and the configuration the SDK asks for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.gateway.endpoint import PREFIX, Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.wire.bodies import SdkVersion


def routes(gateway: Gateway) -> list[Route]:
    return [
        Route(f"{PREFIX}/healthz", healthz),
        endpoint(gateway, "/get_server_capabilities", get_server_capabilities, ("GET",)),
        endpoint(gateway, "/client/config", client_config, audited=False),
        endpoint(gateway, "/client/dynamic_config", client_dynamic_config, audited=False),
        endpoint(gateway, "/telemetry", telemetry, begins_trace=False),
    ]


async def healthz(request: Request) -> Response:
    """The gateway is up; nothing is said about the rest of the mesh."""
    return json_response({"status": "ok"})


async def get_server_capabilities(call: Call) -> Response:
    models = [
        {
            "model_name": pool.facts.base_model,
            "max_context_length": pool.facts.max_context,
            "trainable": pool.trainable,
            "sampleable": pool.sampleable,
        }
        for pool in await call.gateway.facts.pools()
    ]
    return json_response({"supported_models": models})


async def client_config(call: Call) -> Response:
    """Only what this mesh really has is switched on."""
    await call.json(SdkVersion)
    settings = call.gateway.settings
    return json_response(
        {
            "pjwt_auth_enabled": settings.jwt_auth,
            "credential_default_source": "api_key",
            "parallel_fwdbwd_chunks": True,
            "proto_compress_fwdbwd": settings.compress_requests,
            "fwdbwd_max_chunk_len": settings.max_datums,
            "sample_max_concurrent_requests": settings.sample_max_concurrent_requests,
            "sample_dispatch_bytes_semaphore_size": settings.sample_dispatch_bytes,
            "sample_enable_stuck_detection": True,
            "sample_use_retrieve_futures": settings.retrieve_futures,
            "sample_join_sampling_session": True,
            "custom_loss_server_side": False,
        }
    )


async def client_dynamic_config(call: Call) -> Response:
    await call.json(SdkVersion)
    return json_response({"refresh_interval_sec": 300, "sample_cancel_enabled": call.gateway.settings.cancel_samples})


async def telemetry(call: Call) -> Response:
    """Accepted and dropped: a client's events may hold anything, so none is stored or logged."""
    await call.body()
    return json_response({"status": "accepted"})
