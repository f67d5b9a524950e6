"""Engine settings that a VoxCPM2 model needs, applied by vLLM while it builds its configuration."""

from vllm.config import VllmConfig
from vllm.config.compilation import CompilationMode, CUDAGraphMode
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.platforms import current_platform

from voxnative.batch_buckets import batch_buckets
from voxnative.engine import batch_invariance
from voxnative.engine.cpu_binding import share_cores
from voxnative.engine.cpu_threads import leave_one_core
from voxnative.engine.fork_threads import compute_alone_after_a_fork
from voxnative.engine.options import SECTION, SpeechOptions
from voxnative.tensor_split import check_split

CPU_KV_BLOCK = 32  # positions; the CPU's attention wants a multiple of 32
CPU_WORKER = "voxnative.engine.worker_cpu.SpeechCPUWorker"
CUDA_WORKER = "voxnative.engine.worker_gpu.SpeechGPUWorker"
ADMISSION = "voxnative.engine.admission:SpeechAdmission"
ADMISSION_V2 = "voxnative.engine.admission:SpeechAdmissionV2"
# Tokens of one step on CUDA: the prompts of 64 requests that arrive together fit into one.
MAX_STEP_TOKENS = 8192
# Tokens of one step up to which the language models replay a graph, decoding rows and prompts
# together: launched one by one, their 36 layers keep the host busy for 30 to 60 ms a step.
MAX_GRAPH_TOKENS = MAX_STEP_TOKENS
MAX_LORA_GRAPH_TOKENS = 1024  # vLLM captures each size again for each number of adapters
# Patches of given audio that are encoded in one step; the rest waits for the next ones.
MAX_ENCODED_PATCHES = 2048
# FlashAttention 3 keeps a partial result of every token for each split of the keys it may make in
# a graph: 2 GB for vLLM's 32 splits of 8,192 tokens. Eight keep a GPU busy at our lengths.
VLLM_KEY_SPLITS, KEY_SPLITS = 32, 8


class SpeechEngineConfig(VerifyAndUpdateConfig):
    """Choose our worker and refuse what would lose or corrupt audio.

    Source: vLLM 0.32, ``vllm/config/vllm.py:try_verify_and_update_config``.
    """

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Set the worker class where the user left it open.

        Raises:
            ValueError: a setting that this model cannot honour; the message names it.
        """
        parallel = vllm_config.parallel_config
        refuse = {
            "speculative_config": vllm_config.speculative_config is not None,
            "kv_transfer_config": vllm_config.kv_transfer_config is not None,
            "pipeline_parallel_size > 1": parallel.pipeline_parallel_size > 1,
        }
        for setting, is_set in refuse.items():
            if is_set:
                raise ValueError(
                    f"{setting} cannot be used with VoxCPM2: audio is generated beside the "
                    "tokens and cannot be rolled back, moved or split by layers. Leave it unset."
                )
        options = SpeechOptions.from_additional_config(vllm_config.additional_config)
        if vllm_config.lora_config is not None and options.compile_solver:
            raise ValueError(
                f"additional_config['{SECTION}']['compile_solver']: True is not valid with "
                "enable_lora: compiled layers take no adapters; valid: false, or unset"
            )
        model = vllm_config.model_config
        check_split(model.hf_config.vox_config(), parallel.tensor_parallel_size)
        is_v2 = not current_platform.is_cpu() and vllm_config.use_v2_model_runner
        admission = ADMISSION_V2 if is_v2 else ADMISSION
        model.logits_processors = [*(model.logits_processors or []), admission]
        if current_platform.is_cpu():
            # vLLM would run the audio encoder over a full budget of 30 s recordings at once: ten of
            # them take 13 GB at the shipped size. A CPU's KV memory does not depend on the result.
            model.multimodal_config.skip_mm_profiling = True
            cache = vllm_config.cache_config
            if not cache.user_specified_block_size:
                # Only whole blocks are shared: of vLLM's 128 positions for a CPU, a voice of 10 s
                # (63 patches) would not fill one.
                cache.block_size, cache.user_specified_block_size = CPU_KV_BLOCK, True
            if parallel.distributed_executor_backend == "uni":
                from vllm.v1.executor.uniproc_executor import UniProcExecutor

                # vLLM would start the only worker as a process of its own, for its way to bind
                # OpenMP threads: ten seconds more of imports, a gigabyte, a hop a step, and one
                # core kept free for the scheduler. Asked for by class, the executor stays.
                parallel.distributed_executor_backend = UniProcExecutor
                leave_one_core()
            else:
                share_cores(parallel)
        elif current_platform.is_cuda():
            if batch_invariance.is_on():
                batch_invariance.check_options(options)
            compute_alone_after_a_fork()
            use_full_graphs(vllm_config)
        if parallel.worker_cls == "auto":
            parallel.worker_cls = worker_class()


def worker_class() -> str:
    """Our worker for the platform.

    Raises:
        ValueError: there is none.
    """
    if current_platform.is_cpu():
        return CPU_WORKER
    if current_platform.is_cuda():
        return CUDA_WORKER
    raise ValueError(
        f"voxnative has no worker for the platform {current_platform.device_name!r}; "
        "valid: cpu (install the extra 'cpu'), cuda (the extra 'cuda')"
    )


def use_full_graphs(vllm_config: VllmConfig) -> None:
    """Full CUDA graphs for decode and mixed steps, where the user left these settings open.

    The model is not compiled by vLLM: its layers are vLLM's fused kernels already.
    """
    compilation = vllm_config.compilation_config
    if compilation.mode is None:
        compilation.mode = CompilationMode.NONE
    if compilation.cudagraph_mode is None:
        compilation.cudagraph_mode = CUDAGraphMode.FULL
    attention, scheduler = vllm_config.attention_config, vllm_config.scheduler_config
    if attention.flash_attn_max_num_splits_for_cuda_graph == VLLM_KEY_SPLITS:
        attention.flash_attn_max_num_splits_for_cuda_graph = KEY_SPLITS
    scheduler.max_num_encoder_input_tokens = min(
        MAX_ENCODED_PATCHES, scheduler.max_num_encoder_input_tokens
    )
    sizes_are_open = (
        compilation.cudagraph_capture_sizes is None
        and compilation.max_cudagraph_capture_size is None
    )
    if sizes_are_open:
        limit = MAX_GRAPH_TOKENS if vllm_config.lora_config is None else MAX_LORA_GRAPH_TOKENS
        # A graph is captured over as many requests as may run; none may be longer than the model.
        most = scheduler.max_num_seqs * vllm_config.model_config.max_model_len
        largest = min(limit, scheduler.max_num_batched_tokens, most)
        largest = max(largest, scheduler.max_num_seqs)
        compilation.cudagraph_capture_sizes = batch_buckets(largest)
