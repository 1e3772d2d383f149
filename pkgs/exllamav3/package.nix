# The EXL3 kernels: exllamav3's CUDA sources at a pinned release with overlay/exllamav3, compiled for GB10 alone.
#
# nvcc, the CUDA headers and torch come from the same pinned wheels as the engine, so what is built fits it.
# `python -m vllm_exl3.build` is the recipe; it runs here as it runs by hand.
{
  lib,
  callPackage,
  fetchPypi,
  gcc,
  linkFarm,
  overlayDir,
  patchelf,
  python,
  stdenv,
  target,
}:
let
  inherit (import ../../nix/lib/overlay.nix { inherit lib; }) patchesIn pluginsIn;
  wheels = import ../../nix/lib/wheels.nix { inherit lib; };
  machine = stdenv.hostPlatform.parsed.cpu.name;
  # what compiling and linking need of the engine's wheels
  names = map (e: e.name) (lib.importJSON ./wheels-cp312-x86_64.json);
  locks = {
    x86_64 = lib.importJSON ./wheels-cp312-x86_64.json;
    aarch64 = lib.filter (e: builtins.elem e.name names) (
      lib.importJSON ../vllm-gb10/wheels-cp312-aarch64.json
    );
  };
  cuda = callPackage ../vllm-gb10/wheel-tree.nix { inherit python; } {
    pname = "glmspark-cuda-wheels";
    version = (wheels.entry locks.${machine} "nvidia-cuda-nvcc").version;
    wheels = map (wheels.fetch fetchPypi) locks.${machine};
    # nothing of torch is run here: its headers are read and its libraries linked against
    ignoreMissingLibraries = [ "*" ];
    meta = {
      description = "The CUDA compiler, headers and torch from pinned wheels";
      license = [
        lib.licenses.bsd3
        lib.licenses.unfreeRedistributable
      ];
      platforms = lib.platforms.linux;
    };
  };
  site = "${cuda}/${python.sitePackages}";
in
assert lib.assertMsg (
  python.pythonVersion == "3.12"
) "glmspark-kernels: the lock is for Python 3.12, not ${python.pythonVersion}";
stdenv.mkDerivation {
  pname = "glmspark-kernels";
  version = "1.6.5";
  src = fetchPypi {
    pname = "exllamav3";
    version = "1.6.5";
    format = "wheel";
    dist = "py3";
    python = "py3";
    hash = "sha256-VQwNBMdV8kmEDlwe3Caw6AxzQsM7XZmtF0eau0B+je0=";
  };
  # applied by the build itself, inside exllamav3's wheel, in the order of their names
  kernelPatches = linkFarm "exllamav3-patches" (
    map (path: {
      name = baseNameOf path;
      inherit path;
    }) (patchesIn (overlayDir + "/exllamav3"))
  );
  plugins = pluginsIn overlayDir;
  nativeBuildInputs = [
    gcc
    patchelf
  ];
  dontConfigure = true;
  dontStrip = true;
  disallowedReferences = [ cuda ];
  env = {
    CUDA_HOME = "${site}/nvidia/cu13";
    NVCC_CCBIN = "${gcc}/bin/g++";
    # nvcc 13.5 with the headers of 13.0: see launch.py of vllm-gb10; and torch's asserts name their headers, which
    # would keep 1.6 GB of compiler in the closure
    NVCC_PREPEND_FLAGS = "-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK -Xcompiler=-ffile-prefix-map=${site}=/build/site";
    TORCH_CUDA_ARCH_LIST = target.cudaArch;
  };
  unpackPhase = ''
    mkdir overlay
    for source in $plugins; do cp -rT "$source" overlay/vllm_exl3; done
    if [ ! -e overlay/vllm_exl3/build.py ]; then
      echo "error: overlay/vllm_exl3 is not in this tree: there is nothing to build the kernels with" >&2
      exit 1
    fi
  '';
  buildPhase = ''
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=overlay \
      ${cuda}/bin/python3 ${./build_kernels.py} ${site} $src $kernelPatches built
  '';
  # torch lies beside the package in every engine, and no path of the compiler must stay in the result
  installPhase = ''
    mkdir -p $out
    cp -r built $out/vllm_exl3
    patchelf --set-rpath '$ORIGIN/../torch/lib' $out/vllm_exl3/*.so
  '';
  passthru = {
    inherit cuda;
    relativePath = "vllm_exl3";
    tests.machine-code = callPackage ./machine-code.nix { };
  };
  meta = {
    description = "EXL3 kernels of exllamav3 for ${target.machineCode}";
    homepage = "https://github.com/turboderp-org/exllamav3";
    license = [
      lib.licenses.mit
      lib.licenses.unfreeRedistributable
    ];
    platforms = lib.platforms.linux;
  };
}
