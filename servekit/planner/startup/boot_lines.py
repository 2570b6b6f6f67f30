"""What start-up logs say about memory: those of servekit, and of vLLM in its several wordings.

Sizes are GiB; what old versions print as GB and MB are GiB and MiB all the same. Every rank may
have its own lines; a log with several starts in it counts from the last.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from servekit.config.paths import plain_file
from servekit.errors import ConfigError

SIZE = r"(-?\d[\d,]{0,8}(?:\.\d+)?) ?([GM])i?B"
"""No more digits than a size has: a longer row of them is no size."""

LONG = r"\d[\d,]{0,15}(?![\d,])"
RANK_SIZES: tuple[tuple[str, str], ...] = (
    ("weights", rf"(?:Model loading|Loading model weights) took {SIZE}"),
    ("weights", rf"model weights take +{SIZE}"),
    ("weights", rf"weights memory: ?{SIZE}"),
    ("weights", rf"{SIZE} for weights?\b"),
    ("activations", rf"PyTorch activation peak memory(?: takes)? +{SIZE}"),
    ("activations", rf"torch peak memory increase: ?{SIZE}"),
    ("activations", rf"{SIZE} for peak activation"),
    ("peak_torch", rf"peak_torch_memory={SIZE}"),
    ("non_torch", rf"non_torch_memory takes {SIZE}"),
    ("non_torch", rf"non-torch forward increase memory: ?{SIZE}"),
    ("non_torch", rf"{SIZE} for non-torch memory"),
    ("outside_torch", rf"non_torch_memory(?:=| +){SIZE}"),
    ("consumed", rf"total consumed \(from mem_get_info\): ?{SIZE}"),
    ("consumed", rf"{SIZE} for consumed memory"),
    ("graphs", rf"Graph capturing finished in .{{1,40}}?took {SIZE}"),
    ("graphs", rf"{SIZE} for \w+ ?graph memory"),
    ("graphs_estimate", rf"Estimated CUDA graph memory: ?{SIZE}"),
    ("kv", rf"Available KV cache memory: ?{SIZE}"),
    ("kv", rf"memory reserved for KV Cache is {SIZE}"),
    ("kv", rf"available_kv_cache_memory +{SIZE}"),
    ("kv", rf"\bkv_cache_size={SIZE}"),
    ("total", rf"total_gpu_memory(?:=| +| \(){SIZE}"),
    ("requested", rf"gpu_memory_utilization \([\d.]+\) = {SIZE}"),
    ("requested", rf"the current vLLM instance can use +{SIZE}"),
    ("requested", rf"requested memory: ?(?:[\d.]+ \(util\), )?{SIZE}"),
    ("free_at_start", rf"Free memory on device \({SIZE}"),
    ("free_at_start", r"Free memory on device \(([\d.]+)/[\d.]+ ([GM])iB"),
    ("total", r"Free memory on device \([\d.]+/([\d.]+) ([GM])iB"),
    ("requested", rf"Desired GPU memory utilization is \([\d.]+, {SIZE}"),
    ("weights", r"weights: planned [\d.]+ GiB, measured ([\d.]+) (G)iB"),
)
"""A size of one rank, by the sentences that say it; the digits and the letter of the unit."""

NUMBERS: tuple[tuple[str, str], ...] = (
    ("num_blocks", rf"# (?!CPU)\w+ blocks: ?({LONG})"),
    ("kv_tokens", rf"KV cache size: ?({LONG}) tokens"),
    ("kv_tokens", rf"KV cache: planned [\d,]+ tokens, measured ({LONG}) tokens"),
    ("concurrency_tokens", rf"Maximum concurrency for ({LONG}) tokens"),
    ("concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: ({LONG}(?:\.\d+)?)x"),
    ("tensor", r"\btensor_parallel_size'?[=:] ?(\d{1,15})(?!\d)"),
    ("pipeline", r"\bpipeline_parallel_size'?[=:] ?(\d{1,15})(?!\d)"),
    ("step_tokens", r"\bmax_num_batched_tokens'?[=:] ?(\d{1,15})(?!\d)"),
    ("seats", r"\bmax_num_seqs'?[=:] ?(\d{1,15})(?!\d)"),
)
"""A number of the whole engine; the least of those that several processes print."""

SIZES_OF = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in RANK_SIZES]
NUMBERS_OF = [(name, re.compile(pattern)) for name, pattern in NUMBERS]
WORTH_READING = (
    *(b"took ", b" takes", b"model weights", b"weights memory", b" for weight", b"torch"),
    *(b"consumed", b"graph memory", b"kv cache memory", b"for kv cache", b"kv_cache_", b"can use"),
    *(b"kv cache size", b"kv cache: planned", b" blocks: ", b"maximum concurrency", b"max_num_"),
    *(b"_parallel_size", b"total_gpu_memory", b"requested memory", b"memory on device"),
    *(b"listening on http", b"initializing a", b"api server version"),
)
"""Parts of the lines that say something, in lower case: a log may be of weeks of serving."""

STARTS = re.compile(
    r"vLLM API server version|Initializing an? (?:V\d )?LLM engine|^listening on http"
)
COLOURS = re.compile(r"(?:\x1b|#033)\[[\d;?]*[A-Za-z]")
PROCESS = re.compile(
    r"\((?P<name>[A-Za-z_]\w*(?: rank=\d+)?) pid=(?P<pid>\d+)|\[rank(?P<rank>\d+)\]:"
)
LONGEST_LINE = 1 << 16


@dataclass(slots=True)
class BootLog:
    """Values by the names of the tables above, of the last start; `ranks` by process."""

    ranks: dict[str, dict[str, float]] = field(default_factory=dict)
    engine: dict[str, float] = field(default_factory=dict)

    def read(self, line: str) -> None:
        if STARTS.search(line):
            self.forget()
        for name, pattern in NUMBERS_OF:
            if found := pattern.search(line):
                value = float(found[1].replace(",", ""))
                self.engine[name] = min(value, self.engine.get(name, value))
        sizes = {
            name: gib(found[1], found[2])
            for name, pattern in SIZES_OF
            if (found := pattern.search(line))
        }
        if sizes:
            self.ranks.setdefault(process(line), {}).update(sizes)

    def forget(self) -> None:
        """A new start; engines that start side by side say so before they measure anything."""
        if any("weights" in rank for rank in self.ranks.values()):
            self.ranks, self.engine = {}, {}


def gib(digits: str, unit: str) -> float:
    amount = float(digits.replace(",", ""))
    return amount if unit.upper() == "G" else amount / 1024


def process(line: str) -> str:
    """Who printed a line: the rank if it says so, else the process; empty for the only one."""
    found = PROCESS.search(line)
    if found is None:
        return ""
    if found["rank"] is not None:
        return f"rank {found['rank']}"
    numbered = re.search(r"\d", found["name"])
    return found["name"] if numbered else f"{found['name']} {found['pid']}"


def read_log(path: Path) -> BootLog:
    """Raises ConfigError for a file that cannot be read."""
    log = BootLog()
    try:
        for line in lines_of(path):
            log.read(line)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}; --from-log takes the text that a "
            "start of servekit or vLLM printed"
        ) from None
    return log


def lines_of(path: Path) -> Iterator[str]:
    """Those that may say something, without colours; a line without an end comes in pieces."""
    with plain_file(path).open("rb") as stream:
        pieces: Iterable[bytes] = iter(lambda: stream.readline(LONGEST_LINE), b"")
        for piece in pieces:
            lower = piece.lower()
            if any(part in lower for part in WORTH_READING):
                for line in COLOURS.sub("", piece.decode("utf-8", "replace")).split("\r"):
                    yield line.strip()
