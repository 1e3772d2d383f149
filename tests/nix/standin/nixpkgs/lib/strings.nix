{ lib }:
let
  inherit (builtins)
    concatStringsSep
    filter
    isString
    match
    replaceStrings
    split
    stringLength
    substring
    ;
  lower = "abcdefghijklmnopqrstuvwxyz";
  upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  characters = lib.stringToCharacters;
in
{
  inherit (builtins)
    concatStringsSep
    match
    replaceStrings
    stringLength
    substring
    ;
  optionalString = condition: s: if condition then s else "";
  concatStrings = concatStringsSep "";
  concatMapStrings = f: xs: lib.concatStrings (map f xs);
  concatMapStringsSep =
    sep: f: xs:
    concatStringsSep sep (map f xs);
  concatLines = lib.concatMapStrings (s: s + "\n");
  hasPrefix = prefix: s: substring 0 (stringLength prefix) s == prefix;
  hasSuffix =
    suffix: s:
    let
      n = stringLength s;
      m = stringLength suffix;
    in
    n >= m && substring (n - m) m s == suffix;
  hasInfix = infix: s: builtins.length (split (lib.escapeRegex infix) s) > 1;
  removePrefix =
    prefix: s: if lib.hasPrefix prefix s then substring (stringLength prefix) (-1) s else s;
  removeSuffix =
    suffix: s:
    if lib.hasSuffix suffix s then substring 0 (stringLength s - stringLength suffix) s else s;
  splitString = sep: s: filter isString (split (lib.escapeRegex sep) s);
  stringToCharacters = s: builtins.genList (i: substring i 1 s) (stringLength s);
  escape = cs: replaceStrings cs (map (c: "\\" + c) cs);
  escapeRegex = lib.escape (characters "\\[{()^$?*+|.");
  escapeShellArg =
    arg:
    let
      s = toString arg;
    in
    if match "[[:alnum:],._+:@%/-]+" s == null then "'${replaceStrings [ "'" ] [ "'\\''" ] s}'" else s;
  escapeShellArgs = lib.concatMapStringsSep " " lib.escapeShellArg;
  toUpper = replaceStrings (characters lower) (characters upper);
  toLower = replaceStrings (characters upper) (characters lower);
  trim =
    s:
    let
      found = match "[[:space:]]*(.*[^[:space:]])[[:space:]]*" s;
    in
    if found == null then "" else builtins.head found;
  fileContents = path: lib.removeSuffix "\n" (builtins.readFile path);
  versionOlder = a: b: builtins.compareVersions b a == 1;
  versionAtLeast = a: b: !lib.versionOlder a b;
  versions = {
    major = v: builtins.elemAt (lib.splitString "." v) 0;
    majorMinor = v: concatStringsSep "." (lib.take 2 (lib.splitString "." v));
  };
  cmakeFeature = name: value: "-D${name}:STRING=${value}";
  cmakeBool = name: value: "-D${name}:BOOL=${if value then "TRUE" else "FALSE"}";
}
