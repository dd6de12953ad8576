"""NVML as its API Reference Guide describes it, as much as is used: a module's worth of functions over devices that tests make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

NOT_SUPPORTED, LOST, TIMEOUT, UNKNOWN = 3, 15, 10, 999


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass
class Gpu:
    """One device. missing: functions and fields that it does not support; fails: the code that every call ends with.

    fields: its counters, by number or number and scope; bits: of their type (a value of 32 bits is cut); parts: of a divided one
    (MIG); processes: pid and memory, in bytes; samples: by kind, times in microseconds and values that NVML has kept.
    """

    uuid: str
    missing: set[Any] = field(default_factory=set)
    fails: int = 0
    throttle: int = 0
    xid: list[int] = field(default_factory=list)
    fields: dict[Any, int] = field(
        default_factory=lambda: {197: 5_000, 198: 7_000, (138, 0xFFFFFFFF): 3, (139, 0xFFFFFFFF): 4}
    )
    bits: int = 64
    parts: list[Gpu] = field(default_factory=list)
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    samples: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


@dataclass
class FakeNvml:
    """What `import pynvml` gives; `calls` counts them by name."""

    gpus: list[Gpu]
    init_fails: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    registered: list[Gpu] = field(default_factory=list)

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = LOST
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_NOT_FOUND = 6
    NVML_TOTAL_POWER_SAMPLES, NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES = 0, 1, 2
    NVML_PROCESSOR_CLK_SAMPLES, NVML_MEMORY_CLK_SAMPLES = 5, 6
    NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = 202, 204
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 197, 198
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_VALUE_TYPE_DOUBLE, NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_LONG = 0, 1, 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, NVML_VALUE_TYPE_SIGNED_LONG_LONG, NVML_VALUE_TYPE_SIGNED_INT = 3, 4, 5
    nvmlEventTypeXidCriticalError = 8
    nvmlMemory_v2 = 0x02000028

    def nvmlInit(self) -> None:
        if self.init_fails:
            raise NVMLError(self.init_fails)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, kinds: int, events: object) -> None:
        self._asked("nvmlDeviceRegisterEvents", gpu)
        self.registered.append(gpu)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        for gpu in self.registered:
            if gpu.xid:
                return SimpleNamespace(device=gpu, eventType=8, eventData=gpu.xid.pop(0))
        raise NVMLError(TIMEOUT)

    def nvmlDeviceGetFieldValues(self, gpu: Gpu, fields: list[Any]) -> list[SimpleNamespace]:
        self._asked("nvmlDeviceGetFieldValues", gpu)
        kind, name = {64: (3, "ullVal"), 32: (1, "uiVal")}[gpu.bits]
        return [
            SimpleNamespace(
                nvmlReturn=NOT_SUPPORTED if each in gpu.missing or each not in gpu.fields else 0,
                valueType=kind,
                value=SimpleNamespace(**{name: gpu.fields.get(each, 0) % 2**gpu.bits}),
            )
            for each in fields
        ]

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        self._asked("nvmlDeviceGetMigMode", gpu)
        return [int(bool(gpu.parts)), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Gpu:
        if index >= len(gpu.parts):
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return gpu.parts[index]

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return "NVIDIA H200"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:17:00.0")

    def nvmlDeviceGetEccMode(self, gpu: Gpu) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        self._asked("nvmlDeviceGetComputeRunningProcesses", gpu)
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in gpu.processes]

    def nvmlDeviceGetSamples(self, gpu: Gpu, kind: int, since_us: int) -> tuple[int, list[SimpleNamespace]]:
        self._asked("nvmlDeviceGetSamples", gpu)
        kept = [each for each in gpu.samples.get(kind, []) if each[0] > since_us]
        if not kept:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND if kind in gpu.samples else NOT_SUPPORTED)
        return 1, [SimpleNamespace(timeStamp=time, sampleValue=SimpleNamespace(uiVal=value)) for time, value in kept]

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu, version: int | None = None) -> SimpleNamespace:
        self._asked("nvmlDeviceGetMemoryInfo", gpu)
        return SimpleNamespace(total=80 << 30, used=3 << 30 if version else 4 << 30)

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> SimpleNamespace:
        self._asked("nvmlDeviceGetUtilizationRates", gpu)
        return SimpleNamespace(gpu=91, memory=33)

    plain: ClassVar[dict[str, int]] = {
        "nvmlDeviceGetPowerUsage": 287_500,
        "nvmlDeviceGetTotalEnergyConsumption": 4_000_500,
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetEnforcedPowerLimit": 600_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetComputeMode": 3,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
    }
    by_argument: ClassVar[dict[str, dict[int, int]]] = {
        "nvmlDeviceGetClockInfo": {1: 1410, 2: 1215},
        "nvmlDeviceGetMaxClockInfo": {1: 1980, 2: 3201},
        "nvmlDeviceGetApplicationsClock": {1: 1980, 2: 3201},
        "nvmlDeviceGetTotalEccErrors": {0: 2, 1: 0},
        "nvmlDeviceGetPcieThroughput": {0: 1_500_000, 1: 2_500_000},
    }

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(gpu: Gpu, *arguments: int) -> int:
            self._asked(name, gpu)
            if name == "nvmlDeviceGetCurrentClocksThrottleReasons":
                return gpu.throttle
            return self.plain[name] if name in self.plain else self.by_argument[name][arguments[0]]

        if name in self.plain or name in self.by_argument or name == "nvmlDeviceGetCurrentClocksThrottleReasons":
            return call
        raise AttributeError(name)

    def _asked(self, name: str, gpu: Gpu) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if gpu.fails:
            raise NVMLError(gpu.fails)
        if name in gpu.missing:
            raise NVMLError(NOT_SUPPORTED)
