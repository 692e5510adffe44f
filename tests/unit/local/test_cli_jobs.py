"""Files of tasks for `tinkermesh jobs submit`, and of results."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from services.common.errors import InvalidInput
from services.local.cli_jobs import _tasks, _write


def test_a_line_ends_where_json_lines_end_and_nowhere_else(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    prompt = "a\u2028b\u0085c"
    file.write_text(f'{{"prompt": "{prompt}"}}\r\n\n{{"prompt": "d"}}\n', encoding="utf-8")
    assert _tasks(file) == [{"prompt": prompt}, {"prompt": "d"}]


def test_files_are_utf_8_whatever_the_machines_own_encoding_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "text_encoding", lambda encoding, stacklevel=2: encoding or "latin-1")
    file = tmp_path / "tasks.jsonl"
    assert _write(file, ['{"prompt": "世"}', '{"prompt": "ü"}']) == 2
    assert file.read_bytes().decode() == '{"prompt": "世"}\n{"prompt": "ü"}\n'
    assert _tasks(file) == [{"prompt": "世"}, {"prompt": "ü"}]


def test_a_file_that_cannot_be_written_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--out: .* cannot be written: Is a directory"):
        _write(tmp_path, ["x"])
