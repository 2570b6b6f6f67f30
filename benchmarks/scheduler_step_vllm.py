"""vLLM V1's scheduler under the load of `benchmarks.scheduler_step`; run by an interpreter that has
it. Prints what that makes of `schedule()` and `update_from_output()`, as JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "torch_dtype": "float32",
}


def scheduler_of(load: dict[str, int], folder: str) -> Any:
    """With prefix caching, as ours; nothing of the model is loaded."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    Path(folder, "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32")
    cache = CacheConfig(block_size=load["block"], enable_prefix_caching=True)
    cache.num_gpu_blocks = load["blocks"]
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=load["seats"],
            max_num_batched_tokens=load["budget"],
            max_model_len=32768,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
    )
    spec = FullAttentionSpec(
        block_size=load["block"], num_kv_heads=1, head_size=64, dtype=torch.float32
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=load["blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=load["block"],
    )


def measured(scheduler: Any, running: int, load: dict[str, int]) -> Any:
    from vllm.envs import enable_envs_cache
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from benchmarks.scheduler_step import measure

    enable_envs_cache()  # as its engine does once it has started
    init_none_hash(sha256)
    hasher = get_request_block_hasher(load["block"], sha256)

    # made by another process, so not part of an arrival
    asked = {
        most: SamplingParams(max_tokens=most, stop_token_ids=[2]) for most in (1, load["answer"])
    }
    for sampling in asked.values():
        sampling.update_from_generation_config({}, eos_token_id=2)

    def arrive(id: int, prompt: list[int], max_tokens: int) -> None:
        when, params = float(id), asked[max_tokens]
        scheduler.add_request(
            Request(str(id), prompt, params, None, arrival_time=when, block_hasher=hasher)
        )

    def step() -> tuple[float, int, int]:
        before = time.thread_time()
        plan = scheduler.schedule()
        planned = time.thread_time()
        ids = list(plan.num_scheduled_tokens)
        lacking = [scheduler.requests[id] for id in ids]
        sampled = [[7] if r.num_computed_tokens >= r.num_tokens else [] for r in lacking]
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: index for index, id in enumerate(ids)},
            sampled_token_ids=sampled,
        )
        sampling, tokens = sum(map(len, sampled)), plan.total_num_scheduled_tokens
        ran = time.thread_time()
        scheduler.update_from_output(plan, result)
        return planned - before + time.thread_time() - ran, sampling, tokens

    return measure(running, load, arrive, step)


def main() -> None:
    from benchmarks.scheduler_step import load_of

    running, kind = int(sys.argv[1]), sys.argv[2]
    load = load_of(running, kind)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(scheduler_of(load, folder), running, load)))


if __name__ == "__main__":
    main()
