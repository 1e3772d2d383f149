# The units of a head and of a worker: their text against tests/golden/nix, systemd's own reading of what NixOS
# renders, and the exposure score.
{
  diffutils,
  lib,
  linkFarm,
  ours,
  runCommand,
  self,
  stubEngine,
  systemd,
  writeText,
}:
let
  # "exposure" of systemd-analyze security, in tenths (0 safe, 100 unsafe): what a GPU rank needs costs the rest
  threshold = 20;
  example =
    rank:
    ours.unit {
      inherit rank;
      glmspark = {
        meta.mainProgram = "glmspark";
        outPath = "/nix/store/…-glmspark";
      };
      kit = "/etc/glmspark/kit.toml";
      waitForFabric = "/nix/store/…-wait/bin/glmspark-wait-for-fabric enp1s0f0np0 10.77.0.1 300";
      dropCaches = "/nix/store/…-hygiene/bin/glmspark-hygiene drop-caches";
      apiKeyFile = if rank == 0 then "/run/secrets/glmspark" else null;
      store = "/var/lib/glmspark/store";
      environment.NCCL_DEBUG = "WARN";
      usesGpu = true;
    };
  atom = v: if lib.isBool v then lib.boolToString v else toString v;
  line = name: v: lib.concatMapStrings (x: "${name}=${atom x}\n") (lib.toList v);
  section = set: lib.concatStrings (lib.mapAttrsToList line set);
  render = name: u: ''
    # ${name}.service
    [Unit]
    ${section (
      removeAttrs u [
        "environment"
        "serviceConfig"
      ]
    )}
    [Service]
    ${
      section (lib.mapAttrs' (k: v: lib.nameValuePair "Environment ${k}" v) (u.environment or { }))
    }${section u.serviceConfig}
  '';
  golden =
    rank:
    writeText "rank-${toString rank}.txt" (
      lib.concatStringsSep "\n" (lib.mapAttrsToList render (example rank))
    );
  rendered = linkFarm "rendered-units" (
    map
      (rank: {
        name = "rank-${toString rank}.txt";
        path = golden rank;
      })
      [
        0
        1
      ]
  );

  config =
    rank:
    (self.lib.mkSpark {
      inherit rank;
      modules = [ { services.glmspark.engine = lib.mkForce (stubEngine // { runtime = "cuda"; }); } ];
    }).config;
  unitFile =
    rank: name:
    writeText "${name}.service" (
      # the text alone: building what it names would need an aarch64 machine
      builtins.unsafeDiscardStringContext (config rank).systemd.units."${name}.service".text
    );
  units = linkFarm "units" (
    lib.concatMap
      (
        rank:
        map
          (name: {
            name = "rank-${toString rank}/${name}.service";
            path = unitFile rank name;
          })
          [
            "glmspark"
            "glmspark-fabric"
            "glmspark-hygiene"
          ]
      )
      [
        0
        1
      ]
  );
in
runCommand "check-units"
  {
    nativeBuildInputs = [
      diffutils
      systemd
    ];
    passthru = { inherit rendered; };
  }
  ''
    diff -ru ${../../tests/golden/nix} ${rendered} || {
      echo "error: the units changed; if that is meant, copy the new text to tests/golden/nix" >&2
      exit 1
    }
    # systemd-analyze wants its run-time folder; a sandbox whose root belongs to somebody else cannot have it
    if ! mkdir -p /run/systemd 2> /dev/null; then
      echo "not verified by systemd-analyze: /run/systemd cannot be made in this sandbox" | tee $out >&2
      exit 0
    fi
    # it exits 0 on unknown keys and wrong values, so what it says is what counts; see that it does say something
    printf '[Service]\nExecStart=/bin/true\nNoSuchKey=1\n' > bad.service
    systemd-analyze verify --man=no ./bad.service 2>&1 | grep -q "Unknown key 'NoSuchKey'"
    for rank in 0 1; do
      cp -rL ${units}/rank-$rank units-$rank
      chmod u+w units-$rank
      cd units-$rank
      systemd-analyze verify --man=no ./*.service 2> said || true
      # programs of another machine's closure are not in this sandbox
      grep -E 'glmspark.*\.service:' said | grep -vE 'is not executable' > wrong || true
      if [ -s wrong ]; then cat wrong >&2; exit 1; fi
      for unit in *.service; do
        systemd-analyze security --offline=true --threshold=${toString threshold} --no-pager "./$unit" \
          > "$unit.score" || { cat "$unit.score" >&2; exit 1; }
        tail -n 1 "$unit.score"
      done
      cd ..
    done
    echo ok > $out
  ''
