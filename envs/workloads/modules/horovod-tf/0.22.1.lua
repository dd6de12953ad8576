-- For config/workloads/tf-resnet50.yaml: the software of the study on FASTER as one Lmod module over a site's own ones.
-- Unverified: it was not loaded here. The names below are EasyBuild's; change them to what `module spider` says at the site.
--   module use envs/workloads/modules
help([[Horovod 0.22.1 for TensorFlow 2.6.0, CUDA 11.3.1, GCC 10.3.0, Open MPI 4.1.1]])
whatis("Name: horovod-tf")
whatis("Version: 0.22.1")

depends_on("GCC/10.3.0")
depends_on("OpenMPI/4.1.1")
depends_on("CUDA/11.3.1")
depends_on("TensorFlow/2.6.0-CUDA-11.3.1")
depends_on("Horovod/0.22.1-CUDA-11.3.1-TensorFlow-2.6.0")
