"""The document says what the server does: schemathesis finds nothing between the two."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from servekit.server.access import CLASSES
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, make_service
from tests.server.keyed import bearer, key_file, line

KEY = "sk-all"
STREAMING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
NOT_HELD = [positive_data_acceptance]
"""A body may have the form of the document and still be refused, for a token id beyond
the vocabulary or a prompt that is too long."""


@pytest.fixture(scope="module")
def documented(
    start_server: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    keys = key_file(tmp_path_factory.mktemp("keys"), line(KEY, access=["inference", "admin"]))
    return start_server(FakeEngine(), tiny_config(server={"api_keys": keys}))


def test_every_route_is_in_the_document(documented: Running) -> None:
    _, app = make_service(FakeEngine(), documented.service.config)
    with documented.client(headers=bearer(KEY)) as http:
        paths = http.get("/openapi.json").json()["paths"]
    registered = {
        (str(route.path).replace(":path}", "}"), method.lower())
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        for method in handler.http_methods
        if handler.opt.get("access") in CLASSES
    }
    assert registered == {(path, method) for path in paths for method in paths[path]}
    assert ("/v1/chat/completions", "post") in registered
    posts = [path for path, operations in paths.items() if "post" in operations]
    assert [path for path in posts if "requestBody" not in paths[path]["post"]] == []


def test_the_document_says_limits_and_who_may_ask(documented: Running) -> None:
    with documented.client(headers=bearer(KEY)) as http:
        document = http.get("/openapi.json").json()
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 16}
    assert fields["model"]["enum"] == ["tiny"]
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"key": []}]
    assert document["paths"]["/livez"]["get"]["security"] == []
    assert "queue_full" in chat["responses"]["429"]["description"]
    assert {"400", "401", "403", "404", "413", "415", "429", "500", "503"} <= {*chat["responses"]}


def test_the_document_is_for_those_who_have_a_key(documented: Running) -> None:
    assert httpx.get(f"{documented.url}/openapi.json").status_code == 401


def operations(documented: Running) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{documented.url}/openapi.json", headers=bearer(KEY))
    schema.config.update(base_url=documented.url)
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_schemathesis_finds_nothing(documented: Running, mode: GenerationMode) -> None:
    heard: dict[str, set[int]] = {}
    streamed: set[str] = set()
    found = [one for one in operations(documented) if one.body or mode is GenerationMode.POSITIVE]
    for operation in found:

        @given(case=operation.as_strategy(generation_mode=mode), stream=st.booleans())
        @settings(
            max_examples=100 if operation.body else 20,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any, stream: bool) -> None:
            if mode is GenerationMode.POSITIVE and case.path in STREAMING:
                case.body["stream"] = stream
            case.headers["Authorization"] = f"Bearer {KEY}"
            answer = case.call_and_validate(excluded_checks=NOT_HELD, timeout=10)
            heard.setdefault(case.path, set()).add(answer.status_code)
            if answer.status_code == 200 and "text/event-stream" in str(answer.headers):
                streamed.add(case.path)

        ask()
    assert set(heard) == {one.path for one in found}
    if mode is GenerationMode.POSITIVE:
        assert all(200 in statuses for path, statuses in heard.items() if "{" not in path)
        assert streamed == set(STREAMING)
    else:
        assert all(400 in statuses for statuses in heard.values())
