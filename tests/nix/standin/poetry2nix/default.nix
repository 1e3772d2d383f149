# A stand-in for poetry2nix: the wheels of poetry.lock (file and hash from the lock), one derivation a package,
# and the project's own package on top. Strict about what the real one needs: [tool.poetry] beside [project],
# preferWheels, a licence in meta.
{
  pkgs,
  lib ? pkgs.lib,
}:
let
  normal = name: lib.toLower (lib.replaceStrings [ "_" "." ] [ "-" "-" ] name);

  mkPoetryApplication =
    {
      projectDir,
      poetrylock ? projectDir + "/poetry.lock",
      python,
      preferWheels,
      checkGroups,
      overrides,
      meta,
      src ? projectDir,
      passthru ? { },
      pythonImportsCheck ? [ ],
    }:
    assert lib.assertMsg preferWheels "poetry2nix: building from sdists lacks build systems";
    assert lib.assertMsg (
      meta ? license
    ) "poetry2nix maps over lib.licenses unless meta.license is set";
    assert checkGroups == [ ] && overrides != null;
    let
      poetry = (lib.importTOML (projectDir + "/pyproject.toml")).tool.poetry;
      lock = lib.importTOML poetrylock;
      # as the real one, which knows the platform tags of April 2025
      strange = lib.filter (
        f: builtins.match ".*(-(android|emscripten|ios|pyodide|wasi)_|_riscv64).*[.]whl" f.file != null
      ) (lib.concatMap (p: p.files) lock.package);
      byName = lib.listToAttrs (map (p: lib.nameValuePair (normal p.name) p) lock.package);
      machine = pkgs.stdenv.hostPlatform.parsed.cpu.name;
      tag = "cp" + lib.replaceStrings [ "." ] [ "" ] python.pythonVersion;
      fits =
        file:
        lib.hasSuffix "-none-any.whl" file
        || (
          lib.hasSuffix ".whl" file
          && lib.hasInfix "manylinux" file
          && lib.hasInfix machine file
          && (
            lib.hasInfix "abi3" file || lib.hasInfix "-${tag}-${tag}-" file || lib.hasInfix "-py3-none-" file
          )
        );
      wheel =
        p:
        let
          files = lib.filter (f: fits f.file) p.files;
        in
        if files == [ ] then
          throw "poetry.lock: no wheel of ${p.name} ${p.version} for ${machine} ${tag}"
        else
          pkgs.fetchPypiFile {
            project = normal p.name;
            inherit (lib.head files) file hash;
          };
      isWanted =
        p: name:
        let
          spec = p.dependencies.${name};
          marker = if lib.isAttrs spec then spec.markers or "" else "";
          foreign = lib.any (word: lib.hasInfix word marker) [
            "Windows"
            "win32"
            "extra =="
            "python_version <"
          ];
        in
        byName ? ${normal name} && !foreign && !(lib.isAttrs spec && spec.optional or false);
      build =
        name: p:
        python.pkgs.buildPythonPackage {
          pname = name;
          inherit (p) version;
          format = "wheel";
          src = wheel p;
          dependencies = map (d: packages.${normal d}) (
            lib.filter (isWanted p) (lib.attrNames (p.dependencies or { }))
          );
        };
      packages = lib.mapAttrs build byName;
      direct = lib.filter (n: n != "python") (map normal (lib.attrNames poetry.dependencies));
      dependencies = map (n: packages.${n} or (throw "${n} is not in poetry.lock")) direct;
    in
    assert lib.assertMsg (strange == [ ]) "Unknown platform tag: ${(lib.head strange).file}";
    python.pkgs.buildPythonPackage {
      pname = normal poetry.name;
      inherit (poetry) version;
      pyproject = true;
      inherit
        dependencies
        meta
        pythonImportsCheck
        src
        ;
      passthru = {
        inherit python;
        dependencyEnv = python.withPackages (_: dependencies);
      }
      // passthru;
    };
in
{
  inherit mkPoetryApplication;
  overrides.withoutDefaults = overlay: [ overlay ];
}
