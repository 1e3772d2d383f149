# The way engines are made, on three small wheels: one environment, a patch, a plugin with its entry point.
{
  callPackage,
  fetchPypi,
  lib,
  python313,
  runCommand,
  writeText,
}:
let
  wheels = import ../lib/wheels.nix { inherit lib; };
  wheelTree = callPackage ../../pkgs/vllm-gb10/wheel-tree.nix { python = python313; };
  lock = [
    {
      file = "six-1.17.0-py2.py3-none-any.whl";
      sha256 = "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274";
    }
    {
      file = "installer-0.7.0-py3-none-any.whl";
      sha256 = "05d1933f0a5ba7d8d6296bb6d5018e7c94fa473ceb10cf198a92ccea19c27b53";
    }
  ];
  patch = writeText "0001-version.patch" ''
    --- a/six.py
    +++ b/six.py
    @@ -31,1 +31,1 @@
    -__version__ = "1.17.0"
    +__version__ = "1.17.0+patched"
  '';
  tree = wheelTree {
    pname = "small-tree";
    version = "1.17.0";
    wheels = map (wheels.fetch fetchPypi) lock;
    patches = [ patch ];
    plugins = [ ../../tests/nix/fixtures/plugin ];
    meta = {
      description = "A small environment for a check";
      license = lib.licenses.mit;
      platforms = lib.platforms.linux;
    };
  };
in
runCommand "check-wheel-tree" { } ''
  ${tree}/bin/python3 - > $out <<'PY'
  import importlib.metadata as metadata
  import sys
  import six
  assert sys.prefix == "${tree}", sys.prefix
  assert six.__version__ == "1.17.0+patched", six.__version__
  (point,) = metadata.entry_points(group="vllm.general_plugins")
  assert point.load()() == "registered"
  print(point)
  PY
''
