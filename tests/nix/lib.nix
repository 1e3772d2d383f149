# Tests of nix/lib: "<function>: <case>" -> { expr; expected; }.
{ lib, ours }:
let
  unit =
    changes:
    ours.unit (
      {
        glmspark = {
          meta.mainProgram = "glmspark";
          outPath = "/nix/store/x-glmspark";
        };
        kit = "/etc/glmspark/kit.toml";
        rank = 0;
        waitForFabric = "/bin/wait";
        dropCaches = null;
        apiKeyFile = null;
        store = "/data/store";
        environment = { };
        usesGpu = true;
      }
      // changes
    );
  cfg = {
    rank = 0;
    role = "head";
    engine = {
      name = "vllm-gb10-0.32.0";
      runtime = "cuda";
    };
    settings = {
      nodes = [
        {
          name = "spark-1";
          fabric = "10.77.0.1";
        }
        {
          name = "spark-2";
          fabric = "10.77.0.2";
        }
      ];
      serve.host = "0.0.0.0";
    };
    fabric = {
      interface = "enp1s0f0np0";
      subnet = "10.77.0.0/24";
    };
    apiKeyFile = "/run/key";
    openFirewall = true;
    weights.store = "/data/store";
  };
  failing =
    changes: extra:
    map (a: a.message) (
      lib.filter (a: !a.assertion) (ours.relations ({ cfg = lib.recursiveUpdate cfg changes; } // extra))
    );
  one = changes: extra: builtins.length (failing changes extra);
in
{
  "wheels.parse: the parts of a name" = {
    expr = ours.wheels.parse "torch-2.13.0-cp312-cp312-manylinux_2_28_aarch64.whl";
    expected = {
      pname = "torch";
      version = "2.13.0";
      python = "cp312";
      abi = "cp312";
      platform = "manylinux_2_28_aarch64";
    };
  };
  "wheels.parse: a build tag is refused" = {
    expr = (builtins.tryEval (builtins.deepSeq (ours.wheels.parse "a-1-2-py3-none-any.whl") 1)).success;
    expected = false;
  };
  "wheels.fetch: arguments of fetchPypi" = {
    expr =
      (ours.wheels.fetch lib.id {
        file = "six-1.17.0-py2.py3-none-any.whl";
        sha256 = "00";
      }).path;
    expected = {
      pname = "six";
      version = "1.17.0";
      format = "wheel";
      dist = "py2.py3";
      python = "py2.py3";
      abi = "none";
      platform = "any";
      sha256 = "00";
    };
  };
  "wheels.entry: by name" = {
    expr = (ours.wheels.entry [ { name = "torch"; } ] "torch").name;
    expected = "torch";
  };
  "wheels.entry: a missing one is an error" = {
    expr = (builtins.tryEval (builtins.deepSeq (ours.wheels.entry [ ] "torch") 1)).success;
    expected = false;
  };
  "overlay.patchesIn: in the order of their numbers, patches alone" = {
    expr = map baseNameOf (ours.overlay.patchesIn ./fixtures/patches);
    expected = [
      "0001-first.patch"
      "0010-second.patch"
    ];
  };
  "overlay.patchesIn: no such folder" = {
    expr = ours.overlay.patchesIn ./fixtures/none;
    expected = [ ];
  };
  "overlay.pluginsIn: no such folder" = {
    expr = ours.overlay.pluginsIn ./fixtures/none;
    expected = [ ];
  };
  "poetry.linuxWheels: foreign wheels go, the others stay" = {
    expr = ours.poetry.linuxWheels ''
      {file = "a-1-cp313-cp313-android_24_arm64_v8a.whl", hash = "sha256:0"},
      {file = "a-1-cp313-cp313-manylinux2014_aarch64.whl", hash = "sha256:0"},
      {file = "a-1-cp313-cp313-ios_13_0_arm64_iphoneos.whl", hash = "sha256:0"},
      {file = "a-1-cp313-cp313-musllinux_1_2_riscv64.whl", hash = "sha256:0"},
      {file = "a-1-py3-none-any.whl", hash = "sha256:0"},
      {file = "a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", hash = "sha256:0"},
      {file = "a_ios-1.tar.gz", hash = "sha256:0"},
    '';
    expected = ''
      {file = "a-1-cp313-cp313-manylinux2014_aarch64.whl", hash = "sha256:0"},
      {file = "a-1-py3-none-any.whl", hash = "sha256:0"},
      {file = "a_ios-1.tar.gz", hash = "sha256:0"},
    '';
  };
  "firewall: nftables" = {
    expr = ours.firewall {
      interface = "eth7";
      subnet = "10.1.0.0/16";
      usesNftables = true;
    };
    expected.extraInputRules = ''
      iifname "eth7" ip saddr 10.1.0.0/16 meta l4proto tcp accept comment "glmspark fabric"
    '';
  };
  "firewall: iptables removes what it adds" = {
    expr = lib.attrNames (
      ours.firewall {
        interface = "eth7";
        subnet = "10.1.0.0/16";
        usesNftables = false;
      }
    );
    expected = [
      "extraCommands"
      "extraStopCommands"
    ];
  };
  "unit: the key is a credential, never environment" = {
    expr =
      let
        u = (unit { apiKeyFile = "/run/key"; }).glmspark;
      in
      [
        u.serviceConfig.LoadCredential
        (lib.hasInfix "/run/key" (builtins.toJSON u.environment))
      ];
    expected = [
      "api-key:/run/key"
      false
    ];
  };
  "unit: without a key there is no credential" = {
    expr = (unit { }).glmspark.serviceConfig ? LoadCredential;
    expected = false;
  };
  "unit: a CPU engine gets no device" = {
    expr = (unit { usesGpu = false; }).glmspark.serviceConfig ? DeviceAllow;
    expected = false;
  };
  "unit: hygiene comes first where it is asked for" = {
    expr = lib.elem "glmspark-hygiene.service" (unit { dropCaches = "/bin/drop"; }).glmspark.after;
    expected = true;
  };
  "unit: configuration, preflight and integrity failures stay down" = {
    expr = (unit { }).glmspark.serviceConfig.RestartPreventExitStatus;
    expected = "2 3 4 7";
  };
  "relations: a healthy kit" = {
    expr = failing { } { fabricAddresses = [ "10.77.0.1" ]; };
    expected = [ ];
  };
  "relations: a rank that the kit has not" = {
    expr = one {
      rank = 2;
      role = "worker";
      openFirewall = false;
    } { };
    expected = 1;
  };
  "relations: subnets are compared by bits" = {
    expr = [
      (one { fabric.subnet = "10.77.0.0/31"; } { })
      (one { fabric.subnet = "10.76.0.0/15"; } { })
      (one { fabric.subnet = "10.78.0.0/15"; } { })
    ];
    expected = [
      0
      0
      1
    ];
  };
}
