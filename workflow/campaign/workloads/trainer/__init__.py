"""The built-in training workload: real PyTorch training, one code for CPU with gloo and CUDA with NCCL.

`spec` and `result` say what goes in and what comes out and import without torch; `parent` and `rank` are the programs.
"""
