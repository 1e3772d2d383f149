# Python interpreters of the machine with the parts of nixpkgs' Python set that this project uses. An interpreter
# that the machine lacks still evaluates; building anything with it fails and says which one is missing.
{
  final,
  host,
  lib,
}:
let
  inherit (final.stdenv) mkDerivation;
  known = host.pythons.${final.system} or { };

  closureOf =
    packages:
    let
      go =
        seen: todo:
        if todo == [ ] then
          seen
        else
          let
            p = lib.head todo;
            isNew = !lib.any (q: q.outPath == p.outPath) seen;
          in
          if isNew then go (seen ++ [ p ]) (lib.tail todo ++ (p.pyDeps or [ ])) else go seen (lib.tail todo);
    in
    go [ ] packages;

  # the tool's interpreter may be any supported one; the engines' locks insist on their own
  newest = lib.last (lib.attrNames known);
  anyOf = wanted: if known ? ${wanted} || known == { } then wanted else newest;

  interpreter =
    version:
    let
      exe = known.${version} or "/no/python${version}/on/this/machine";
      site = "lib/python${version}/site-packages";
      self = mkDerivation {
        pname = "python3";
        inherit version;
        dontUnpack = true;
        installPhase = ''
          [ -x ${exe} ] || { echo "this machine has no Python ${version}" >&2; exit 1; }
          mkdir -p $out/bin
          for name in python3 python python${version}; do ln -s ${exe} $out/bin/$name; done
        '';
        passthru = {
          interpreter = "${self}/bin/python3";
          pythonVersion = version;
          sitePackages = site;
          libPrefix = "python${version}";
          executable = "python${version}";
          isAvailable = known ? ${version};
          inherit pkgs withPackages;
        };
        meta.mainProgram = "python3";
      };
      withPackages =
        f:
        mkDerivation {
          name = "python3-${version}-env";
          dontUnpack = true;
          deps = closureOf (f pkgs);
          installPhase = ''
            mkdir -p $out/bin $out/${site}
            for d in $deps; do cp -rsf "$d/${site}/." $out/${site}/; chmod -R u+w $out/${site}; done
            printf '#!/bin/sh\nPYTHONNOUSERSITE=1 PYTHONPATH=%s exec %s "$@"\n' $out/${site} ${exe} > $out/bin/python3
            chmod +x $out/bin/python3
            ln -s python3 $out/bin/python
          '';
          meta.mainProgram = "python3";
        };
      buildPythonPackage =
        args:
        let
          deps = closureOf ((args.dependencies or [ ]) ++ (args.propagatedBuildInputs or [ ]));
          isWheel = (args.format or "") == "wheel";
          ours = [
            "build-system"
            "dependencies"
            "format"
            "propagatedBuildInputs"
            "pyproject"
            "pythonImportsCheck"
          ];
        in
        mkDerivation (
          removeAttrs args ours
          // {
            dontUnpack = isWheel;
            PYPATH = lib.makeSearchPath site deps;
            installPhase = "${exe} ${./py_install.py} ${
              if isWheel then "wheel $src" else "tree ."
            } $out ${site}";
            doInstallCheck = true;
            installCheckPhase = lib.concatMapStrings (m: ''
              PYTHONPATH=$out/${site}:$PYPATH ${exe} -c "import ${m}"
            '') (args.pythonImportsCheck or [ ]);
            passthru = {
              pyDeps = deps;
            }
            // (args.passthru or { });
          }
        );
      # from the index like any other wheel, run by the host's Python
      pureWheel =
        pname: version: sha256:
        buildPythonPackage {
          inherit pname version;
          format = "wheel";
          src = final.fetchPypi {
            inherit pname version sha256;
            format = "wheel";
            dist = "py3";
            python = "py3";
          };
        };
      installer =
        pureWheel "installer" "0.7.0"
          "05d1933f0a5ba7d8d6296bb6d5018e7c94fa473ceb10cf198a92ccea19c27b53";
      pip = pureWheel "pip" "25.3" "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd";
      pkgs = {
        inherit buildPythonPackage installer pip;
        buildPythonApplication = buildPythonPackage;
        python = self;
      };
    in
    self;
in
{
  python311 = interpreter "3.11";
  python312 = interpreter "3.12";
  python313 = interpreter (anyOf "3.13");
}
