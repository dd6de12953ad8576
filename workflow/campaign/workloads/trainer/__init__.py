"""Built-in training workload. It trains real PyTorch models with the same code on CPUs (gloo) and on CUDA (NCCL).

`rank_interface` defines input and output of a rank, and imports no torch. `forkserver` and `rank` are the programs.
"""
