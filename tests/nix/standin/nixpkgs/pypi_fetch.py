"""Builder of a fixed-output derivation: one file, by name, from pip's folders or index.

Reads $indexes and $wheelFolders (lists separated by spaces), $project, $file, $out.
"""

import json
import os
import re
import shutil
import urllib.parse
import urllib.request
from pathlib import Path

_ACCEPT = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"}


def _links(index: str, project: str) -> dict[str, str]:
    """File name -> address of ``project``'s files on ``index`` (JSON or HTML page)."""
    url = f"{index.rstrip('/')}/{project}/"
    if url.startswith("file:"):
        page = Path(urllib.request.url2pathname(url[len("file:") :])) / "index.html"
        text, kind = page.read_text(), "text/html"
    else:
        request = urllib.request.Request(url, headers=_ACCEPT)
        with urllib.request.urlopen(request) as answer:
            text, kind = answer.read().decode(), answer.headers["content-type"]
    if "json" in kind:
        return {f["filename"]: f["url"] for f in json.loads(text)["files"]}
    hrefs = [h.split("#")[0] for h in re.findall(r'href="([^"]+)"', text)]
    full = [urllib.parse.urljoin(url, h) for h in hrefs]
    return {urllib.parse.unquote(h.rsplit("/", 1)[-1]): h for h in full}


def _find(project: str, file: str) -> str:
    for folder in os.environ["wheelFolders"].split():
        if (Path(folder) / file).exists():
            return (Path(folder) / file).as_uri()
    for index in os.environ["indexes"].split():
        try:
            found = _links(index, project).get(file)
        except OSError as error:
            print(f"{project}: {error}")
            continue
        if found:
            return found
    raise SystemExit(f"{file} is neither in pip's wheel folders nor on its index")


if __name__ == "__main__":
    address = _find(os.environ["project"], os.environ["file"])
    with urllib.request.urlopen(address) as source:
        with Path(os.environ["out"]).open("wb") as target:
            shutil.copyfileobj(source, target)
