{ lib }:
{
  /*
    The text of a poetry.lock with no wheels but CPython's for x86_64 and aarch64 Linux. poetry2nix's lists of tags
    are of April 2025, and one that it lacks (Android, iOS, riscv64, GraalPy) is an error wherever it stands.

    Type: linuxWheels :: String -> String
  */
  linuxWheels =
    text:
    let
      wheel = line: builtins.match "[[:space:]]*[{]file = \"([^\"]+[.]whl)\".*" line;
      isOurs =
        file:
        builtins.match ".*-(cp[0-9]+|py[py23.]+)-[a-z0-9]+-(any|[^-]*linux[^-]*_(x86_64|aarch64))[.]whl" file
        != null;
      keeps =
        line:
        let
          found = wheel line;
        in
        found == null || isOurs (builtins.head found);
    in
    lib.concatStringsSep "\n" (lib.filter keeps (lib.splitString "\n" text));
}
