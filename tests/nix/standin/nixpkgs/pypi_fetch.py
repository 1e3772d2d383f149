"""Builder of a fixed-output derivation: one file, by name, from pip's folders or index.

Reads $indexes and $wheelFolders (lists separated by spaces), $project, $file, $out.
"""

import json
import os
import re
import shutil
import sys
import urllib.parse
import urllib.request
from pathlib import Path

_ACCEPT = {"Accept": "text/html"}  # every index has that form


def _links(index: str, project: str) -> dict[str, str]:
    """File name -> address of ``project``'s files on ``index`` (JSON or HTML page)."""
    url = f"{index.rstrip('/')}/{project}/"
    if url.startswith("file:"):
        page = Path(urllib.request.url2pathname(url[len("file:") :])) / "index.html"
        text, kind = page.read_text(), "text/html"
    else:
        request = urllib.request.Request(url, headers=_ACCEPT)  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            text, kind = answer.read().decode(), answer.headers["content-type"]
    if "json" in kind:
        return {f["filename"]: f["url"] for f in json.loads(text)["files"]}
    hrefs = [h.split("#")[0] for h in re.findall(r'href="([^"]+)"', text)]
    full = [urllib.parse.urljoin(url, h) for h in hrefs]
    return {urllib.parse.unquote(h.rsplit("/", 1)[-1]): h for h in full}


def _find(project: str, file: str) -> str:
    for folder in _env("wheelFolders").split():
        if (Path(folder) / file).exists():
            return (Path(folder) / file).as_uri()
    for index in _env("indexes").split():
        try:
            found = _links(index, project).get(file)
        except OSError as error:
            sys.stderr.write(f"{project}: {error}\n")
            continue
        if found:
            return found
    raise SystemExit(f"{file} is neither in pip's wheel folders nor on its index")


def _env(name: str) -> str:
    """An attribute of the derivation, which Nix hands over as it is written there."""
    return os.environ[name]


def main() -> None:
    """Fetch as the derivation says."""
    address = _find(_env("project"), _env("file"))
    with urllib.request.urlopen(address) as source, Path(_env("out")).open("wb") as to:  # noqa: S310
        shutil.copyfileobj(source, to)


if __name__ == "__main__":
    main()
