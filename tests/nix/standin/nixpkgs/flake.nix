{
  description = "A stand-in for nixpkgs, for tests on machines that cannot fetch nixpkgs";

  outputs =
    { self }:
    let
      lib = import ./lib;
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs lib.platforms.linux (system: import ./. { inherit system; });
      nixosModules = { };
    };
}
