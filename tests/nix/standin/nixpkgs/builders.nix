# Trivial builders: writers, links, closures, option docs, wrappers.
{
  lib,
  stdenv,
  callPackage,
}:
let
  inherit (stdenv) mkDerivation;
  run =
    name: env: script:
    mkDerivation (
      env
      // {
        inherit name;
        buildCommand = script;
      }
    );
  writeFile =
    {
      name,
      text,
      executable ? false,
      destination ? "",
      checkPhase ? "",
      meta ? { },
    }:
    mkDerivation {
      inherit
        destination
        executable
        meta
        name
        text
        ;
      passAsFile = [ "text" ];
      dontUnpack = true;
      installPhase = ''
        target=$out$destination
        mkdir -p "$(dirname "$target")"
        cp "$textPath" "$target"
        if [ -n "$executable" ]; then chmod +x "$target"; fi
        ${checkPhase}
      '';
    };
  script =
    name: text:
    writeFile {
      inherit name;
      text = "#!/bin/bash\n${text}";
      executable = true;
    };
  exports =
    env: lib.concatStrings (lib.mapAttrsToList (k: v: "export ${k}=${lib.escapeShellArg v}\n") env);
  docLine =
    option: "- `${option.name}`: ${option.description or (throw "${option.name} lacks a description")}";
in
rec {
  runCommand = run;
  runCommandLocal = run;
  emptyDirectory = run "empty-directory" { } "mkdir $out";
  emptyFile = run "empty-file" { } "touch $out";
  writeText = name: text: writeFile { inherit name text; };
  writeTextFile = writeFile;
  writeTextDir =
    path: text:
    writeFile {
      name = baseNameOf path;
      inherit text;
      destination = "/${path}";
    };
  writeScript =
    name: text:
    writeFile {
      inherit name text;
      executable = true;
    };
  writeShellScript = script;
  writeShellScriptBin =
    name: text:
    writeFile {
      inherit name;
      text = "#!/bin/bash\n${text}";
      executable = true;
      destination = "/bin/${name}";
      meta.mainProgram = name;
    };
  writeShellApplication =
    {
      name,
      text,
      runtimeInputs ? [ ],
      runtimeEnv ? { },
      excludeShellChecks ? [ ],
      meta ? { },
    }:
    writeFile {
      inherit name;
      executable = true;
      destination = "/bin/${name}";
      meta = {
        mainProgram = name;
      }
      // meta;
      text = ''
        #!/bin/bash
        set -o errexit -o nounset -o pipefail
        ${exports runtimeEnv}export PATH="${lib.makeBinPath runtimeInputs}:$PATH"

        ${text}
      '';
      checkPhase = ''
        bash -n "$target"
        if command -v shellcheck >/dev/null; then
          shellcheck ${lib.concatMapStringsSep " " (c: "--exclude ${c}") excludeShellChecks} "$target"
        else
          echo "no shellcheck on this machine: $target was only parsed"
        fi
      '';
    };
  symlinkJoin =
    {
      name,
      paths,
      postBuild ? "",
      nativeBuildInputs ? [ ],
      passthru ? { },
      meta ? { },
    }:
    mkDerivation {
      inherit
        meta
        name
        nativeBuildInputs
        passthru
        paths
        ;
      dontUnpack = true;
      installPhase = ''
        mkdir -p $out
        for p in $paths; do cp -rsf "$p/." "$out/"; chmod -R u+w "$out"; done
        ${postBuild}
      '';
    };
  linkFarm =
    name: entries:
    let
      list =
        if lib.isAttrs entries then
          lib.mapAttrsToList (name: path: { inherit name path; }) entries
        else
          entries;
      link = e: ''mkdir -p "$(dirname "$out/${e.name}")"; ln -s ${e.path} "$out/${e.name}"'';
    in
    run name { } "mkdir -p $out\n${lib.concatMapStringsSep "\n" link list}";
  closureInfo =
    { rootPaths }:
    mkDerivation {
      name = "closure-info";
      __structuredAttrs = true;
      exportReferencesGraph.closure = rootPaths;
      dontUnpack = true;
      installPhase = "mkdir $out; jq -r '.closure[].path' \"$NIX_ATTRS_JSON_FILE\" | sort > $out/store-paths";
    };
  nixosOptionsDoc =
    { options }:
    {
      optionsCommonMark = writeText "options.md" (
        lib.concatMapStringsSep "\n" docLine (lib.optionAttrSetToDocList options) + "\n"
      );
    };
  makeWrapper = run "make-wrapper" { } ''
    install -Dm755 ${./wrap.sh} $out/bin/makeWrapper
    ln -s makeWrapper $out/bin/wrapProgram
  '';
  formats.json = _: {
    type = lib.types.anything;
    generate = name: value: writeText name (builtins.toJSON value);
  };
  formats.toml = _: {
    type = lib.types.attrsOf lib.types.anything;
    generate =
      name: value:
      run name {
        json = builtins.toJSON value;
        passAsFile = [ "json" ];
      } "python3 ${./to_toml.py} $jsonPath $out";
  };
  mkShell =
    {
      name ? "nix-shell",
      packages ? [ ],
      shellHook ? "",
    }:
    run name { inherit packages shellHook; } "export > $out";
  mkShellNoCC = mkShell;
  autoPatchelfHook = callPackage ./auto-patchelf { };
  inherit (lib) recurseIntoAttrs;
}
