# vLLM 0.32.0 for GB10 from pinned wheels, with this project's patches and the EXL3 plugin inside.
{
  lib,
  autoPatchelfHook,
  callPackage,
  fetchPypi,
  gcc,
  glmspark-kernels,
  linkFarm,
  overlayDir,
  python,
  rdma-core,
  stdenv,
  target,
  zlib,
  # the machine whose wheels are taken; another one than the builder's for tests of the tree alone
  machine ? stdenv.hostPlatform.parsed.cpu.name,
  kernels ? glmspark-kernels,
  # a derivation with one vllm wheel in place of the locked one: the from-source build
  vllmWheel ? null,
}:
let
  inherit (import ../../nix/lib/overlay.nix { inherit lib; }) patchesIn pluginsIn;
  wheels = import ../../nix/lib/wheels.nix { inherit lib; };
  tag = "cp" + lib.replaceStrings [ "." ] [ "" ] python.pythonVersion;
  locks = {
    aarch64.cp312 = ./wheels-cp312-aarch64.json;
    aarch64.cp313 = ./wheels-cp313-aarch64.json;
  };
  lockFile =
    locks.${machine}.${tag} or (throw (
      "vllm-gb10: no wheel lock for ${machine} and Python ${python.pythonVersion}; "
      + "GB10 is aarch64, and the locks are for Python 3.12 and 3.13"
    ));
  lock = lib.importJSON lockFile;
  wheelTree = callPackage ./wheel-tree.nix { inherit python; };
  isVllm = entry: entry.name == "vllm";
  locked = map (wheels.fetch fetchPypi) (
    if vllmWheel == null then lock else lib.filter (e: !isVllm e) lock
  );
  built = lib.optional (vllmWheel != null) {
    name = vllmWheel.file;
    path = "${vllmWheel}/${vllmWheel.file}";
  };
in
wheelTree {
  pname = "vllm-gb10";
  inherit (wheels.entry lock "vllm") version;
  wheels = locked ++ built;
  patches = patchesIn (overlayDir + "/vllm");
  plugins = pluginsIn overlayDir;
  buildInputs = [
    rdma-core
    stdenv.cc.cc.lib
    zlib
  ];
  # The driver's library comes from the host; FFmpeg and HEIF (torchcodec) and the MPI, UCX and PMIx bootstraps
  # (nvshmem) are optional back ends that nothing here opens.
  ignoreMissingLibraries = [
    "libav*.so.*"
    "libcuda.so.1"
    "libfabric.so.1"
    "libheif.so.1"
    "libmpi.so.40"
    "liboshmem.so.40"
    "libpmix.so.2"
    "libsw*.so.*"
    "libuc*.so.0"
  ];
  postInstall = ''
    ${lib.optionalString (kernels != null) "cp -r ${kernels}/${kernels.relativePath}/. vllm_exl3/"}
    # FlashInfer and torch's extension builder link with -lcudart from lib64; the wheels have neither name
    ln -s lib nvidia/cu13/lib64
    for library in nvidia/cu13/lib/lib*.so.*; do
      plain=''${library%%.so.*}.so
      [ -e "$plain" ] || ln -s "$(basename "$library")" "$plain"
    done
    bash ${./install-launcher.sh} $out ${./launcher} nvidia/cu13 ${gcc}/bin/g++ ${target.cudaArch}
  '';
  passthru = {
    inherit
      kernels
      lock
      lockFile
      machine
      ;
    runtime = "cuda";
    tests = callPackage ./tests.nix { };
  };
  meta = {
    description = "vLLM for GB10 with EXL3, from pinned wheels";
    homepage = "https://github.com/vllm-project/vllm";
    license = [
      lib.licenses.asl20
      lib.licenses.unfreeRedistributable
    ];
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
    mainProgram = "vllm";
    platforms = [ "aarch64-linux" ];
  };
}
