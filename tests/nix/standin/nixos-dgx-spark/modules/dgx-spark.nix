# A stand-in for nixos-dgx-spark's hardware module: two of its options, none of its effects.
{ lib, ... }:
{
  options.hardware.dgx-spark = {
    enable = lib.mkEnableOption "DGX Spark hardware support (stand-in)";
    useNvidiaKernel = lib.mkOption {
      type = lib.types.bool;
      default = true;
      description = "Use NVIDIA's kernel (stand-in: has no effect).";
    };
  };
  # the real module allows every unfree package too
  config.nixpkgs.config.allowUnfree = true;
}
