"""Everything the SDK's RestClient offers, run by one script under any SDK version; writes a JSON report.

python rest_scenario.py --base-model NAME --report FILE
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import tinker
from tinker import types

warnings.filterwarnings("ignore")
NEW = hasattr(tinker.TrainingClient, "save_weights_external")


def resolved(value: Any) -> Any:
    return value.result() if hasattr(value, "result") else value


def status_of(call: Any) -> int:
    """The HTTP status with which the mesh refuses `call`; 0 when it does not."""
    try:
        resolved(call())
    except tinker.APIStatusError as error:
        return error.status_code
    return 0


class Scenario:
    def __init__(self, base_model: str, other_key: str) -> None:
        self.base_model = base_model
        options = {"display_name": "Nightly run"} if NEW else {}
        self.service = tinker.ServiceClient(user_metadata={"purpose": "rest"}, project_id="first", **options)
        self.rest = self.service.create_rest_client()
        self.other = tinker.ServiceClient(api_key=other_key)
        self.other_rest = self.other.create_rest_client()

    def run(self) -> dict[str, Any]:
        report: dict[str, Any] = {"sdk": tinker.__version__}
        training = resolved(
            self.service.create_lora_training_client(
                base_model=self.base_model, rank=8, seed=3, user_metadata={"renderer_name": "role_colon"}
            )
        )
        self.training = training
        self.run_id = resolved(training.get_info()).model_id
        self.session_id = self.run_id.split(":")[0]
        self.state = training.save_state("state").result().path
        self.kept = training.save_state("kept", ttl_seconds=7200).result().path
        self.sampler = training.save_weights_for_sampler("sampler").result().path
        self.export = training.save_weights_external("export", ttl_seconds=3600).result().path if NEW else ""
        self.shared = [path for path in (self.state, self.sampler, self.export) if path]
        for part in (self.runs, self.checkpoints, self.lifetime, self.sharing, self.sessions):
            report[part.__name__] = part()
        report["files"] = self.external() if NEW else self.archive()
        if NEW:
            report["copies"], report["search"] = self.copies(), self.search()
            report["hosted_only"] = self.hosted_only()
        report["deletion"] = self.deletion()
        return report

    def runs(self) -> dict[str, Any]:
        run = resolved(self.rest.get_training_run(self.run_id))
        same = resolved(self.rest.get_training_run_by_tinker_path(self.state))
        page = resolved(self.rest.list_training_runs(limit=5, offset=0))
        every = resolved(self.rest.list_training_runs(access_scope="accessible"))
        return {
            "own": run.training_run_id == self.run_id == same.training_run_id,
            "metadata": run.user_metadata,
            "base_model": run.base_model,
            "rank": run.lora_rank,
            "last": [run.last_checkpoint.tinker_path, run.last_sampler_checkpoint.tinker_path],
            "listed": [one.training_run_id for one in page.training_runs],
            "cursor": [page.cursor.offset, page.cursor.limit, page.cursor.total_count],
            "accessible": every.cursor.total_count,
            "run_id": self.run_id,
        }

    def checkpoints(self) -> dict[str, Any]:
        of_run = resolved(self.rest.list_checkpoints(self.run_id))
        first = resolved(self.rest.list_user_checkpoints(limit=2, offset=0))
        rest = resolved(self.rest.list_user_checkpoints(limit=2, offset=2))
        info = resolved(self.rest.get_weights_info_by_tinker_path(self.state))
        return {
            "of_run": {c.checkpoint_id: c.checkpoint_type for c in of_run.checkpoints},
            "pages": [c.tinker_path for c in (*first.checkpoints, *rest.checkpoints)],
            "total": first.cursor.total_count,
            "public": [c.public for c in of_run.checkpoints],
            "expiring": [c.checkpoint_id for c in of_run.checkpoints if getattr(c, "expires_at", None)],
            "info": [info.base_model, info.is_lora, info.lora_rank, getattr(info, "train_unembed", True)],
        }

    def entry(self, path: str) -> Any:
        found = resolved(self.rest.list_checkpoints(self.run_id)).checkpoints
        return next((one for one in found if one.tinker_path == path), None)

    def lifetime(self) -> dict[str, Any]:
        rest = self.rest
        resolved(rest.set_checkpoint_ttl_from_tinker_path(self.kept, None))
        cleared = self.entry(self.kept).expires_at is None
        resolved(rest.set_checkpoint_ttl_from_tinker_path(self.state, 86_400))
        days = (self.entry(self.state).expires_at.timestamp() - time.time()) / 86_400
        doomed = self.training.save_state("doomed").result().path
        resolved(rest.set_checkpoint_ttl_from_tinker_path(doomed, 1))
        gone, until = 0, time.monotonic() + 20
        while not gone and time.monotonic() < until:
            gone = status_of(lambda: rest.get_weights_info_by_tinker_path(doomed))
        return {
            "cleared": cleared,
            "days": days,
            "expired": gone,
            "listed": self.entry(doomed) is not None,
            "revived": status_of(lambda: rest.set_checkpoint_ttl_from_tinker_path(doomed, None)),
            "too_long": status_of(lambda: rest.set_checkpoint_ttl_from_tinker_path(self.state, 4_000_000_000)),
        }

    def sharing(self) -> dict[str, Any]:
        """What another tenant may do before, while and after a checkpoint is public."""
        before = self.foreign()
        for path in self.shared:
            resolved(self.rest.publish_checkpoint_from_tinker_path(path))
        shown, during = self.entry(self.state).public, self.foreign()
        sampler = resolved(self.other.create_sampling_client(model_path=self.sampler))
        prompt, parameters = types.ModelInput.from_ints([1, 2, 3]), types.SamplingParams(max_tokens=3)
        sampled = sampler.sample(prompt, 1, parameters).result().sequences[0].tokens
        for path in self.shared:
            resolved(self.rest.unpublish_checkpoint_from_tinker_path(path))
        return {"before": before, "shown": shown, "during": during, "after": self.foreign(), "sampled": len(sampled)}

    def foreign(self) -> dict[str, int]:
        rest = self.other_rest
        attempts = {
            "info": lambda: rest.get_weights_info_by_tinker_path(self.state),
            "sample": lambda: self.other.create_sampling_client(model_path=self.sampler),
            "run": lambda: rest.get_training_run(self.run_id),
            "list": lambda: rest.list_checkpoints(self.run_id),
            "delete": lambda: rest.delete_checkpoint_from_tinker_path(self.state),
            "publish": lambda: rest.publish_checkpoint_from_tinker_path(self.state),
            "unpublish": lambda: rest.unpublish_checkpoint_from_tinker_path(self.state),
            "ttl": lambda: rest.set_checkpoint_ttl_from_tinker_path(self.state, None),
            "session": lambda: rest.get_session(self.session_id),
            "project": lambda: rest.assign_session_project(self.session_id, "theirs"),
        }
        if NEW:
            attempts["urls"] = lambda: rest.get_external_weights_urls(self.export)
        else:
            attempts["archive"] = lambda: rest.get_checkpoint_archive_url_from_tinker_path(self.state)
        return {name: status_of(call) for name, call in attempts.items()}

    def split(self, path: str) -> tuple[str, str]:
        run_id, _, checkpoint_id = path.removeprefix("tinker://").partition("/")
        return run_id, checkpoint_id

    def sessions(self) -> dict[str, Any]:
        listed = resolved(self.rest.list_sessions(limit=1)).sessions
        session = resolved(self.rest.get_session(self.session_id))
        in_first = resolved(self.rest.list_training_runs(project_id="first")).cursor.total_count if NEW else 1
        resolved(self.rest.assign_session_project(self.session_id, "second"))
        in_second = resolved(self.rest.list_training_runs(project_id="second")).cursor.total_count if NEW else 1
        sampling = resolved(self.service.create_sampling_client(model_path=self.sampler))
        sampler_id = resolved(self.rest.get_session(self.session_id)).sampler_ids[0]
        sampler = resolved(self.rest.get_sampler(sampler_id))
        del sampling
        return {
            "listed": listed == [self.session_id],
            "runs": session.training_run_ids == [self.run_id],
            "metadata": getattr(session, "user_metadata", {"purpose": "rest"}),
            "display_name": getattr(session, "display_name", None),
            "projects": [in_first, in_second],
            "sampler": [sampler.base_model, sampler.model_path],
        }

    def external(self) -> dict[str, Any]:
        path = self.export
        answer = resolved(self.rest.get_external_weights_urls(path))
        files = {name: fetch(url) for name, url in answer.urls.items()}
        refused = None
        try:
            self.training.save_weights_external("secret", age_encryption_recipients=["age1xyz"]).result()
        except tinker.RequestFailedError as error:
            refused = str(error)
        url = next(iter(answer.urls.values()))
        return {
            "path": path,
            "type": self.entry(path).checkpoint_type,
            "files": {name: len(data) for name, data in files.items()},
            "range": [fetch(url, "bytes=2-5") == files[next(iter(files))][2:6]],
            "expires_in": answer.expires.timestamp() - time.time(),
            "tampered": [http_status(bent) for bent in (flipped(url), url.replace("expires=", "expires=9"))],
            "age": refused,
            "sampled": status_of(lambda: self.service.create_sampling_client(model_path=path)),
        }

    def archive(self) -> dict[str, Any]:
        answer = resolved(self.rest.get_checkpoint_archive_url_from_tinker_path(self.sampler))
        with tarfile.open(fileobj=io.BytesIO(fetch(answer.url))) as archive:
            names = archive.getnames()
        return {"names": names, "expires_in": answer.expires.timestamp() - time.time()}

    def copies(self) -> dict[str, Any]:
        before = resolved(self.rest.list_training_runs()).cursor.total_count
        copy = resolved(self.rest.copy_weights(self.state, "archive", ttl_seconds=7200))
        run = resolved(self.rest.get_training_run_by_tinker_path(copy))
        loaded = resolved(self.service.create_training_client_from_state_with_optimizer(copy))
        foreign = status_of(lambda: self.other_rest.copy_weights(self.state, "theirs"))
        token = resolved(
            self.other_rest.copy_weights(self.state, "theirs", weights_access_token=os.environ["TINKER_API_KEY"])
        )
        return {
            "own_run": run.training_run_id != self.run_id,
            "metadata": run.user_metadata,
            "total": resolved(self.rest.list_training_runs()).cursor.total_count - before,
            "project": resolved(self.rest.list_training_runs(project_id="archive")).cursor.total_count,
            "loaded": resolved(loaded.get_info()).lora_rank,
            "foreign": foreign,
            "with_token": resolved(self.other_rest.get_weights_info_by_tinker_path(token)).lora_rank,
        }

    def search(self) -> dict[str, Any]:
        request = types.SessionSearchRequest
        for number in range(3):
            client = tinker.ServiceClient(user_metadata={"batch": "x"}, display_name=f"sweep {number} of many")
            resolved(client.create_sampling_client(base_model=self.base_model))
            if number == 2:
                client.close("errored").result()
        pages, ask = [], request(user_metadata={"batch": "x"}, limit=2)
        while True:
            page = resolved(self.rest.search_sessions(ask))
            pages.append([one.display_name for one in page.sessions])
            if page.next_cursor is None:
                break
            ask = ask.model_copy(update={"cursor": page.next_cursor})
        named = resolved(self.rest.search_sessions(request(display_name="RUN night"))).sessions
        active = resolved(self.rest.search_sessions(request(statuses=[{"type": "active"}], session_id=self.session_id)))
        done = resolved(
            self.rest.search_sessions(request(statuses=[{"type": "client_finished", "reasons": ["errored"]}]))
        )
        theirs = resolved(self.other_rest.search_sessions(request(session_id=self.session_id)))
        one = active.sessions[0]
        return {
            "pages": pages,
            "named": [found.session_id == self.session_id for found in named],
            "summary": [
                one.project_id,
                one.display_name,
                one.status.type,
                one.checkpoints_count > 0,
                one.user_metadata,
            ],
            "finished": [[found.display_name, found.status.reason.type] for found in done.sessions],
            "foreign": len(theirs.sessions),
        }

    def hosted_only(self) -> dict[str, int]:
        return {"trace_export": status_of(lambda: self.rest.export_session_trace(self.session_id))}

    def deletion(self) -> dict[str, Any]:
        total = resolved(self.rest.list_user_checkpoints()).cursor.total_count
        resolved(self.rest.delete_checkpoint_from_tinker_path(self.kept))
        resolved(self.rest.delete_checkpoint(*self.split(self.sampler)))
        left = resolved(self.rest.list_user_checkpoints()).cursor.total_count
        again = status_of(lambda: self.rest.delete_checkpoint_from_tinker_path(self.kept))
        saved = self.training.save_state("kept").result().path
        return {"fewer": total - left, "again": again, "name_is_free": saved == self.kept, "last": self.last()}

    def last(self) -> str:
        return str(resolved(self.rest.get_training_run(self.run_id)).last_checkpoint.tinker_path)


def fetch(url: str, span: str = "") -> bytes:
    """By a plain HTTP client, without any key."""
    request = urllib.request.Request(url, headers={"Range": span} if span else {})  # noqa: S310 - our own address
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        assert answer.status == (206 if span else 200)
        return bytes(answer.read())


def flipped(url: str) -> str:
    return url[:-1] + ("0" if url[-1] != "0" else "1")


def http_status(url: str) -> int:
    try:
        fetch(url)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--other-key", default="tml-other-rest-tenant")
    arguments = parser.parse_args()
    report = Scenario(arguments.base_model, arguments.other_key).run()
    arguments.report.write_text(json.dumps(report, default=str))


if __name__ == "__main__":
    main()
