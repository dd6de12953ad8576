-- For config/workloads/osu-*.yaml: OSU micro-benchmarks over a site's own MPI and CUDA, as an Lmod module. Give a copy of the file
-- `software: {modules: [osu-micro-benchmarks/7.3]}`. Unverified: it was not loaded here. The names below are EasyBuild's.
--   module use envs/workloads/modules
help([[OSU micro-benchmarks 7.3 with CUDA]])
whatis("Name: osu-micro-benchmarks")
whatis("Version: 7.3")

depends_on("OSU-Micro-Benchmarks/7.3-gompi-2023a-CUDA-12.1.1")
