# testers.runNixOSTest: the nodes' systems are evaluated (assertions and all), no machine is started.
{
  lib,
  linkFarm,
  system,
  writeText,
  pkgs,
}:
{
  runNixOSTest =
    {
      name,
      nodes,
      testScript,
      defaults ? { },
      meta ? { },
    }:
    let
      harness = {
        nixpkgs.hostPlatform = system;
        nixpkgs.pkgs = pkgs;
        fileSystems."/".device = "none";
        system.stateVersion = "26.11";
      };
      built = lib.mapAttrs (
        node: module:
        (lib.nixosSystem {
          modules = [
            harness
            defaults
            module
            { networking.hostName = node; }
          ];
        }).config.system.build.toplevel
      ) nodes;
      script = if lib.isFunction testScript then testScript { nodes = built; } else testScript;
    in
    assert lib.isAttrs meta;
    linkFarm "vm-test-${name}-evaluated" (
      built // { test-script = writeText "test-script.py" script; }
    );
}
