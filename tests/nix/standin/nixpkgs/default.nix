# A stand-in for `import nixpkgs { ... }`. Packages are backed by the host: a tool is a tree of links to Debian's
# files, a builder is the host's bash. The sandbox must therefore show /bin /usr /lib /lib64 /etc/alternatives, which
# tests/nix/check.py asks for. Derivations of another system evaluate and are built only where the kernel can run them.
{
  system ? builtins.currentSystem,
  config ? { },
  overlays ? [ ],
}:
let
  lib = import ./lib;
  # host.nix is written by check.py: the Pythons of this machine, pip's index and wheel folder
  host = if builtins.pathExists ./host.nix then import ./host.nix else throw "run tests.nix.check";
  cpu = lib.head (lib.splitString "-" system);
  platform = {
    inherit system;
    isLinux = true;
    isAarch64 = cpu == "aarch64";
    isx86_64 = cpu == "x86_64";
    parsed.cpu.name = cpu;
  };

  base =
    final:
    let
      call = lib.callPackageWith final;
      inherit (import ./stdenv.nix { inherit lib system; }) mkDerivation;
    in
    {
      inherit config lib system;
      path = ./.;
      pkgs = final;
      stdenv = {
        inherit mkDerivation system;
        hostPlatform = platform;
        buildPlatform = platform;
        cc = final.gcc // {
          cc.lib = final.emptyDirectory;
          libc = final.emptyDirectory;
        };
      };
      stdenvNoCC = final.stdenv;
      callPackage = call;
      newScope = extra: lib.callPackageWith (final // extra);
      extend = overlay: lib.fix (lib.extends overlay (_: final));
      hostPlatform = platform;
      inherit
        (import ./fetchers.nix {
          inherit host lib system;
          inherit (final) runCommand;
        })
        fetchFromGitHub
        fetchPypi
        fetchPypiFile
        fetchurl
        requireFile
        ;
      dockerTools = call ./docker.nix { inherit platform; };
      testers = call ./testers.nix { };
    }
    // import ./builders.nix {
      inherit lib;
      inherit (final) callPackage stdenv;
    }
    // import ./host-tools.nix {
      inherit lib;
      inherit (final) stdenv;
    }
    // import ./python.nix { inherit final host lib; };

  # nixpkgs refuses unfree packages unless its config allows them; so does the stand-in
  allowed = config.allowUnfreePredicate or (_: config.allowUnfree or false);
  licences = drv: lib.toList (drv.meta.license or [ ]);
  checkLicence =
    name: drv:
    if lib.isDerivation drv && lib.any (l: l.free or true == false) (licences drv) && !allowed drv then
      throw "Package ‘${name}’ has an unfree license, refusing to evaluate."
    else
      drv;
in
lib.mapAttrs checkLicence (lib.fix (lib.foldl' (f: o: lib.extends o f) base overlays))
