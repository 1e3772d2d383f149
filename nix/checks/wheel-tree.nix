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
    @@ -32,1 +32,1 @@
    -__version__ = "1.17.0"
    +__version__ = "1.17.0+patched"
  '';
  build =
    changes:
    wheelTree (
      {
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
      }
      // changes
    );
  tree = build { };

  # each of these must fail to build: tests/nix/test_flake.py says with which words
  otherSix = {
    file = "six-1.16.0-py2.py3-none-any.whl";
    sha256 = "8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254";
  };
  collision = build { wheels = map (wheels.fetch fetchPypi) (lock ++ [ otherSix ]); };
  badWheel = build {
    wheels = map (wheels.fetch fetchPypi) [
      (otherSix // { sha256 = lib.concatStrings (lib.genList (_: "0") 64); })
    ];
  };
  badPatch = build {
    patches = [
      (writeText "0002-drifted.patch" ''
        --- a/six.py
        +++ b/six.py
        @@ -30,3 +30,3 @@
         # a context line that six.py does not have
         __author__ = "Benjamin Peterson <benjamin@python.org>"
        -__version__ = "1.17.0"
        +__version__ = "1.17.0+patched"
      '')
    ];
  };
in
runCommand "check-wheel-tree" { passthru = { inherit badPatch badWheel collision; }; } ''
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
