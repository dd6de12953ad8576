"""Built-in training workload, which trains real PyTorch models with the same code on CPUs (gloo) and on CUDA (NCCL).

`rank_interface` defines input and output of a rank without importing torch. `forkserver` and `rank` are the programs.
"""
