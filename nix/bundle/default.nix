# `nix run .#bundle -- DIR`: a folder that installs a Spark without network, with or without Nix.
{
  lib,
  coreutils,
  findutils,
  glmspark,
  glmspark-image,
  nix,
  runCommand,
  stdenv,
  vllm-gb10,
  vllm-loopback,
  writeShellApplication,
  engine ? (if stdenv.hostPlatform.isAarch64 then vllm-gb10 else vllm-loopback),
  image ? glmspark-image.override { inherit engine; },
}:
let
  # the two programs of the bundle, so that one path names all that a host needs
  kit = runCommand "glmspark-kit-${engine.version}" { } ''
    mkdir -p $out/bin
    ln -s ${lib.getExe glmspark} $out/bin/glmspark
    ln -s ${lib.getExe engine} $out/bin/vllm
  '';
in
writeShellApplication {
  name = "glmspark-bundle";
  runtimeInputs = [
    coreutils
    findutils
    nix
  ];
  text = ''
    export KIT=${kit} IMAGE=${image} INSTALL=${./install.sh} SYSTEM=${stdenv.hostPlatform.system}
    exec bash ${./bundle.sh} "$@"
  '';
}
// {
  inherit kit;
}
