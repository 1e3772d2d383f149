# A small autoPatchelfHook: it sets no run path (the host's loader finds the host's libraries), and checks nothing.
{ runCommand, writeText }:
runCommand "auto-patchelf-hook" { } ''
  mkdir -p $out/nix-support
  cp ${writeText "hook" ''
    autoPatchelf() { echo "stand-in: programs and libraries keep the run paths of their wheels"; }
    addAutoPatchelfSearchPath() { :; }
  ''} $out/nix-support/setup-hook
''
