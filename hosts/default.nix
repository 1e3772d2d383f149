# NixOS hosts spark-1 … spark-4, and mkSpark for flakes of your own.
{
  lib,
  nixos-dgx-spark,
  nixosModules,
  nixosSystem,
}:
let
  defaultSite = import ./site.nix { inherit lib; };

  # the kit that n hosts make: the site's own for its number of nodes, else the same pattern grown
  settingsFor =
    site: rank:
    let
      count = lib.max (rank + 1) (builtins.length site.settings.nodes);
      prefix = lib.concatStringsSep "." (lib.take 3 (lib.splitString "." site.fabric.subnet));
      grown = map (n: {
        name = "spark-${toString n}";
        ssh = "spark-${toString n}";
        fabric = "${prefix}.${toString n}";
      }) (lib.range 1 count);
    in
    if count == builtins.length site.settings.nodes then
      site.settings
    else
      site.settings
      // {
        topology = "tp${toString count}";
        nodes = grown;
      };
in
rec {
  /*
    A DGX Spark as rank `rank` of the kit that `site` describes (see hosts/site.nix).

    Type: mkSpark :: { rank :: Int, site :: AttrSet, modules :: [ Module ] } -> NixOS system
  */
  mkSpark =
    {
      rank,
      site ? defaultSite,
      modules ? [ ],
    }:
    let
      name = "spark-${toString (rank + 1)}";
    in
    nixosSystem {
      modules = [
        "${nixos-dgx-spark}/modules/dgx-spark.nix"
        nixosModules.default
        ./common.nix
        ./fabric.nix
        {
          nixpkgs.hostPlatform = "aarch64-linux";
          networking.hostName = name;
          services.glmspark = {
            inherit rank;
            settings = settingsFor site rank;
            apiKeyFile = if rank == 0 then site.apiKeyFile else null;
          };
        }
        (site.hostModules.${name} or { })
      ]
      ++ modules;
      specialArgs = { inherit site; };
    };

  configurations = lib.listToAttrs (
    map (
      n:
      lib.nameValuePair "spark-${toString n}" (mkSpark {
        rank = n - 1;
      })
    ) (lib.range 1 4)
  );
}
