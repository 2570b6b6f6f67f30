"""Start-up logs in the wordings that vLLM and servekit have had."""

V1 = """\
(APIServer pid=1) INFO 06-02 00:51:01 [utils.py:253] vLLM API server version 0.19.0
(EngineCore pid=8) INFO 06-02 00:51:05 [core.py:93] Initializing a V1 LLM engine (v0.19.0) with \
config: model='m', max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1
(EngineCore pid=8) INFO 06-02 00:51:05 [s.py:2] Chunked prefill is enabled with \
max_num_batched_tokens=8192.
(EngineCore pid=8) INFO 06-02 00:51:40 [m.py:2] Model loading took 14.99 GiB memory and 32.9 seconds
(EngineCore pid=8) DEBUG 06-02 00:51:41 [w.py:3] Initial free memory: 78.68 GiB; Requested \
memory: 0.95 (util), 75.23 GiB
(EngineCore pid=8) DEBUG 06-02 00:51:58 [w.py:9] Memory profiling takes 17.96 seconds. Total non \
KV cache memory: 17.12GiB; torch peak memory increase: 1.89GiB; non-torch forward increase \
memory: 0.25GiB; weights memory: 14.99GiB.
(EngineCore pid=8) INFO 06-02 00:51:58 [w.py:8] Available KV cache memory: 58.11 GiB
(EngineCore pid=8) INFO 06-02 00:51:58 [k.py:7] GPU KV cache size: 476,016 tokens
(EngineCore pid=8) INFO 06-02 00:51:58 [k.py:9] Maximum concurrency for 8,192 tokens per \
request: 58.11x
(EngineCore pid=8) INFO 06-02 00:52:19 [g.py:3] Graph capturing finished in 21 secs, took 0.91 GiB
"""
"""Llama 3.1 8B on one H100."""

V0 = """\
INFO 02-13 15:56:09 model_runner.py:1115] Loading model weights took 14.99 GB
INFO 02-13 15:56:20 worker.py:267] Memory profiling takes 11.34 seconds
INFO 02-13 15:56:20 worker.py:267] the current vLLM instance can use total_gpu_memory \
(79.19GiB) x gpu_memory_utilization (0.90) = 71.27GiB
INFO 02-13 15:56:20 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.13GiB; \
PyTorch activation peak memory takes 1.19GiB; the rest of the memory reserved for KV Cache is \
54.96GiB.
INFO 02-13 15:56:21 executor_base.py:110] # CUDA blocks: 28139, # CPU blocks: 2048
INFO 02-13 15:56:21 executor_base.py:115] Maximum concurrency for 8192 tokens per request: 54.96x
INFO 02-13 15:56:40 model_runner.py:1563] Graph capturing finished in 15 secs, took 0.24 GiB
"""

RESULTS = """\
INFO 12-13 19:54:18 worker.py:243] Memory profiling results:
INFO 12-13 19:54:18 worker.py:243] total_gpu_memory     79.22GiB
INFO 12-13 19:54:18 worker.py:243] the current vLLM instance can use    71.29GiB
INFO 12-13 19:54:18 worker.py:243] model weights take   14.96GiB
INFO 12-13 19:54:18 worker.py:243] non_torch_memory     1.79GiB
INFO 12-13 19:54:18 worker.py:243] PyTorch activation peak memory       1.26GiB
INFO 12-13 19:54:18 worker.py:243] available_kv_cache_memory    53.29GiB
"""

PAIRS = """\
INFO 10-07 22:54:57 model_runner.py:1014] Loading model weights took 14.99 GB
INFO 10-07 22:54:59 worker.py:232] Memory profiling results: total_gpu_memory=79.22GiB \
initial_memory_usage=15.50GiB peak_torch_memory=16.88GiB memory_usage_post_profile=15.60GiB \
non_torch_memory=0.59GiB kv_cache_size=53.83GiB gpu_memory_utilization=0.90
INFO 10-07 22:55:00 gpu_executor.py:122] # GPU blocks: 27559, # CPU blocks: 2048
"""

USAGE = """\
(EngineCore_DP0 pid=9) INFO 02-03 04:44:01 [w.py:5] Free memory on device (47.03/47.37 GiB) on \
startup. Desired GPU memory utilization is (0.9, 42.64 GiB). Actual usage is 14.99 GiB for \
weight, 1.4 GiB for peak activation, 0.03 GiB for non-torch memory, and 0.54 GiB for CUDAGraph \
memory. Replace gpu_memory_utilization config with `--kv-cache-memory=22976439705` (21.4 GiB).
"""

CONSUMED = """\
INFO w.py:8] Model loading took 14.99 GiB memory and 26.5 seconds
INFO w.py:9] Estimated CUDA graph memory: 1.10 GiB total
INFO w.py:9] Free memory on device (137.64/139.8 GiB) on startup. Desired GPU memory utilization \
is (0.9, 125.82 GiB). Actual usage is 16.19 GiB for consumed memory (weights + non-torch), 4.04 \
GiB for peak activation, and 1.2 GiB for CUDAGraph memory. Current kv cache memory in use is \
104.4 GiB.
"""

SERVEKIT = """\
listening on http://127.0.0.1:8000, loading llama-3.1-8b
load done in 2.1 s
weights: planned 14.958 GiB, measured 14.990 GiB; KV cache: planned 442,000 tokens, measured \
441,008 tokens
ready: llama-3.1-8b on http://127.0.0.1:8000
"""


def ranks(
    count: int, kv: list[float], *, process: str = "VllmWorker rank={rank} pid=10{rank}"
) -> str:
    """Llama 3.3 70B in fp8 over some H100; the ranks differ in what is left for the cache."""
    lines = []
    for rank in range(count):
        who = f"({process.format(rank=rank)})"
        lines += [
            f"{who} INFO 06-02 00:51:40 [m.py:2] Model loading took 33.88 GiB and 32.9 seconds",
            f"{who} INFO 06-02 00:51:58 [w.py:8] Available KV cache memory: {kv[rank]:.2f} GiB",
        ]
    return "\n".join(lines) + "\n"
