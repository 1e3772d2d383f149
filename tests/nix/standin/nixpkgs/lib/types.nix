# Option types: a name, a check, and how several definitions become one value.
{ lib }:
let
  inherit (builtins)
    attrNames
    concatMap
    filter
    head
    isAttrs
    isBool
    isFloat
    isFunction
    isInt
    isList
    isPath
    isString
    length
    match
    ;
  inherit (lib) mergeDefinitions unique;
  isNumber = x: isInt x || isFloat x;
  values = map (d: d.value);
  show = v: if isAttrs v || isFunction v then "<${builtins.typeOf v}>" else builtins.toJSON v;

  distinct = vs: if builtins.any (v: isFunction v || isAttrs v) vs then [ (head vs) ] else unique vs;
  mergeEqual =
    loc: defs:
    if length (distinct (values defs)) > 1 then
      throw "The option `${lib.showOption loc}' has conflicting definition values: ${
        lib.concatMapStringsSep ", " (d: "${show d.value} (${toString d.file})") defs
      }"
    else
      (head defs).value;

  make = name: check: {
    _type = "option-type";
    description = name;
    merge = mergeEqual;
    inherit name check;
  };
  joined =
    sep:
    make "strings concatenated with ${show sep}" isString
    // {
      merge = _: defs: lib.concatStringsSep sep (values defs);
    };
  field = name: concatMap (d: lib.optional (d.value ? ${name}) (d // { value = d.value.${name}; }));
  names = defs: unique (concatMap (d: attrNames d.value) defs);
in
rec {
  inherit show;
  raw = make "raw value" (_: true);
  unspecified = raw;
  bool = make "boolean" isBool;
  int = make "signed integer" isInt;
  float = make "floating point number" isFloat;
  number = make "number" isNumber;
  str = make "string" isString;
  nonEmptyStr = make "non-empty string" (x: isString x && match "[ \t\n]*" x == null);
  singleLineStr = make "single-line string" (x: isString x && match "[^\n\r]*\n?" x != null);
  strMatching =
    regex: make "string matching the pattern ${regex}" (x: isString x && match regex x != null);
  separatedString = joined;
  lines = joined "\n";
  path = make "absolute path" (
    x: (isString x || isPath x || lib.isDerivation x) && lib.hasPrefix "/" (toString x)
  );
  package = make "package" (
    x: lib.isDerivation x || (isString x && lib.hasPrefix builtins.storeDir x)
  );
  pkgs = make "package set" isAttrs;
  port = ints.u16;
  ints = {
    between =
      a: b:
      make "integer between ${toString a} and ${toString b} (both inclusive)" (
        x: isInt x && x >= a && x <= b
      );
    positive = make "positive integer, meaning >0" (x: isInt x && x > 0);
    unsigned = make "unsigned integer, meaning >=0" (x: isInt x && x >= 0);
    u16 = ints.between 0 65535;
  };
  numbers = {
    between =
      a: b: make "number between ${toString a} and ${toString b}" (x: isNumber x && x >= a && x <= b);
    positive = make "positive number" (x: isNumber x && x > 0);
  };
  enum = vs: make "one of ${lib.concatMapStringsSep ", " show vs}" (x: builtins.elem x vs);
  functionTo = _: make "function" isFunction // { merge = _: defs: (head defs).value; };
  attrs = make "attribute set" isAttrs // {
    merge = _: defs: lib.mergeAttrsList (values defs);
  };
  anything = make "anything" (_: true) // {
    merge =
      loc: defs:
      let
        vs = values defs;
      in
      if builtins.all (v: isAttrs v && !lib.isDerivation v) vs then
        (attrsOf anything).merge loc defs
      else if builtins.all isList vs then
        lib.concatLists vs
      else
        mergeEqual loc defs;
  };
  nullOr =
    t:
    t
    // {
      name = "null or ${t.name}";
      description = "null or ${t.description}";
      check = x: x == null || t.check x;
      merge =
        loc: defs:
        let
          set = filter (d: d.value != null) defs;
        in
        if set == [ ] then null else t.merge loc set;
    };
  either =
    a: b:
    make "${a.name} or ${b.name}" (x: a.check x || b.check x)
    // {
      merge =
        loc: defs: if builtins.all (d: a.check d.value) defs then a.merge loc defs else b.merge loc defs;
    };
  oneOf = ts: lib.foldl' either (head ts) (builtins.tail ts);
  coercedTo =
    from: f: to:
    to
    // {
      check = x: from.check x || to.check x;
      merge =
        loc: defs:
        to.merge loc (map (d: d // { value = if from.check d.value then f d.value else d.value; }) defs);
    };
  listOf =
    t:
    make "list of ${t.name}" isList
    // {
      merge =
        loc: defs:
        let
          item =
            d: i: value:
            let
              found = lib.dischargeProperties [ (d // { inherit value; }) ];
              at = loc ++ [ "[entry ${toString i}]" ];
            in
            lib.optional (found != [ ]) (mergeDefinitions at t found);
        in
        lib.concatLists (map (d: lib.concatLists (lib.imap1 (item d) d.value)) defs);
      getSubOptions = loc: if t ? getSubOptions then t.getSubOptions (loc ++ [ "*" ]) else { };
    };
  attrsOf =
    t:
    make "attribute set of ${t.name}" isAttrs
    // {
      merge =
        loc: defs:
        let
          found = lib.genAttrs (names defs) (n: lib.dischargeProperties (field n defs));
        in
        lib.mapAttrs (n: mergeDefinitions (loc ++ [ n ]) t) (lib.filterAttrs (_: ds: ds != [ ]) found);
      getSubOptions = loc: if t ? getSubOptions then t.getSubOptions (loc ++ [ "<name>" ]) else { };
    };
  lazyAttrsOf = attrsOf;
  submodule = module: submoduleWith { modules = lib.toList module; };
  submoduleWith =
    {
      modules,
      specialArgs ? { },
    }:
    let
      asModule = d: {
        _file = d.file;
        imports = [
          (if isFunction d.value || isPath d.value then d.value else { config = d.value; })
        ];
      };
      eval =
        loc: defs:
        lib.evalModules {
          modules = modules ++ map asModule defs;
          specialArgs = {
            name = lib.last loc;
          }
          // specialArgs;
          prefix = loc;
        };
    in
    make "submodule" (x: isAttrs x || isFunction x || isPath x)
    // {
      merge = loc: defs: removeAttrs (eval loc defs).config [ "_module" ];
      getSubOptions =
        loc:
        removeAttrs (eval (if loc == [ ] then [ "<name>" ] else loc) [ ]).options [
          "_module"
        ];
    };
}
