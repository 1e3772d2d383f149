# mkDerivation with the phases that this project's packages use.
{ lib, system }:
let
  hostPath = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
  ours = [
    "env"
    "meta"
    "passthru"
    "pname"
    "version"
  ];
  asEnv =
    v:
    if v == true then
      "1"
    else if v == false || v == null then
      ""
    else
      v;

  mkDerivation =
    attrsOrFunction:
    let
      attrs = if lib.isFunction attrsOrFunction then attrsOrFunction final else attrsOrFunction;
      name = attrs.name or "${attrs.pname}-${attrs.version}";
      structured = attrs.__structuredAttrs or false;
      keep = n: v: if structured || lib.hasPrefix "__" n then v else asEnv v;
      drv = derivation (
        lib.mapAttrs keep (removeAttrs attrs ours)
        // (attrs.env or { })
        // {
          inherit name system;
          builder = "/bin/bash";
          args = [
            "-euo"
            "pipefail"
            ./setup.sh
          ];
          PATH = hostPath;
          LANG = "C.UTF-8";
          SOURCE_DATE_EPOCH = attrs.SOURCE_DATE_EPOCH or "315532800";
        }
        // lib.optionalAttrs (attrs ? pname) { inherit (attrs) pname version; }
      );
      overrideAttrs =
        change:
        mkDerivation (
          fin:
          let
            old = if lib.isFunction attrsOrFunction then attrsOrFunction fin else attrsOrFunction;
          in
          old // (if lib.isFunction change then change old else change)
        );
      final =
        drv
        // {
          inherit name overrideAttrs;
          pname = attrs.pname or name;
          version = attrs.version or "";
          src = attrs.src or null;
          meta = {
            platforms = lib.platforms.all;
          }
          // lib.optionalAttrs (attrs ? pname) { mainProgram = attrs.pname; }
          // (attrs.meta or { });
          passthru = attrs.passthru or { };
        }
        // (attrs.passthru or { });
    in
    final;
in
{
  inherit mkDerivation;
}
