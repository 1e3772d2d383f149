# Fixed-output fetchers. Files of the Python index are looked up by name, with pip's own settings.
{
  lib,
  host,
  system,
  runCommand,
}:
rec {
  fetchurl =
    {
      url,
      hash,
      name ? baseNameOf url,
    }:
    import <nix/fetchurl.nix> {
      inherit
        hash
        name
        system
        url
        ;
    };

  # one file by its exact name from pip's index or wheel folders
  fetchPypiFile =
    {
      project,
      file,
      hash,
    }:
    derivation {
      name = file;
      inherit project file system;
      inherit (host) indexes wheelFolders;
      builder = "/usr/bin/python3";
      args = [ ./pypi_fetch.py ];
      outputHashMode = "flat";
      outputHashAlgo = null;
      outputHash = hash;
      impureEnvVars = [
        "https_proxy"
        "no_proxy"
        "SSL_CERT_FILE"
      ];
    };

  fetchPypi =
    {
      pname,
      version,
      format ? "setuptools",
      dist ? "py2.py3",
      python ? "py2.py3",
      abi ? "none",
      platform ? "any",
      hash ? "",
      sha256 ? hash,
    }:
    fetchPypiFile {
      project = lib.toLower (lib.replaceStrings [ "_" "." ] [ "-" "-" ] pname);
      file =
        if format != "wheel" then
          "${pname}-${version}.tar.gz"
        else if dist != python then
          throw "fetchPypi: ${pname}: dist ${dist} is not the file's tag ${python}"
        else
          "${pname}-${version}-${python}-${abi}-${platform}.whl";
      hash = if hash != "" then hash else "sha256:${sha256}";
    };

  # a file that only the user can bring; here: from pip's wheel folders
  requireFile =
    {
      name,
      sha256,
      message,
    }:
    assert message != "";
    fetchPypiFile {
      project = lib.head (lib.splitString "-" name);
      file = name;
      hash = "sha256:${sha256}";
    };

  fetchFromGitHub =
    {
      owner,
      repo,
      rev,
      hash,
      fetchSubmodules ? false,
    }:
    assert builtins.isBool fetchSubmodules && hash != "";
    runCommand "${repo}-${lib.substring 0 7 rev}" { } ''
      echo "no GitHub from the stand-in: ${owner}/${repo} at ${rev}" >&2
      exit 1
    '';
}
