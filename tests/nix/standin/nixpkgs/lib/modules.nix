# A small module system: imports, options, mkIf / mkMerge / mkOverride, submodules, freeform settings. Unknown
# options, wrong types and conflicting values are errors, in nixpkgs' words.
{ lib }:
let
  inherit (builtins)
    attrNames
    concatMap
    filter
    functionArgs
    head
    isAttrs
    isFunction
    isPath
    isString
    mapAttrs
    ;
  inherit (lib) isOption isType showOption;

  structural = [
    "_class"
    "_file"
    "config"
    "disabledModules"
    "freeformType"
    "imports"
    "key"
    "meta"
    "options"
  ];

  # One definition with mkMerge, mkIf and mkOverride taken off: a list of { value, file, priority }.
  unwrap =
    d:
    let
      inner = content: unwrap (d // { value = content; });
    in
    if isType "merge" d.value then
      concatMap inner d.value.contents
    else if isType "if" d.value then
      lib.optionals d.value.condition (inner d.value.content)
    else if isType "override" d.value then
      map (x: x // { inherit (d.value) priority; }) (inner d.value.content)
    else
      [ d ];

  # mkIf, mkMerge and mkOverride around a set of options, moved onto the set's members.
  pushDown =
    d:
    let
      each =
        f: content:
        map (x: x // { value = mapAttrs (_: f) x.value; }) (pushDown (d // { value = content; }));
    in
    if isType "merge" d.value then
      concatMap (content: pushDown (d // { value = content; })) d.value.contents
    else if isType "if" d.value then
      each (lib.mkIf d.value.condition) d.value.content
    else if isType "override" d.value then
      each (lib.mkOverride d.value.priority) d.value.content
    else if !isAttrs d.value then
      throw "expected a set in ${toString d.file}, found ${builtins.typeOf d.value}"
    else
      [ d ];

  mergeOptionSets =
    path: sets:
    lib.genAttrs (lib.unique (concatMap attrNames sets)) (
      n:
      let
        here = path ++ [ n ];
        found = concatMap (s: lib.optional (s ? ${n}) s.${n}) sets;
      in
      if !lib.any isOption found then
        mergeOptionSets here found
      else if builtins.length found > 1 then
        throw "The option `${showOption here}' is already declared."
      else
        head found
    );

  optionValue =
    loc: option: defs:
    let
      found = lib.dischargeProperties defs;
      type = option.type or lib.types.unspecified;
      default = [
        {
          file = "the default";
          value = option.default;
        }
      ];
      value =
        if found != [ ] then
          lib.mergeDefinitions loc type found
        else if option ? default then
          (if option.default == null then null else lib.mergeDefinitions loc type default)
        else if type.name == "submodule" then
          type.merge loc [ ]
        else
          throw "The option `${showOption loc}' was accessed but has no value defined. Try setting the option.";
    in
    (option.apply or lib.id) value;
in
{
  dischargeProperties =
    defs:
    let
      found = concatMap unwrap defs;
      priority = d: d.priority or 100;
      best = lib.foldl' (acc: d: lib.min acc (priority d)) 9999 found;
    in
    filter (d: priority d == best) found;

  mergeDefinitions =
    loc: type: defs:
    let
      bad = filter (d: !type.check d.value) defs;
    in
    if bad == [ ] then
      type.merge loc defs
    else
      throw "A definition for option `${showOption loc}' is not of type `${type.name}'. Definition values: ${
        lib.concatMapStringsSep ", " (d: "${lib.types.show d.value} (${toString d.file})") bad
      }";

  evalModules =
    {
      modules,
      specialArgs ? { },
      prefix ? [ ],
    }:
    let
      base = {
        inherit config options lib;
      }
      // specialArgs;
      argument =
        file: n: _:
        base.${n} or (config._module.args.${n} or (throw "module argument `${n}' is missing (${file})"));
      call =
        file: f:
        let
          wanted = functionArgs f;
        in
        f (if wanted == { } then base else base // mapAttrs (argument file) wanted);

      load =
        from: m:
        let
          isFile = isPath m || isString m;
          loaded = if isFile then import m else m;
          file = if isFile then toString m else from;
          body = if isFunction loaded then call file loaded else loaded;
          structured = body ? config || body ? options;
          extra = attrNames (removeAttrs body structural);
          self = {
            file = body._file or file;
            freeform = body.freeformType or null;
            options = body.options or { };
            config = if structured then body.config or { } else removeAttrs body structural;
          };
        in
        if structured && extra != [ ] then
          throw "Module `${self.file}' has an unsupported attribute `${head extra}'."
        else
          [ self ] ++ concatMap (load self.file) (body.imports or [ ]);

      internal.options._module.args = lib.mkOption {
        type = lib.types.lazyAttrsOf lib.types.raw;
        default = { };
      };
      loaded = concatMap (load "<module>") (modules ++ [ internal ]);
      freeform = lib.findFirst (t: t != null) null (map (m: m.freeform) loaded);

      walk =
        path: tree: defs:
        let
          pushed = concatMap pushDown defs;
          strangers =
            d:
            map (n: {
              inherit n;
              inherit (d) file;
            }) (filter (n: !(tree ? ${n})) (attrNames d.value));
          unknown = concatMap strangers pushed;
          isTop = path == prefix;
          member =
            n: option:
            let
              found = concatMap (d: lib.optional (d.value ? ${n}) (d // { value = d.value.${n}; })) pushed;
              loc = path ++ [ n ];
            in
            if isOption option then optionValue loc option found else walk loc option found;
          known = mapAttrs member tree;
          free = freeform.merge path (map (d: d // { value = removeAttrs d.value (attrNames tree); }) pushed);
        in
        if unknown == [ ] then
          known
        else if isTop && freeform != null then
          free // known
        else
          throw "The option `${
            showOption (path ++ [ (head unknown).n ])
          }' does not exist. Definition in ${toString (head unknown).file}";

      options = mergeOptionSets prefix (map (m: m.options) loaded);
      config = walk prefix options (
        map (m: {
          inherit (m) file;
          value = m.config;
        }) loaded
      );
    in
    {
      inherit config options;
    };
}
