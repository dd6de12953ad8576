"""The built-in training workload: real PyTorch training, one code for CPU with gloo and CUDA with NCCL.

`rank_interface` says what goes in and what comes out and imports without torch; `forkserver` and `rank` are the programs.
"""
