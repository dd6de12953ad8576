"""The classifier on lines that real programs have printed: causes found, consequences passed over, innocence kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import LaunchError
from campaign.spec.record import Failure
from campaign.workloads.failures import KILLED_FROM_OUTSIDE, classify_failure
from campaign.workloads.log_reader import Log

OOM_OLD = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.58 GiB allocated)"
OOM_NEW = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 39.39 GiB"
WATCHDOG = (
    "[rank0]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=26, NumelOut=26, Timeout(ms)=600000) ran for 600089 milliseconds before ..."
)
WATCHDOG_OLD = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, Timeout(ms)=1800000) "
    "ran for 1800116 milliseconds"
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\nBootstrap : no socket interface found\n"
)
NCCL_OOM = "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'\n"
GLOO_TIMEOUT = (
    "RuntimeError: [../third_party/gloo/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"
)
GLOO_SHAPES = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:417] "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
)
LOST = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711"
GLOO_BESIDE = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] "
    "Application timeout caused pair closure"
)
NCCL_CALLOC = """\
[rank2]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error
[rank2]: ncclUnhandledCudaError: Call to CUDA function failed.
[rank2]: Last error:
[rank2]: Failed to CUDA calloc async 608 bytes
"""
NCCL_HOST = """\
n1:7:9 [0] include/alloc.h:121 NCCL WARN Cuda failure 2 'out of memory'
n1:7:9 [0] NCCL INFO channel.cc:42 -> 1
n1:7:9 [0] include/alloc.h:127 NCCL WARN Failed to CUDA host alloc 4923392 bytes
RuntimeError: NCCL error in: NCCLUtils.hpp:317, unhandled cuda error
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Failed to CUDA host alloc 4923392 bytes
"""
PINNED = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/campaign/input_pipeline.py", line 71, in make_feed
[rank0]:     pinned = tuple(tensor.pin_memory() for tensor in example)
[rank0]:                    ^^^^^^^^^^^^^^^^^^^
[rank0]: torch.AcceleratorError: CUDA error: out of memory
[rank0]: CUDA kernel errors might be asynchronously reported at some other API call
"""
PINNED_BY_LOADER = """\
RuntimeError: Caught RuntimeError in pin memory thread for device 0.
Original Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/torch/utils/data/_utils/pin_memory.py", line 37, in do_one_step
    data = pin_memory(data, device)
RuntimeError: CUDA error: out of memory
"""
TENSORFLOW_PINNED = (
    "2024-10-22 09:22:17.233972: E tensorflow/stream_executor/cuda/cuda_driver.cc:802] failed to alloc 34359738368 bytes on host: "
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
)
LLAMA_PINNED = "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory"
NO_ENGINE = "RuntimeError: FIND was unable to find an engine to execute this computation"
OOM_KILL_OLD = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.0. Some of your processes may have been killed"
)
OOM_KILL_NEW = (
    "slurmstepd: error: Detected 2 oom_kill events in StepId=4711.batch. Some of the step tasks have been OOM Killed."
)
STEP_MEMORY = "slurmstepd-host1: error: StepId=1.0 exceeded memory limit (342102016 > 104857600), being killed\n"
JOB_MEMORY = "slurmstepd-host1: error: Exceeded job memory limit\n"
SRUN_OOM = "srun: error: n1: task 0: Out Of Memory"
TIME_LIMIT = "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2025-03-21T02:06:51 DUE TO TIME LIMIT ***"
STEP_CANCELLED = "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2025-03-21T02:06:51 ***"
INNOCENT = (
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600\nNCCL_DEBUG=INFO\nNCCL INFO Connected all rings\nstep 3: 12 out of 40\n"
)


def cause(log: str | Log, codes: Sequence[int | None], **more: Any) -> tuple[str, Failure]:
    """Status and failure of a run that is not ok; more: what else is known of its end."""
    found = classify_failure(log, codes, **{"timed_out": False, "killed_by_launcher": False, **more})
    assert found is not None
    return found


def verdict(log: str, codes: list[int | None], **more: bool) -> tuple[str, int | None]:
    status, failure = cause(log, codes, **more)
    return status, failure.rank


@pytest.mark.parametrize(
    ("log", "codes", "status", "rank"),
    [
        (OOM_OLD, [1], "oom_device", None),
        (OOM_NEW, [1, 1], "oom_device", 1),
        (
            "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB",
            [1],
            "oom_device",
            None,
        ),
        (
            "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
            [1],
            "oom_device",
            None,
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            [1],
            "oom_device",
            None,
        ),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", [1], "oom_device", None),
        ("RuntimeError: CUDA driver error: out of memory", [1], "oom_device", None),
        ("torch.AcceleratorError: CUDA error: out of memory", [1], "oom_device", None),
        ("RuntimeError: Triton Error [CUDA]: out of memory", [1], "oom_device", None),
        ("RuntimeError: Triton Error [HIP]:  Code: 2, Messsage: out of memory", [1], "oom_device", None),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", [1], "oom_device", None),
        (
            "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `create(h)`",
            [1],
            "oom_device",
            None,
        ),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc failed: out of memory",
            [1],
            "oom_device",
            None,
        ),
        (NCCL_CALLOC, [1] * 4, "oom_device", 2),
        (NCCL_CALLOC.partition("Last")[2], [1] * 4, "oom_device", 2),
        (NCCL_HOST, [1], "oom_host", None),
        (NCCL_HOST.partition("RuntimeError")[2], [1], "oom_host", None),
        (PINNED, [1], "oom_host", 0),
        (PINNED_BY_LOADER, [1], "oom_host", None),
        (f"pin_memory=True\n{OOM_NEW}", [1, 1], "oom_device", 1),
        (f"{TENSORFLOW_PINNED}\nValueError: bad", [1], "crashed", None),
        (f"{LLAMA_PINNED}\nmain: error: unable to load model", [1], "crashed", 0),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072", [1], "crashed", 0),
        (NCCL_OOM, [1, 1], "oom_device", None),
        (WATCHDOG, [-6, -6], "comm_timeout", 0),
        (WATCHDOG_OLD, [-6] * 4, "comm_timeout", 3),
        (WATCHDOG_OLD, [134], "comm_timeout", 3),
        (WATCHDOG_OLD, [-6] * 2, "comm_timeout", None),
        (GLOO_TIMEOUT, [1, -9], "comm_timeout", None),
        (GLOO_BESIDE, [1, -9], "comm_timeout", None),
        (
            GLOO_TIMEOUT.replace("Timed out waiting 5000ms for recv", "Read timeout [127.0.0.1]:9"),
            [1],
            "comm_timeout",
            None,
        ),
        ("RuntimeError: Rank 0 timed out in monitoredBarrier after 5000 ms.", [1, 1], "comm_timeout", None),
        ("DistStoreError: barrier timeout after 300000ms, key: /last_members", [1], "comm_timeout", None),
        (
            "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
            [1],
            "comm_timeout",
            None,
        ),
        (NCCL, [1, 1], "comm_error", None),
        (GLOO_SHAPES, [-6, 1], "comm_error", None),
        (LOST, [1, 1], "comm_error", None),
        (OOM_KILL_OLD, [137], "oom_host", None),
        (OOM_KILL_NEW, [137], "oom_host", None),
        (SRUN_OOM, [1], "oom_host", 0),
        (STEP_MEMORY + STEP_CANCELLED, [None, None], "oom_host", None),
        (JOB_MEMORY, [None], "oom_host", None),
        ("MemoryError", [1], "oom_host", None),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB", [1], "oom_host", None),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory",
            [1],
            "oom_host",
            None,
        ),
        ("/tmp/x.sh: line 3: 12345 Killed                  python train.py", [137], "crashed", 0),
        ("Killed", [None], "crashed", None),
        ("mpirun noticed that process rank 1 with PID 7 on node n1 exited on signal 9 (Killed).", [137], "crashed", 0),
        ("[1.0] Memory cgroup out of memory: Killed process 7 (python) total-vm:9kB", [-9], "oom_host", None),
        ("RuntimeError: CUDA out of memory.", [1], "oom_device", None),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", [1], "oom_device", None),
        (TIME_LIMIT, [-15], "time_limit", None),
        ("", [0, -9], "crashed", 1),
        ("", [137], "crashed", 0),
        ("", [0, -11], "crashed", 1),
        ("", [7, 0], "crashed", 0),
        ("1: ValueError: no such batch", [0, 1], "crashed", 1),
        ("srun: error: n1: task 1: Segmentation fault (core dumped)\n" + STEP_CANCELLED, [139], "crashed", 1),
        ("srun: error: n1: tasks 1-3: Exited with exit code 7\nsrun: error: n1: task 0: Terminated", [7], "crashed", 1),
        (INNOCENT, [3], "crashed", 0),
    ],
)
def test_a_signature_is_recognised(log: str, codes: list[int | None], status: str, rank: int | None) -> None:
    assert verdict(log, codes) == (status, rank)


@pytest.mark.parametrize(
    ("log", "codes", "known", "status", "rank"),
    [
        # The first failure in time is the cause.
        (f"{OOM_NEW}\n{WATCHDOG}\n{LOST}", [-6, 1], {}, "oom_device", 1),
        (f"{WATCHDOG}\n{NCCL}", [-6, 1], {}, "comm_timeout", 0),
        (f"{NCCL}\n{WATCHDOG}", [-6, 1], {}, "comm_error", None),
        # A lost peer is a consequence of whatever took the peer.
        (LOST, [1, -9], {}, "crashed", 1),
        (LOST, [1, -11], {}, "crashed", 1),
        (LOST, [1, 7], {}, "crashed", 1),
        (f"{LOST}\n[rank1]: ValueError: bad", [1, 1], {}, "crashed", 1),
        # What we killed ourselves says nothing.
        ("", [5, -9], {"killed_by_launcher": True}, "crashed", 0),
        (LOST, [-9, 1], {"killed_by_launcher": True}, "comm_error", None),
        ("Killed", [-9, -9], {"killed_by_launcher": True}, "crashed", None),
        (STEP_CANCELLED, [143], {"killed_by_launcher": True}, "crashed", None),
        # A time limit is one unless the log names an earlier cause.
        ("step 3\nstep 4\n", [-9, -9], {"timed_out": True, "killed_by_launcher": True}, "time_limit", None),
        (OOM_NEW, [1, -9], {"timed_out": True, "killed_by_launcher": True}, "oom_device", 1),
        ("", [None], {"timed_out": True}, "time_limit", None),
    ],
)
def test_of_several_signs_the_cause_counts(
    log: str, codes: list[int | None], known: dict[str, bool], status: str, rank: int | None
) -> None:
    assert verdict(log, codes, **known) == (status, rank)


def test_a_memory_limit_that_was_hit_needs_no_words() -> None:
    assert verdict("", [0, -9], memory_limit_hit=True) == ("oom_host", 1)
    found = cause(f"step 3\n{STEP_MEMORY}", [None], killed_by_launcher=True, memory_limit_hit=True)
    assert found[1].evidence == STEP_MEMORY.strip()


def test_a_device_without_memory_is_believed_whatever_the_exit() -> None:
    for codes in ([0, 0], [1, 0], [-6], [None]):
        assert verdict(f"{OOM_NEW}\ntrying a smaller batch\n", codes)[0] == "oom_device"
    for innocent in (
        INNOCENT,
        PINNED,
        TENSORFLOW_PINNED,
        LLAMA_PINNED,
        f"{LOST}\n",
        "CUDA_ERROR_OUT_OF_MEMORY\n",
        "MemoryError\n",
    ):
        assert classify_failure(innocent, [0, 0], timed_out=False, killed_by_launcher=False) is None


@pytest.mark.parametrize(
    ("log", "codes"),
    [
        ("", [0, -9]),
        ("", [137]),
        ("Killed", [None]),
        (LOST, [1, -9]),
        ("srun: error: n1: task 1: Killed", [1]),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", [1]),
        ("exitcode  : -9 (pid: 7)\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", [1]),
    ],
)
def test_a_kill_is_want_of_memory_only_where_the_kernel_counted_one(log: str, codes: list[int | None]) -> None:
    found = cause(log, codes)
    assert (found[0], found[1].reason) == ("crashed", KILLED_FROM_OUTSIDE)
    found = cause(log, codes, memory_kills=2)
    assert found[0] == "oom_host"
    assert "by the kernel during the run: 2" in found[1].evidence


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("*** JOB 4711 ON n1 CANCELLED AT 2025-03-21T02:06:51 DUE TO PREEMPTION ***", "preemption"),
        ("*** STEP 4711.0 ON n1 CANCELLED AT 2025-03-21T02:06:51 DUE TO NODE FAILURE ***", "node failure"),
        ("*** JOB 4711 ON n1 CANCELLED AT 2025-03-21T02:06:51 ***", "cancelled from outside"),
        (STEP_CANCELLED, "cancelled from outside"),
    ],
)
def test_what_slurm_did_is_never_blamed_on_the_subject(line: str, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        classify_failure(f"slurmstepd: error: {line}\n", [None], timed_out=False, killed_by_launcher=False)


@pytest.mark.parametrize(
    "said",
    [
        NO_ENGINE,
        NO_ENGINE.replace("FIND", "GET"),
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    ],
)
def test_a_library_that_finds_nothing_is_out_of_memory_only_where_memory_was_full(said: str) -> None:
    assert verdict(said, [1]) == ("crashed", None)
    assert verdict(said, [1], device_full=True) == ("oom_device", None)
    assert verdict("ValueError: bad", [1], device_full=True) == ("crashed", None)


def test_evidence_is_the_line_and_for_nccl_also_its_last_error() -> None:
    found = cause(f"before\n{NCCL}after", [1])
    assert "Bootstrap : no socket interface found" in found[1].evidence
    found = cause(f"before\n{GLOO_TIMEOUT}\nafter", [1])
    assert found[1].evidence == GLOO_TIMEOUT


def test_progress_bars_colours_and_labels_do_not_hide_it() -> None:
    log = f"  1: 10%\r  1: 20%\r  1: \x1b[31m{GLOO_TIMEOUT}\x1b[0m\r\n  0: fine\n"
    assert verdict(log, [0, 1]) == ("comm_timeout", 1)
    assert Log.from_text("a\rb\r\nc\x1b[1;31md\x1b[0m").read_excerpt() == "a\nb\ncd"


@given(
    noise=st.text(alphabet=st.characters(codec="utf-8"), max_size=200),
    codes=st.lists(st.sampled_from([None, 0, 1, 2, 7, 137, -6, -9, -11, -15]), max_size=4),
    timed_out=st.booleans(),
    killed_by_launcher=st.booleans(),
)
def test_there_is_always_an_answer_and_its_evidence_is_short(
    noise: str, codes: list[int | None], timed_out: bool, killed_by_launcher: bool
) -> None:
    found = classify_failure(noise * 20, codes, timed_out=timed_out, killed_by_launcher=killed_by_launcher)
    ended_well = bool(codes) and all(code == 0 for code in codes) and not timed_out
    assert (found is None) == ended_well
    if found is not None:
        assert found[1].reason
        assert len(found[1].evidence) <= 500
        assert found[1].rank is None or found[1].rank < len(codes)
