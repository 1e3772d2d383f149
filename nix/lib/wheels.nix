# Wheel locks: JSON lists of { name, version, file, sha256, size }. They hold no address; nixpkgs' fetchPypi makes it
# from the parts of the file's name.
{ lib }:
rec {
  /*
    The parts of a wheel's file name as fetchPypi names them.

    Type: parse :: String -> AttrSet
    Example: parse "torch-2.13.0-cp312-cp312-manylinux_2_28_aarch64.whl"
    => { pname = "torch"; version = "2.13.0"; python = "cp312"; abi = "cp312"; platform = "manylinux_2_28_aarch64"; }
  */
  parse =
    file:
    let
      parts = lib.splitString "-" (lib.removeSuffix ".whl" file);
      part = builtins.elemAt parts;
    in
    if !lib.hasSuffix ".whl" file || builtins.length parts != 5 then
      throw "wheel lock: ${file} is not the name of a wheel without a build tag"
    else
      {
        pname = part 0;
        version = part 1;
        python = part 2;
        abi = part 3;
        platform = part 4;
      };

  /*
    One locked wheel as a link farm entry: { name = file name; path = fetched file; }.

    Type: fetch :: (AttrSet -> Derivation) -> AttrSet -> AttrSet
  */
  fetch = fetchPypi: entry: {
    name = entry.file;
    path = fetchPypi (
      parse entry.file
      // {
        format = "wheel";
        dist = (parse entry.file).python;
        inherit (entry) sha256;
      }
    );
  };

  # The lock's entry of one project; an error that names the lock where there is none.
  entry =
    lock: name: lib.findFirst (e: e.name == name) (throw "wheel lock: ${name} is not in it") lock;
}
