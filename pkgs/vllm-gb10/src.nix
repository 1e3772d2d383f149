# vLLM 0.32.0 from source for sm_121a to the letter: the engine of package.nix with its vllm wheel built here.
#
# Hours on a Spark, and about 6 GiB a compile job: hence the small number of jobs. The compiler, torch and CMake come
# from the same pinned wheels as the engine, so there is one CUDA in the closure.
{
  lib,
  callPackage,
  fetchFromGitHub,
  fetchPypi,
  gcc,
  git,
  python,
  runCommand,
  stdenv,
  target,
  vllm-gb10,
  maxJobs ? 8,
}:
let
  version = "0.32.0";
  pins = import ./src-pins.nix;
  wheels = import ../../nix/lib/wheels.nix { inherit lib; };
  sdist = fetchPypi {
    pname = "vllm";
    inherit version;
    hash = "sha256-0slX1e7j0JhQEhUTFd3GLL4M02j8lqX8NRBDjZ3d8q0=";
  };

  unknown =
    name: pin:
    runCommand "${name}-hash-unknown" { } ''
      echo "error: the hash of ${pin.owner}/${pin.repo} at ${pin.rev} is not known" >&2
      echo "hint: the command below prints it; write it to ${name}.hash in pkgs/vllm-gb10/src-pins.nix" >&2
      echo "  nix run nixpkgs#nix-prefetch-github -- ${pin.owner} ${pin.repo} --rev ${pin.rev} ${
        lib.optionalString (pin.fetchSubmodules or false) "--fetch-submodules"
      }" >&2
      exit 1
    '';
  fetch =
    name: pin:
    if pin.hash == null then
      unknown name pin
    else
      fetchFromGitHub {
        inherit (pin)
          hash
          owner
          repo
          rev
          ;
        fetchSubmodules = pin.fetchSubmodules or false;
      };
  sources = lib.mapAttrs fetch pins;
  sourceVariables = lib.mapAttrs' (
    name: pin: lib.nameValuePair pin.variable "${sources.${name}}${pin.subfolder or ""}"
  ) pins;

  # CMake and the setuptools plugins that the engine itself has no use for
  buildTools = callPackage ./wheel-tree.nix { inherit python; } {
    pname = "vllm-build-tools";
    inherit version;
    wheels = map (wheels.fetch fetchPypi) (lib.importJSON ./wheels-build-cp312-aarch64.json);
    meta = {
      description = "Build tools of vLLM from pinned wheels";
      license = lib.licenses.bsd3;
    };
  };

  file = "vllm-${version}-cp38-abi3-linux_${stdenv.hostPlatform.parsed.cpu.name}.whl";
  wheel = stdenv.mkDerivation {
    pname = "vllm-gb10-wheel";
    inherit version;
    src = sdist;
    patches = [ ./sm121a-arch.patch ];
    nativeBuildInputs = [
      gcc
      git
    ];
    dontConfigure = true;
    env = sourceVariables // {
      CUDA_HOME = "${vllm-gb10}/${python.sitePackages}/nvidia/cu13";
      MAX_JOBS = toString maxJobs;
      NVCC_THREADS = "1";
      PYTHONPATH = "${buildTools}/${python.sitePackages}";
      SETUPTOOLS_SCM_PRETEND_VERSION = version;
      TORCH_CUDA_ARCH_LIST = target.cudaArch;
      VLLM_TARGET_DEVICE = "cuda";
      VLLM_USE_PRECOMPILED_RUST = "1";
    };
    # The Rust front end has no GPU code; its crates come from git without published hashes, so the wheel's is taken.
    buildPhase = ''
      cp ${vllm-gb10}/${python.sitePackages}/vllm/{vllm-rs,_rust_*.so} vllm/
      PATH=${buildTools}/bin:${vllm-gb10}/bin:$PATH ${vllm-gb10}/bin/python3 setup.py bdist_wheel
    '';
    installPhase = ''
      mkdir -p $out
      cp dist/vllm-*.whl $out/${file}
    '';
    passthru = { inherit file; };
    meta = {
      description = "vLLM for sm_121a from its sdist";
      license = lib.licenses.asl20;
      platforms = [ "aarch64-linux" ];
    };
  };
in
(vllm-gb10.override { vllmWheel = wheel; }).overrideAttrs (old: {
  pname = "vllm-gb10-src";
  passthru = (old.passthru or { }) // {
    inherit
      buildTools
      pins
      sdist
      sources
      wheel
      ;
  };
})
