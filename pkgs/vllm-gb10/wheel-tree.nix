# A virtual environment in the store from locked wheels, with patches and plugins of this project inside.
{
  lib,
  autoPatchelfHook,
  linkFarm,
  python,
  stdenv,
}:
{
  pname,
  version,
  # link farm entries, see nix/lib/wheels.nix
  wheels,
  # applied to site-packages with no fuzz, so that a drift of vLLM's text stops the build
  patches ? [ ],
  # package folders with a pyproject.toml: installed with their entry points
  plugins ? [ ],
  # shell, run in site-packages after the patches
  postInstall ? "",
  buildInputs ? [ ],
  ignoreMissingLibraries ? [ ],
  passthru ? { },
  meta,
}:
stdenv.mkDerivation {
  inherit
    buildInputs
    meta
    plugins
    pname
    version
    ;
  # not `patches`: there is no source to unpack, they go to the installed tree
  sitePatches = patches;
  farm = linkFarm "${pname}-wheels" wheels;
  site = "lib/${python.libPrefix}/site-packages";
  nativeBuildInputs = [
    autoPatchelfHook
    python
  ];
  dontUnpack = true;
  # NVIDIA's libraries carry signatures and padding that strip damages
  dontStrip = true;
  autoPatchelfIgnoreMissingDeps = ignoreMissingLibraries;

  installPhase = ''
    runHook preInstall
    PYTHONPATH=${python.pkgs.installer}/${python.sitePackages} PYTHONDONTWRITEBYTECODE=1 \
      ${python.interpreter} ${./install_wheels.py} $out ${python.interpreter} "$farm"/*.whl
    cd $out/$site
    for p in $sitePatches; do
      echo "applying $p"
      patch --strip=1 --fuzz=0 --no-backup-if-mismatch < "$p"
    done
    for source in $plugins; do
      ${python.interpreter} ${./install_plugin.py} "$source" .
    done
    ${postInstall}
    # one process, fixed hash seed, sorted: the .pyc files are the same at every build
    PYTHONHASHSEED=0 ${python.interpreter} -m compileall -q -j 1 -x '/(tests?|examples)/' --invalidation-mode unchecked-hash . \
      || echo "some templates among the modules are not Python: left without .pyc"
    runHook postInstall
  '';

  passthru = {
    inherit python;
  }
  // passthru;
}
