# The phases of the stand-in's mkDerivation, run by the host's bash.
if [ -n "${NIX_ATTRS_SH_FILE:-}" ]; then
  . "$NIX_ATTRS_SH_FILE"
  out=${outputs[out]}
  export out PATH LANG SOURCE_DATE_EPOCH
fi
export HOME=$NIX_BUILD_TOP
cd "$NIX_BUILD_TOP"
for input in ${nativeBuildInputs:-} ${buildInputs:-}; do
  if [ -d "$input/bin" ]; then PATH=$input/bin:$PATH; fi
  if [ -f "$input/nix-support/setup-hook" ]; then . "$input/nix-support/setup-hook"; fi
done

# one hook or phase: the derivation's own text, or what is given as the default
runHook() { if [ -n "${!1:-}" ]; then eval "${!1}"; fi; }
phase() { if [ -n "${!1:-}" ]; then eval "${!1}"; else eval "$2"; fi; }

if [ -n "${buildCommand:-}" ]; then
  eval "$buildCommand"
  exit
fi

unpackDefault() {
  [ -n "${src:-}" ] || return 0
  mkdir source
  case $src in
    *.whl | *.zip) python3 -m zipfile -e "$src" source ;;
    *) if [ -d "$src" ]; then cp -rT "$src" source; else tar -xf "$src" -C source --strip-components=1; fi ;;
  esac
  chmod -R u+w source
  cd source
}
patchDefault() { for p in ${patches:-}; do echo "applying patch $p"; patch -p1 --fuzz=0 < "$p"; done; }

if [ -z "${dontUnpack:-}" ]; then phase unpackPhase unpackDefault; fi
runHook prePatch; phase patchPhase patchDefault; runHook postPatch
if [ -z "${dontConfigure:-}" ]; then runHook preConfigure; phase configurePhase :; runHook postConfigure; fi
if [ -z "${dontBuild:-}" ]; then runHook preBuild; phase buildPhase :; runHook postBuild; fi
if [ -n "${doCheck:-}" ]; then phase checkPhase :; fi
runHook preInstall; phase installPhase "cp -r . $out"; runHook postInstall
if [ -z "${dontFixup:-}" ]; then runHook preFixup; phase fixupPhase :; runHook postFixup; fi
if [ -n "${doInstallCheck:-}" ]; then phase installCheckPhase :; fi
