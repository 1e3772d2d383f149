# The project's packages. The one place where the GPU architecture and the engine's Python are chosen.
{
  poetry2nix,
  revision,
}:
final: prev:
let
  # GB10 is compute capability 12.1; "a" keeps the instructions of that chip alone
  target = {
    cudaArch = "12.1a";
    machineCode = "sm_121a";
  };
  overlayDir = ../overlay;
in
{
  glmspark = final.callPackage ./glmspark.nix { inherit poetry2nix; };

  glmspark-kernels = final.callPackage ../pkgs/exllamav3/package.nix {
    inherit overlayDir target;
    python = final.python312;
  };

  vllm-gb10 = final.callPackage ../pkgs/vllm-gb10/package.nix {
    inherit overlayDir target;
    python = final.python312;
  };

  vllm-gb10-src = final.callPackage ../pkgs/vllm-gb10/src.nix {
    inherit target;
    python = final.python312;
  };

  # the CPU engine of the loopback kit; PyTorch's CPU wheel is locked for Python 3.11 on x86_64
  vllm-loopback = final.callPackage ../pkgs/vllm-gb10/loopback.nix {
    inherit overlayDir;
    python = final.python311;
  };

  glmspark-image = final.callPackage ./image.nix {
    inherit revision;
    engine = if final.stdenv.hostPlatform.isAarch64 then final.vllm-gb10 else final.vllm-loopback;
  };
  glmspark-image-archive = final.callPackage ./image-archive.nix { };
  glmspark-oci = final.callPackage ./oci.nix { };

  glmspark-bundle = final.callPackage ./bundle { };
  glmspark-update-engine = final.callPackage ../pkgs/vllm-gb10/update-engine.nix { };
  glmspark-option-docs = final.callPackage ./option-docs.nix { };
}
