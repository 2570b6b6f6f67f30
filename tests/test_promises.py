"""docs/promises.md: each promise names a test, and the test is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (?!Promise)(?!-)(.+) \| (.+) \|$", re.MULTILINE)


def test_every_promise_names_tests_that_exist() -> None:
    rows = ROW.findall((ROOT / "docs" / "promises.md").read_text())
    assert rows
    for promise, held_by in rows:
        tests = re.findall(r"`([^`]+)`", held_by)
        assert tests, f"nothing holds: {promise}"
        for test in tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).is_file(), f"{promise}: there is no {path}"
            assert not name or f"def {name}(" in (ROOT / path).read_text(), f"no test {test}"
