{ lib }:
let
  inherit (builtins)
    attrNames
    concatMap
    foldl'
    head
    isAttrs
    listToAttrs
    mapAttrs
    tail
    ;
in
{
  inherit (builtins)
    attrNames
    attrValues
    getAttr
    hasAttr
    intersectAttrs
    listToAttrs
    mapAttrs
    removeAttrs
    ;
  nameValuePair = name: value: { inherit name value; };
  optionalAttrs = condition: set: if condition then set else { };
  mapAttrs' = f: set: listToAttrs (lib.mapAttrsToList f set);
  mapAttrsToList = f: set: map (n: f n set.${n}) (attrNames set);
  attrsToList = lib.mapAttrsToList lib.nameValuePair;
  filterAttrs =
    p: set:
    listToAttrs (
      concatMap (n: lib.optional (p n set.${n}) (lib.nameValuePair n set.${n})) (attrNames set)
    );
  genAttrs = names: f: listToAttrs (map (n: lib.nameValuePair n (f n)) names);
  getAttrs = names: set: lib.genAttrs names (n: set.${n});
  concatMapAttrs = f: set: lib.mergeAttrsList (lib.mapAttrsToList f set);
  mergeAttrsList = foldl' (a: b: a // b) { };
  attrByPath =
    path: default: set:
    if path == [ ] then
      set
    else if isAttrs set && set ? ${head path} then
      lib.attrByPath (tail path) default set.${head path}
    else
      default;
  hasAttrByPath =
    path: set:
    path == [ ]
    || (isAttrs set && set ? ${head path} && lib.hasAttrByPath (tail path) set.${head path});
  getAttrFromPath =
    path: lib.attrByPath path (throw "cannot find attribute ${lib.concatStringsSep "." path}");
  setAttrByPath =
    path: value: if path == [ ] then value else { ${head path} = lib.setAttrByPath (tail path) value; };
  recursiveUpdate =
    a: b:
    if isAttrs a && isAttrs b && !(lib.isDerivation b) then
      a // mapAttrs (n: v: if a ? ${n} then lib.recursiveUpdate a.${n} v else v) b
    else
      b;
  zipAttrsWith =
    f: sets:
    lib.genAttrs (lib.unique (concatMap attrNames sets)) (
      n: f n (concatMap (s: lib.optional (s ? ${n}) s.${n}) sets)
    );
  isDerivation = x: isAttrs x && (x.type or null) == "derivation";
  recurseIntoAttrs = set: set // { recurseForDerivations = true; };
}
