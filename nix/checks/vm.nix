# Two machines with the module and a stub engine: the rank runs on both, and only the fabric reaches it.
{
  lib,
  self,
  stubEngine,
  testers,
}:
let
  settings = {
    topology = "tp2";
    engine = "stub";
    supervisor = "own";
    nodes = map (n: {
      name = "spark-${toString n}";
      ssh = "spark-${toString n}";
      fabric = "192.168.1.${toString n}";
    }) (lib.range 1 2);
    serve.host = "0.0.0.0";
  };
  node =
    rank:
    { ... }:
    {
      imports = [ self.nixosModules.default ];
      virtualisation.memorySize = 2048;
      services.glmspark = {
        enable = true;
        inherit rank settings;
        engine = stubEngine // {
          runtime = "cpu";
        };
        dropCaches = true;
        fabric = {
          interface = "eth1";
          subnet = "192.168.1.0/24";
        };
        apiKeyFile = if rank == 0 then "/etc/key" else null;
        openFirewall = rank == 0;
      };
      environment.etc.key = {
        text = "not-a-secret-of-anybody";
        mode = "0600";
      };
    };
in
testers.runNixOSTest {
  name = "glmspark-two-nodes";
  nodes = {
    spark1 = node 0;
    spark2 = node 1;
  };
  testScript = ''
    start_all()
    for machine in (spark2, spark1):
        machine.wait_for_unit("glmspark-fabric.service")
        machine.succeed("systemctl show glmspark -p LimitMEMLOCK | grep -q infinity")
        machine.succeed("glmspark config check /etc/glmspark/kit.toml")
    with subtest("the API key is readable for the rank alone"):
        spark1.fail("grep -r not-a-secret /etc/systemd /run/systemd/system")
    with subtest("a rank that is killed comes back"):
        spark1.wait_for_unit("glmspark.service")
        pid = spark1.succeed("systemctl show glmspark -p MainPID --value").strip()
        spark1.succeed(f"kill -9 {pid}")
        spark1.wait_until_succeeds(
            f"test $(systemctl show glmspark -p MainPID --value) -gt 1 && "
            f"test $(systemctl show glmspark -p MainPID --value) != {pid}"
        )
    with subtest("page cache was dropped before the start"):
        spark1.succeed("journalctl -u glmspark-hygiene.service | grep -q Finished")
  '';
}
