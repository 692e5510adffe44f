"""Files of tasks for `tinkermesh jobs submit`."""

from __future__ import annotations

from pathlib import Path

from services.local.cli_jobs import _tasks


def test_a_line_ends_where_json_lines_end_and_nowhere_else(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    prompt = "a\u2028b\u0085c"
    file.write_text(f'{{"prompt": "{prompt}"}}\r\n\n{{"prompt": "d"}}\n', encoding="utf-8")
    assert _tasks(file) == [{"prompt": prompt}, {"prompt": "d"}]
