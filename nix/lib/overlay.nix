# What the folder overlay/ holds for a build.
{ lib }:
{
  /*
    The patches of a folder in the order of their numbers; none where there is no such folder.

    Type: patchesIn :: Path -> [ Path ]
  */
  patchesIn =
    folder:
    let
      files = if builtins.pathExists folder then builtins.attrNames (builtins.readDir folder) else [ ];
    in
    map (name: folder + "/${name}") (lib.filter (lib.hasSuffix ".patch") files);

  /*
    The Python packages of overlay/ that go into an engine; tests of the engine insist that exl3 is among them.

    Type: pluginsIn :: Path -> [ Path ]
  */
  pluginsIn = folder: lib.filter builtins.pathExists [ (folder + "/vllm_exl3") ];
}
