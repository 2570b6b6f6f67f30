"""guidellm, as released, measures a running server; `pip install '.[clients]'` brings it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.conftest import Running

COMMAND = shutil.which("guidellm", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(COMMAND is None, reason="guidellm is not installed: pip install '.[clients]'")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_request_of_a_benchmark_is_answered(
    server: Running, tmp_path: Path, path: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "number {i}"}}\n' for i in range(6)))
    report = tmp_path / "report.json"
    options = {
        "--backend": f"kind=openai_http,target={server.url},model=tiny,request_format={path}",
        "--profile": "kind=concurrent,streams=2",
        "--constraint": "kind=max_requests,count=6",
        "--data": f"kind=json_file,path={prompts}",
        "--output": f"kind=json,path={report}",
    }
    words = [word for pair in options.items() for word in pair]
    command = [str(COMMAND), "run", *words, "--disable-console"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (6, 0)
    assert {len(stream.prompt) > 0 for stream in server.engine.streams} == {True}
