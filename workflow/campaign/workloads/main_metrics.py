"""Metrics that may be the primary metric of a campaign whose programs process no samples."""

from __future__ import annotations

from collections.abc import Mapping

MAIN_METRICS: Mapping[str, tuple[str, ...]] = {
    "hpl": ("hpl_gflops", "hpl_mxp_gflops"),
    "nccl_tests": ("busbw_peak_gb_per_s", "algbw_peak_gb_per_s", "latency_us"),
    "p2p_bandwidth_latency": ("unidirectional_p2p_enabled_min_gb_per_s", "bidirectional_p2p_enabled_min_gb_per_s"),
    "nvbandwidth": ("host_to_device_memcpy_ce_min_gb_per_s", "device_to_host_memcpy_ce_min_gb_per_s"),
    "osu": ("bandwidth_peak_gb_per_s", "latency_us", "allreduce_latency_us"),
    "perftest": ("bandwidth_gb_per_s", "latency_us", "latency_mean_us"),
    "gpu_copy": ("host_to_device_sm_min_gb_per_s", "device_to_host_sm_min_gb_per_s"),
    "stream": ("triad_gb_per_s", "copy_gb_per_s"),
    "mlc": ("peak_bandwidth_all_reads_gb_per_s", "loaded_latency_ns"),
    "hpcg": ("hpcg_gflops", "memory_bandwidth_gb_per_s"),
    "graph500": ("bfs_gteps", "sssp_gteps"),
    "gromacs": ("simulated_ns_per_day",),
    "lammps": ("timesteps_per_s", "atom_steps_per_s"),
    "fio": ("read_bandwidth_gb_per_s", "write_bandwidth_gb_per_s", "read_operations_per_s", "read_latency_us"),
    "ior": ("write_bandwidth_gb_per_s", "read_bandwidth_gb_per_s"),
}
"""Candidates for the primary metric, by parser, for parsers that report no sample rate. A log has only the metrics of its test."""
