# `nix run .#start`: the tool's verbs, with this flake's engine named to it.
#
# Only the verbs that bring an engine to a node depend on it; the others know its path without fetching 8 GB.
{ pkgs }:
let
  inherit (pkgs) lib;
  # null: the loopback kit makes its own environment (runtime "venv")
  engine = if pkgs.stdenv.hostPlatform.isAarch64 then lib.getExe pkgs.vllm-gb10 else null;
  bringsEngine = [
    "restart"
    "start"
  ];
  namesEngine = [
    "config"
    "doctor"
    "init"
    "logs"
    "plan"
    "report"
    "rollback"
    "status"
    "stop"
    "weights"
  ];
  app = description: program: {
    type = "app";
    inherit program;
    meta = { inherit description; };
  };
  environment =
    path:
    lib.optionalString (engine != null) ''
      export GLMSPARK_PATHS_ENGINE=''${GLMSPARK_PATHS_ENGINE-${path}}
    '';
  verb =
    path: name:
    app "glmspark ${name}" (
      lib.getExe (
        pkgs.writeShellApplication {
          name = "glmspark-${name}";
          text = ''
            ${environment path}exec ${lib.getExe pkgs.glmspark} ${name} "$@"
          '';
        }
      )
    );
  known = lib.optionalString (engine != null) (builtins.unsafeDiscardStringContext engine);
  brought = lib.optionalString (engine != null) engine;
in
lib.genAttrs bringsEngine (verb brought)
// lib.genAttrs namesEngine (verb known)
// {
  default = app "the glmspark command" (lib.getExe pkgs.glmspark);
  bundle = app "write a folder that installs a Spark without network" (
    lib.getExe pkgs.glmspark-bundle
  );
  update-engine = app "write the engine's wheel locks anew" (lib.getExe pkgs.glmspark-update-engine);
}
