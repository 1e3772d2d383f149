{ lib }:
let
  wrap = _type: extra: { inherit _type; } // extra;
in
{
  mkOption = option: wrap "option" option;
  mkEnableOption =
    what:
    lib.mkOption {
      default = false;
      example = true;
      type = lib.types.bool;
      description = "Whether to enable ${what}.";
    };
  mkPackageOption =
    pkgs: name: extra:
    let
      path = lib.toList (extra.default or name);
    in
    lib.mkOption (
      {
        type = lib.types.package;
        default = lib.getAttrFromPath path pkgs;
        defaultText = lib.literalExpression "pkgs.${lib.concatStringsSep "." path}";
        description = "The ${toString name} package to use.";
      }
      // removeAttrs extra [ "default" ]
    );
  mkIf = condition: content: wrap "if" { inherit condition content; };
  mkMerge = contents: wrap "merge" { inherit contents; };
  mkOverride = priority: content: wrap "override" { inherit priority content; };
  mkDefault = lib.mkOverride 1000;
  mkForce = lib.mkOverride 50;
  mkOptionDefault = lib.mkOverride 1500;
  mkBefore = lib.id;
  mkAfter = lib.id;
  literalExpression = text: wrap "literalExpression" { inherit text; };
  literalMD = lib.literalExpression;
  isType = type: x: builtins.isAttrs x && (x._type or null) == type;
  isOption = lib.isType "option";
  showOption = lib.concatStringsSep ".";

  # Every option below a tree of options, as a list with its dotted name (internal ones left out).
  optionAttrSetToDocList =
    let
      go =
        path: tree:
        if lib.isOption tree then
          [
            (
              {
                name = lib.showOption path;
                loc = path;
              }
              // tree
            )
          ]
          ++ lib.optionals (tree ? type.getSubOptions) (go path (tree.type.getSubOptions path))
        else
          lib.concatLists (
            lib.mapAttrsToList (n: v: if n == "_module" then [ ] else go (path ++ [ n ]) v) tree
          );
    in
    go [ ];
}
