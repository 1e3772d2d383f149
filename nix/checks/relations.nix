# Each relation between options fires on a host that breaks it, and none on a healthy one.
{
  lib,
  runCommand,
  self,
  stdenv,
  stubEngine,
}:
let
  gpuStub = stubEngine // {
    runtime = "cuda";
  };
  failures =
    rank: module:
    let
      inherit
        (self.lib.mkSpark {
          inherit rank;
          modules = [
            { services.glmspark.engine = lib.mkDefault gpuStub; }
            module
          ];
        })
        config
        ;
    in
    map (a: a.message) (lib.filter (a: !a.assertion) config.assertions);

  breaks = rank: broken: breaksWith rank { services.glmspark = broken; };
  breaksWith =
    rank: module: expected:
    let
      got = failures rank module;
    in
    {
      inherit expected got;
      fires = lib.any (lib.hasInfix expected) got;
    };

  cases = {
    rank = breaks 0 {
      rank = lib.mkForce 3;
      openFirewall = lib.mkForce false;
    } "services.glmspark.rank is 3";
    role = breaks 0 { role = "worker"; } "services.glmspark.role is worker with rank 0";
    subnet = breaks 0 {
      fabric.subnet = lib.mkForce "10.99.0.0/24";
    } "is not in services.glmspark.fabric.subnet";
    address = breaksWith 0 {
      systemd.network.networks."40-glmspark-fabric".address = lib.mkForce [ "10.77.0.9/24" ];
    } "this host's enp1s0f0np0 has 10.77.0.9";
    netdev = breaks 1 {
      settings.nodes = lib.mkForce [
        {
          name = "spark-1";
          fabric = "10.77.0.1";
        }
        {
          name = "spark-2";
          fabric = "10.77.0.2";
          netdev = "eth9";
        }
      ];
    } "netdev eth9 of rank 1 is not";
    key = breaks 0 { apiKeyFile = lib.mkForce null; } "services.glmspark.apiKeyFile is not set";
    keyInStore = breaks 0 {
      apiKeyFile = lib.mkForce "${builtins.storeDir}/00000000000000000000000000000000-key";
    } "in the world-readable Nix store";
    workerFirewall = breaks 1 { openFirewall = lib.mkForce true; } "only the head has an API";
    localFirewall = breaks 0 {
      settings.serve.host = lib.mkForce "127.0.0.1";
    } "other hosts cannot reach";
    storeInStore = breaks 0 {
      weights.store = "${builtins.storeDir}/00000000000000000000000000000000-store";
    } "services.glmspark.weights.store is in the Nix store";
    cpuEngine = breaks 0 { settings.engine = "vllm-cpu"; } "which needs a GPU";
    gpuEngine = breaks 0 {
      engine = stubEngine // {
        runtime = "cpu";
      };
    } "which has no GPU";
    paths = breaks 0 { settings.paths.state = "/x"; } "services.glmspark.settings.paths is set";
  };
  # must fail to build, naming the key: tests/nix/test_flake.py
  badKit =
    (self.lib.mkSpark {
      rank = 0;
      modules = [
        {
          nixpkgs.hostPlatform = lib.mkForce stdenv.hostPlatform.system;
          services.glmspark.engine = gpuStub;
          services.glmspark.settings.serve.max_model_length = 4096;
        }
      ];
    }).config.environment.etc."glmspark/kit.toml".source;
  silent = lib.filterAttrs (_: c: !c.fires) cases;
  healthy = lib.concatMap (rank: failures rank { }) [
    0
    1
    2
    3
  ];
  number = builtins.length (self.lib.mkSpark { rank = 0; }).config.services.glmspark.settings.nodes;
in
assert lib.assertMsg (healthy == [ ]) "a healthy host fails: ${toString healthy}";
assert lib.assertMsg (silent == { }) (
  lib.concatStringsSep "\n" (
    lib.mapAttrsToList (n: c: "${n}: expected “${c.expected}”, got ${builtins.toJSON c.got}") silent
  )
);
assert number == 2;
runCommand "check-relations" {
  passthru = { inherit badKit; };
} "echo ${toString (lib.attrNames cases)} > $out"
