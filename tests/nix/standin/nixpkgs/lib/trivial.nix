{ lib }:
let
  inherit (builtins) functionArgs isFunction;
in
{
  inherit (builtins)
    fromJSON
    functionArgs
    isAttrs
    isBool
    isFloat
    isFunction
    isInt
    isList
    isPath
    isString
    pathExists
    readFile
    seq
    toJSON
    typeOf
    ;
  version = "standin";
  id = x: x;
  const = x: _: x;
  flip =
    f: a: b:
    f b a;
  pipe = builtins.foldl' (x: f: f x);
  fix =
    f:
    let
      x = f x;
    in
    x;
  extends =
    overlay: f: final:
    let
      prev = f final;
    in
    prev // overlay final prev;
  min = a: b: if a < b then a else b;
  max = a: b: if a > b then a else b;
  mod = a: b: a - b * (a / b);
  boolToString = b: if b then "true" else "false";
  toInt = builtins.fromJSON;
  importJSON = path: builtins.fromJSON (builtins.readFile path);
  importTOML = path: builtins.fromTOML (builtins.readFile path);
  assertMsg = condition: message: condition || throw message;
  throwIf = condition: message: if condition then throw message else (x: x);
  throwIfNot = condition: lib.throwIf (!condition);
  warn = message: builtins.trace "warning: ${message}";
  warnIf = condition: message: if condition then lib.warn message else (x: x);

  makeOverridable =
    f: args:
    let
      result = f args;
      overridden = new: lib.makeOverridable f (args // (if isFunction new then new args else new));
    in
    if builtins.isAttrs result then result // { override = overridden; } else result;

  callPackageWith =
    auto: f: args:
    let
      g = if isFunction f then f else import f;
      wanted = functionArgs g;
      missing = builtins.filter (n: !wanted.${n} && !(auto ? ${n}) && !(args ? ${n})) (
        builtins.attrNames wanted
      );
    in
    if missing != [ ] then
      throw "callPackage: no package ${lib.concatStringsSep ", " missing} in the stand-in"
    else
      lib.makeOverridable g (builtins.intersectAttrs wanted auto // args);

  composeExtensions =
    f: g: final: prev:
    let
      first = f final prev;
    in
    first // g final (prev // first);
}
