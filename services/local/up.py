"""`tinkermesh up` from the first child to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator

from rich.console import Console
from rich.live import Live

from services.common.errors import TinkermeshError
from services.local.display import Milestones, Progress, client_lines, exposure_lines, failure_lines, mesh_table
from services.local.mesh import LocalMesh
from services.local.settings import LocalSettings
from services.local.supervisor import ChildFailed

Work = Callable[[LocalMesh], Awaitable[int]]
"""Runs while the mesh is up; its answer is the exit code."""


async def run_mesh(settings: LocalSettings, console: Console, work: Work | None = None) -> int:
    """Start, serve until `work` ends, a signal comes or the mesh fails; always stop; answer the exit code."""
    milestones = Milestones(console)
    async with LocalMesh(settings, lambda text: _tell(console, text, "yellow"), milestones.ready) as mesh:
        milestones.begin(mesh.supervisor.children)
        serving = asyncio.create_task(_serve(mesh, console, work))
        with _cancelled_by_signals(serving):
            try:
                code = await serving
            except asyncio.CancelledError:
                code = 0
            except ChildFailed as failure:
                code = _explain(failure, console)
            except TinkermeshError as error:
                _tell(console, error.message, "bold red")
                code = 1
        console.print("stopping the mesh ...")
    return code


async def _serve(mesh: LocalMesh, console: Console, work: Work | None) -> int:
    with Live(Progress(mesh.supervisor.children), console=console, refresh_per_second=4, transient=True):
        await mesh.start()
    _show(mesh, console)
    failed = asyncio.create_task(_raise_failure(mesh))
    working = asyncio.ensure_future(work(mesh)) if work is not None else None
    try:
        running = [task for task in (failed, working) if task is not None]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in (failed, working):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TinkermeshError):
                    await task


def _show(mesh: LocalMesh, console: Console) -> None:
    console.print(mesh_table(mesh.supervisor.children))
    _tell(console, f"logs in {mesh.settings.logs}")
    _tell(console, f"runs and failures in a browser: {mesh.base_url}/console")
    for line in client_lines(mesh.client_environment):
        _tell(console, line, "bold")
    for line in exposure_lines(mesh.settings.host, mesh.api_key) if mesh.key_admitted else ():
        _tell(console, line, "yellow")


def _tell(console: Console, text: str, style: str = "") -> None:
    """One line as it is: brackets in it are no markup, and nothing breaks it where a shell would not."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


async def _raise_failure(mesh: LocalMesh) -> int:
    raise await mesh.supervisor.wait_failed()


def _explain(failure: ChildFailed, console: Console) -> int:
    _tell(console, failure.message, "bold red")
    for line in failure_lines(failure.child):
        _tell(console, line)
    return failure.exit_code


@contextlib.contextmanager
def _cancelled_by_signals(task: asyncio.Task[int]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in signals:  # a second Ctrl-C must not cut the clean stop short
            loop.add_signal_handler(number, lambda: None)
