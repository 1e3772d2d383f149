# nixpkgs' config for this flake: NVIDIA's wheels and what is made of them are the only unfree packages.
{ lib }:
{
  allowUnfreePredicate =
    pkg:
    builtins.elem (lib.getName pkg) [
      "vllm-gb10"
      "vllm-gb10-src"
      "glmspark-kernels"
      "glmspark-cuda-wheels"
    ];
}
