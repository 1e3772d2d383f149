# Names of packages, search paths, licences and platforms.
{ lib }:
let
  licence = shortName: spdxId: free: { inherit shortName spdxId free; };
in
{
  getName = x: x.pname or (builtins.parseDrvName (if builtins.isString x then x else x.name)).name;
  getVersion = x: x.version or "";
  getBin = x: x.bin or x;
  getLib = x: x.lib or x.out or x;
  getDev = x: x.dev or x;
  getExe = x: "${lib.getBin x}/bin/${x.meta.mainProgram or (lib.getName x)}";
  getExe' = x: name: "${lib.getBin x}/bin/${name}";
  makeSearchPath =
    sub: packages:
    lib.concatMapStringsSep ":" (p: "${p}/${sub}") (builtins.filter (p: p != null) packages);
  makeBinPath = packages: lib.makeSearchPath "bin" (map lib.getBin packages);
  makeLibraryPath = packages: lib.makeSearchPath "lib" (map lib.getLib packages);
  fakeHash = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
  maintainers = { };
  platforms = rec {
    linux = [
      "x86_64-linux"
      "aarch64-linux"
    ];
    all = linux;
  };
  licenses = {
    asl20 = licence "asl20" "Apache-2.0" true;
    bsd3 = licence "bsd3" "BSD-3-Clause" true;
    mit = licence "mit" "MIT" true;
    unfree = licence "unfree" "" false;
    unfreeRedistributable = licence "unfreeRedistributable" "" false;
    # nixpkgs' set has held functions since April 2026: code that maps over it must break here too
    AND = a: b: [
      a
      b
    ];
  };
  sourceTypes = {
    binaryNativeCode = { };
    fromSource = { };
  };
}
