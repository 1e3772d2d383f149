# The one-line patch of vllm-gb10-src is right: with it, and not without it, vLLM's own CMake keeps 12.1a for both
# CUDA 13 lists; and three of vLLM's SM12x sources compile for sm_121a with the pinned wheels' nvcc. CUTLASS is that of
# flashinfer-python (4.5.0; vLLM pins 4.7.1, whose hash is not published). The whole extension is not built.
{
  lib,
  fetchPypi,
  gcc,
  glmspark-kernels,
  python312,
  runCommand,
  stdenv,
  vllm-gb10-src,
}:
let
  wheels = import ../lib/wheels.nix { inherit lib; };
  machine = stdenv.hostPlatform.parsed.cpu.name;
  engineLock = lib.importJSON ../../pkgs/vllm-gb10/wheels-cp312-aarch64.json;
  buildLock = lib.importJSON ../../pkgs/vllm-gb10/wheels-build-cp312-aarch64.json;
  cmakeWheel = {
    aarch64 = wheels.entry buildLock "cmake";
    x86_64 = {
      file = "cmake-4.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl";
      sha256 = "85625a9b6d5e88ff99c7eb79123d85570844e77ac076366cf75c609cc0b1b579";
    };
  };
  cmake = (wheels.fetch fetchPypi cmakeWheel.${machine}).path;
  flashinfer = (wheels.fetch fetchPypi (wheels.entry engineLock "flashinfer-python")).path;
  inherit (glmspark-kernels) cuda;
  site = "${cuda}/${cuda.python.sitePackages}";
  # one of _moe_C, one of _C_stable_libtorch with SM12x instructions, one of it with CUTLASS templates
  units = [
    "moe/moe_align_sum_kernels"
    "quantization/fp4/nvfp4_quant_kernels"
    "quantization/w8a8/cutlass/c3x/scaled_mm_sm120_fp8"
  ];
in
runCommand "vllm-source-sm121a"
  {
    nativeBuildInputs = [
      gcc
      python312
    ];
    env = {
      NVCC_CCBIN = "${gcc}/bin/g++";
      NVCC_PREPEND_FLAGS = "-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK";
    };
  }
  ''
    mkdir source cmake cutlass
    tar -xf ${vllm-gb10-src.sdist} -C source --strip-components=1
    python3 -m zipfile -e ${cmake} cmake
    python3 -m zipfile -e ${flashinfer} cutlass
    chmod -R u+x cmake/cmake/data/bin

    archs() { cmake/cmake/data/bin/cmake -DSOURCE=source -P ${../../pkgs/vllm-gb10/print_archs.cmake} 2>&1; }
    archs | tee before
    test "$(sort -u before)" = "12.1a becomes 12.0"
    patch --directory source --strip=1 --fuzz=0 < ${../../pkgs/vllm-gb10/sm121a-arch.patch}
    archs | tee after
    test "$(sort -u after)" = "12.1a becomes 12.1a"

    include=cutlass/flashinfer/data/cutlass
    for unit in ${toString units}; do
      object=$(basename $unit).o
      ${site}/nvidia/cu13/bin/nvcc -std=c++20 -O2 --expt-relaxed-constexpr -Xcompiler -fPIC \
        -gencode=arch=compute_121a,code=sm_121a -DTORCH_TARGET_VERSION=0x020B000000000000ULL -DUSE_CUDA \
        -DENABLE_NVFP4_SM120=1 -DENABLE_SCALED_MM_SM120=1 \
        -Isource/csrc -I$include/include -I$include/tools/util/include \
        -I${site}/torch/include -I${site}/torch/include/torch/csrc/api/include \
        -I"$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')" \
        -isystem ${../../overlay/vllm_exl3/csrc/cuda_stubs} \
        -c source/csrc/$unit.cu -o $object
      test "$(python3 ${../../pkgs/vllm-gb10/elf.py} machine-code $object)" = sm_121a
      echo "$unit: sm_121a" | tee -a built
    done
    cp built $out
  ''
