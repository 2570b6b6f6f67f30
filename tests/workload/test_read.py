"""Traces of others, read as they are published, and what is said of those that are malformed."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servekit.errors import ConfigError
from servekit.workload.read import read, trace_of, write_trace
from servekit.workload.trace import Trace

Written = Callable[[str | bytes], Path]

AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
"""
BURSTGPT_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.5,,2.5,ChatGPT,472,18,490,API log
7.0,ab-1,1.5,ChatGPT,1087,230,1317,Conversation log
"""
VIDUR = """\
arrived_at,num_prefill_tokens,num_decode_tokens
0.0,374,44
4.31,396,109
"""
MOONCAKE = """\
{"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}
{"timestamp": 30500, "input_length": 1024, "output_length": 26, "hash_ids": [46, 47]}
"""
SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "x" * 40},
            {"from": "gpt", "value": "y" * 20},
            {"from": "human", "value": "x" * 8},
            {"from": "gpt", "value": "y" * 4},
        ],
    },
    {"id": "b", "conversations": [{"from": "human", "value": "nobody answers"}]},
    {"id": "c", "conversations": [{"from": "gpt", "value": "yyyy"}]},
]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "requests"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def columns(trace: Trace) -> tuple[list[float], list[int], list[int]]:
    return [round(at, 6) for at in trace.at], [*trace.prompt_tokens], [*trace.output_tokens]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (AZURE_2023, ([0.0, 4.314579], [374, 396], [44, 109])),
        (AZURE_2024, ([0.0, 0.007405], [2162, 2399], [5, 6])),
        (BURSTGPT, ([0.0, 40.0], [472, 1087], [18, 230])),
        (BURSTGPT_3, ([0.0, 1.5], [472, 1087], [18, 230])),
        (VIDUR, ([0.0, 4.31], [374, 396], [44, 109])),
        (MOONCAKE, ([0.0, 3.5], [1100, 1024], [52, 26])),
    ],
)
def test_a_published_trace_is_read_as_it_is(
    written: Written, content: str, expected: tuple[list[float], list[int], list[int]]
) -> None:
    assert columns(read(written(content))) == expected


@pytest.mark.parametrize("content", [AZURE_2023, BURSTGPT, VIDUR, MOONCAKE])
def test_byte_order_marks_windows_lines_blank_lines_and_gzip_change_nothing(
    written: Written, content: str
) -> None:
    expected = columns(read(written(content)))
    for changed in (
        content.encode("utf-8-sig"),
        content.replace("\n", "\r\n").encode(),
        content.replace("\n", "\n\n").encode(),
        content.rstrip().encode(),
        gzip.compress(content.encode()),
    ):
        assert columns(read(written(changed))) == expected


def test_a_file_is_read_again_only_once_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(VIDUR)
    trace = trace_of(str(path))
    assert trace_of(str(path)) is trace
    path.write_text(VIDUR + "9.0,5,5\n")
    assert len(trace_of(str(path))) == 3


def test_the_name_of_a_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "azure.json"
    path.write_text(VIDUR)
    assert len(read(path)) == 2


def test_failed_requests_are_left_out_and_counted(written: Written) -> None:
    trace = read(written(BURSTGPT + "120,GPT-4,0,9,9,API log\n"))
    assert len(trace) == 2
    assert trace.dropped == {"no answer": 1, "no prompt": 1}


def test_requests_out_of_order_are_put_in_order(written: Written) -> None:
    header, *rows = VIDUR.splitlines()
    trace = read(written("\n".join([header, *reversed(rows)])))
    assert columns(trace) == columns(read(written(VIDUR)))
    assert trace.reordered
    assert not read(written(VIDUR)).reordered


def test_columns_may_stand_in_any_order_and_others_between_them(written: Written) -> None:
    content = "Num_Decode_Tokens , x,num_prefill_tokens,arrived_at\n44,?,374,0.5\n"
    assert columns(read(written(content))) == ([0.0], [374], [44])


def test_equal_hash_ids_are_equal_blocks(written: Written) -> None:
    trace = read(written(MOONCAKE))
    assert trace.block_size == 512
    assert trace.blocks == [(0, 1, 2), (0, 1)]


def test_conversations_become_turns_that_repeat_what_was_said(written: Written) -> None:
    trace = read(written(json.dumps(SHAREGPT)))
    assert [*trace.prompt_tokens] == [10, 17]
    assert [*trace.output_tokens] == [5, 1]
    assert trace.conversations() == [[0, 1]]
    assert not trace.at
    assert trace.dropped == {"no answer": 2}


def test_conversations_may_stand_in_lines_too(written: Written) -> None:
    lines = "\n".join(json.dumps(entry) for entry in SHAREGPT)
    by_lines, by_list = read(written(lines)), read(written(json.dumps(SHAREGPT)))
    assert by_lines.prompt_tokens == by_list.prompt_tokens
    assert by_lines.dropped == by_list.dropped


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (VIDUR + "nan,1,1\n", ["line 4: arrived_at is 'nan', not a number"]),
        (VIDUR + "1,-3,1\n", ["line 4: num_prefill_tokens is '-3', not a whole number"]),
        (VIDUR + "1,3,1e999\n", ["line 4: num_decode_tokens is '1e999', which is too large"]),
        (VIDUR + "1,3,inf\n", ["line 4: num_decode_tokens is 'inf', not a number"]),
        (VIDUR + f"1,{'9' * 5000},1\n", ["line 4: num_prefill_tokens is '9999", "too large"]),
        (MOONCAKE.replace("1024", "9" * 5000), ["line 2: a number in it is too large"]),
        (MOONCAKE.replace("1024", "9" * 400), ["line 2: input_length is 999", "too large"]),
        (VIDUR + "1,3,1e18\n", ["line 4: num_decode_tokens is '1e18', not a whole number from"]),
        (VIDUR + "1e300,3,1\n", ["line 4: arrived_at is '1e300', which is no time"]),
        (VIDUR + "1,3.5,1\n", ["line 4: num_prefill_tokens is '3.5'"]),
        (VIDUR + "1,3\n2,,1\n", ["line 4: 2 cells under 3 columns", "line 5: num_prefill"]),
        (VIDUR + '"1,3,1\n', ["line 4:"]),
        (AZURE_2023 + "yesterday,1,1\n", ["line 4: timestamp is 'yesterday', not a date"]),
        (MOONCAKE + "{", ["line 3:"]),
        (MOONCAKE + "7\n", ["line 3: not a JSON object"]),
        (MOONCAKE + '{"timestamp": NaN}\n', ["line 3: NaN is not a number"]),
        (MOONCAKE + '{"timestamp": 1, "input_length": 3}\n', ["line 3: no output_length"]),
        (
            MOONCAKE.replace("1024", "512"),
            ["line 2: hash_ids has 2 blocks of 512 tokens, but the prompt has 512"],
        ),
        (MOONCAKE.replace("[46, 47]", "[46, {}]"), ["line 2: an entry of hash_ids is {}"]),
        (MOONCAKE.replace("[46, 47]", "46"), ["line 2: hash_ids is 46, not a list"]),
        (MOONCAKE.replace("1024", "true"), ["line 2: input_length is True, not a number"]),
        (json.dumps([*SHAREGPT, {"id": 1}]), ["entry 4: no list of conversations"]),
        (json.dumps([{"conversations": [7]}]), ["entry 1: a message is no text"]),
        ("[" * 100_000, ["begins like a JSON list, but is none: nested too deeply"]),
        ('{"input_length": ' + "[" * 100_000, ["line 1: nested too deeply"]),
    ],
)
def test_malformed_requests_are_named_with_their_line(
    written: Written, content: str, messages: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        read(written(content))
    for message in messages:
        assert message in str(error.value)
    assert error.value.param == "workload.trace"


def test_of_many_malformed_lines_the_first_are_named_and_the_others_counted(
    written: Written,
) -> None:
    with pytest.raises(ConfigError) as error:
        read(written(VIDUR + "x,1,1\n" * 100))
    assert "100 of its requests cannot be read" in str(error.value)
    assert "line 23:" in str(error.value)
    assert "line 24:" not in str(error.value)
    assert "and 80 more" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        (AZURE_2023.splitlines()[0], "no request to replay"),
        (BURSTGPT.splitlines()[0] + "\n1,a,1,0,1,b\n", "no request to replay; 1 with no answer"),
        ("a,b,c\n1,2,3\n", "has the columns 'a, b, c'"),
        ('{"a": 1}\n', "has the keys 'a'"),
        (b"\xff\xfe" + AZURE_2023.encode("utf-16-le"), "is not text in UTF-8"),
        (gzip.compress(VIDUR.encode())[:-12], "cannot be read"),
        (gzip.compress(VIDUR.encode())[:12] + b"\0\1\2" * 9, "cannot be read"),
        ("[]", "no request to replay"),
        ("[1, 2", "begins like a JSON list, but is none"),
    ],
)
def test_a_file_that_is_no_trace_says_what_one_is(
    written: Written, content: str | bytes, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(written(content))
    assert message in str(error.value)


def test_no_file_of_that_name_names_the_traces_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file.*azure_conv, azure_code"):
        read(tmp_path / "nothing.csv")
    with pytest.raises(ConfigError, match="no such file"):
        read(tmp_path)


def test_a_message_holds_no_character_that_acts_on_a_terminal(written: Written) -> None:
    for content in ("\x1b[2J,b\n", VIDUR + "\x1b[2J,1,1\n", '{"\\u001b[2J": 1}', '["\\u001b[2J"]'):
        with pytest.raises(ConfigError) as error:
            read(written(content))
        assert "\x1b" not in str(error.value)


ENTRY = st.fixed_dictionaries(
    {"arrival_s": st.floats(0, 1e6), "input_tokens": st.integers(1, 2000),
     "output_tokens": st.integers(1, 500)},
    optional={
        "session_id": st.integers(0, 3),
        "tenant": st.sampled_from(["a", "b"]),
        "priority": st.integers(-5, 5),
        "slo_class": st.sampled_from(["batch", "interactive"]),
    },
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
@given(st.lists(ENTRY, min_size=1, max_size=8), st.booleans())
def test_our_own_format_is_read_as_it_was_written(
    written: Written, entries: list[dict[str, Any]], blocks: bool
) -> None:
    if blocks:
        for entry in entries:
            entry["prefix_hashes"] = ["x", entry["input_tokens"]][: -(-entry["input_tokens"] // 16)]
            entry["block_size"] = 16
    path = written("\n".join(json.dumps(entry) for entry in entries))
    trace = read(path)
    write_trace(trace, path)
    again = read(path)
    assert again == trace or again.reordered != trace.reordered
    for name in ("at", "prompt_tokens", "blocks", "tenants", "priorities", "slo_classes"):
        assert getattr(again, name) == getattr(trace, name)
    assert again.conversations() == trace.conversations()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"priority": "high"}, "priority is 'high', not a whole number"),
        ({"slo_class": "fast"}, "slo_class is 'fast', not interactive or batch"),
        ({"prefix_hashes": [1]}, "no block_size"),
        ({"prefix_hashes": [1], "block_size": 0}, "block_size is 0"),
        ({"prefix_hashes": [1], "block_size": 8}, "line 2: block_size is 8, not 16"),
        ({"tennant": "a"}, "line 2: 'tennant' is no key of this format; did you mean tenant?"),
        ({"output": 1}, "line 2: 'output' is no key of this format"),
        ({"zzz": None}, "'zzz' is no key of this format; there are arrival_s, input_tokens,"),
        ({"session_id": 1.5}, "session_id is 1.5, not text or a whole number"),
        ({"tenant": "\ud800"}, "tenant is '\\ud800', which has half of a surrogate pair"),
    ],
)
def test_what_our_own_format_does_not_know_is_refused(
    written: Written, entry: dict[str, Any], message: str
) -> None:
    base = {"arrival_s": 1.0, "input_tokens": 40, "output_tokens": 2}
    first = {**base, "prefix_hashes": ["a"], "block_size": 16}
    with pytest.raises(ConfigError) as error:
        read(written(f"{json.dumps(first)}\n{json.dumps({**base, **entry})}\n"))
    assert message in str(error.value)


def test_a_trace_says_of_all_requests_when_they_came_or_of_none(written: Written) -> None:
    lines = [
        {"input_tokens": 1, "output_tokens": 1},
        {"input_tokens": 1, "output_tokens": 1, "arrival_s": 3},
    ]
    with pytest.raises(ConfigError, match="of 1 requests when they came and of 1 not"):
        read(written("\n".join(json.dumps(line) for line in lines)))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, print_blob=True
)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:0123e-.\n\x00abt', max_size=200).map(
    lambda text: (VIDUR + text).encode()
))  # fmt: skip
def test_any_bytes_are_a_trace_or_a_configuration_error(written: Written, content: bytes) -> None:
    path = written(content)
    try:
        requests = len(read(path))
    except ConfigError as refusal:
        requests = 0
        told = str(path) in str(refusal)
    assert requests > 0 or told
