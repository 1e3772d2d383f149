# builtins.path with filters, and filesets (a path, or a predicate over path strings).
{ lib }:
let
  isSet = x: builtins.isAttrs x && (x._type or "") == "fileset";
  normal =
    x:
    if isSet x then
      x
    else if !builtins.pathExists x then
      throw "fileset: ${toString x} does not exist"
    else
      let
        p = toString x;
      in
      {
        _type = "fileset";
        holds = path: path == p || lib.hasPrefix "${p}/" path;
      };
  make = holds: {
    _type = "fileset";
    inherit holds;
  };
in
{
  cleanSourceWith =
    {
      src,
      filter ? (_: _: true),
      name ? "source",
    }:
    builtins.path {
      inherit filter name;
      path = src;
    };
  cleanSource =
    src:
    lib.cleanSourceWith {
      inherit src;
      filter =
        path: _:
        !builtins.elem (baseNameOf path) [
          ".git"
          "__pycache__"
          "result"
        ];
    };
  fileset = {
    unions = sets: make (path: builtins.any (s: (normal s).holds path) sets);
    union =
      a: b:
      lib.fileset.unions [
        a
        b
      ];
    difference = a: b: make (path: (normal a).holds path && !(normal b).holds path);
    intersection = a: b: make (path: (normal a).holds path && (normal b).holds path);
    maybeMissing = path: if builtins.pathExists path then normal path else make (_: false);
    fileFilter =
      predicate: root:
      make (
        path:
        (normal root).holds path
        && predicate {
          name = baseNameOf path;
          hasExt = ext: lib.hasSuffix ".${ext}" path;
          type = "regular";
        }
      );
    toSource =
      { root, fileset }:
      builtins.path {
        name = "source";
        path = root;
        filter = path: type: type == "directory" || (normal fileset).holds path;
      };
  };
}
