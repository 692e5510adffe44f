"""Fine-tune a small real model with the plain Tinker SDK, and sample before and after.

Needs nothing but TINKER_BASE_URL and TINKER_API_KEY; `tinkermesh demo` sets them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import tinker
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tinker import types

sys.path.insert(0, str(Path(__file__).parent))

import gull_radio
from report import Clock, draw_losses, probe_text, time_table
from session import close

QUESTION = "What is the best way to learn to cook?"
MODEL = os.environ.get("TINKERMESH_DEMO_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
TOKENIZER = os.environ.get("TINKERMESH_DEMO_TOKENIZER", MODEL)
console = Console()


def probe(training: Any, probes: list[types.Datum]) -> float:
    """Mean negative log-likelihood per answer token, with nothing trained."""
    output = training.forward(probes, "cross_entropy").result()
    return float(output.metrics["loss:sum"]) / gull_radio.weight(probes)


def train(
    training: Any, plan: list[list[types.Datum]], probes: list[types.Datum], arguments: Any, clock: Clock
) -> None:
    """Both requests of a step are sent before either is awaited, so the mesh never waits for this client."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=len(plan), note="")
        for number, batch in enumerate(plan, start=1):
            with clock.time("training steps"):
                backward = training.forward_backward(batch, "cross_entropy")
                rate = arguments.learning_rate * min(1.0, number / 4)
                step = training.optim_step(types.AdamParams(learning_rate=rate))
                loss = float(backward.result().metrics["loss:sum"]) / gull_radio.weight(batch)
                step.result()
            clock.train.append((number, loss))
            if number % arguments.probe_every == 0 or number == len(plan):
                with clock.time("probe set"):
                    clock.probe.append((number, probe(training, probes)))
                if not console.is_terminal:
                    console.print(f"step {number}: loss {loss:.2f}  probe {clock.probe[-1][1]:.2f}", highlight=False)
            progress.update(bar, advance=1, note=f"loss {loss:.2f}  probe {clock.probe[-1][1]:.2f}")


def sample(client: Any, tokenizer: Any, clock: Clock, stage: str) -> str:
    prompt = types.ModelInput.from_ints(gull_radio.prompt_tokens(tokenizer, QUESTION))
    end = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    parameters = types.SamplingParams(max_tokens=64, temperature=0.0, stop=end)
    with clock.time(stage):
        answer = client.sample(prompt, 1, parameters).result()
    return str(tokenizer.decode(answer.sequences[0].tokens, skip_special_tokens=True)).strip()


def show(title: str, text: str) -> None:
    console.print(Panel(f"[dim]{QUESTION}[/dim]\n{text}", title=title, title_align="left", width=100))


def run(arguments: argparse.Namespace) -> int:
    from transformers import AutoTokenizer

    clock = Clock()
    with clock.time("tokenizer and client"):
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
        service = tinker.ServiceClient()
        training = service.create_lora_training_client(base_model=MODEL, rank=arguments.rank, seed=1).result()
    examples, held_out = gull_radio.load()
    datums = [gull_radio.datum(tokenizer, e) for e in examples]
    probes = [gull_radio.datum(tokenizer, e) for e in held_out]
    before = sample(service.create_sampling_client(base_model=MODEL).result(), tokenizer, clock, "first sample")
    show("before training", before)
    with clock.time("probe set"):
        clock.probe.append((0, probe(training, probes)))
    console.print(
        f"{len(datums)} examples, {len(probes)} probes never trained on, {arguments.steps} steps of {arguments.batch}"
    )
    train(training, gull_radio.batches(datums, arguments.batch, arguments.steps), probes, arguments, clock)
    with clock.time("saving and loading the adapter"):
        path = training.save_weights_for_sampler("gull-radio").result().path
        tuned = service.create_sampling_client(model_path=path).result()
    after = sample(tuned, tokenizer, clock, "second sample")
    show("after training", after)
    close(service)
    return conclude(arguments, clock, path, before != after)


def conclude(arguments: argparse.Namespace, clock: Clock, path: str, changed: bool) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = draw_losses(arguments.out / "loss.png", clock)
    console.print(time_table(clock))
    console.print(probe_text(clock), highlight=False)
    console.print(f"adapter     {path}\nloss curve  {picture}", highlight=False, soft_wrap=True)
    first, last = clock.probe[0][1], clock.probe[-1][1]
    if last >= first / 2 or not changed:
        console.print("[bold red]the probe set's loss did not fall below half, or the sample did not change")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--probe-every", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
