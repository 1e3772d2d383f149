"""The applier: exact or not at all, both ways, and never through a link."""

import shutil

import pytest

from tests.overlay.patches.conftest import installed_vllm

PATCH = """Why: a
Upstream: b
Delete when: c
Proved by: d

--- a/vllm/x.py
+++ b/vllm/x.py
@@ -2,3 +2,3 @@
 two
-three
+THREE
 four
--- /dev/null
+++ b/vllm/new.py
@@ -0,0 +1,1 @@
+made
"""
TEXT = "one\ntwo\nthree\nfour\nfive\n"


@pytest.fixture
def folder(tmp_path, monkeypatch, apply_tool):
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "0001-x.patch").write_text(PATCH)
    monkeypatch.setattr(
        apply_tool, "patch_files", lambda: sorted(patches.glob("*.patch"))
    )
    return patches


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree" / "vllm").mkdir(parents=True)
    (tmp_path / "tree" / "vllm" / "x.py").write_text(TEXT)
    return tmp_path / "tree"


def test_applies_and_takes_back(apply_tool, folder, tree):
    apply_tool.apply(tree)
    assert "THREE" in (tree / "vllm" / "x.py").read_text()
    assert (tree / "vllm" / "new.py").read_text() == "made\n"
    apply_tool.apply(tree, reverse=True)
    assert (tree / "vllm" / "x.py").read_text() == TEXT
    assert not (tree / "vllm" / "new.py").exists()


def test_check_changes_nothing(apply_tool, folder, tree):
    assert apply_tool.apply(tree, check=True)
    assert (tree / "vllm" / "x.py").read_text() == TEXT


def test_one_line_off_is_refused_and_nothing_written(apply_tool, folder, tree):
    (tree / "vllm" / "x.py").write_text("zero\n" + TEXT)
    with pytest.raises(apply_tool.PatchError, match=r"0001-x\.patch: vllm/x\.py:2"):
        apply_tool.apply(tree)
    assert "THREE" not in (tree / "vllm" / "x.py").read_text()
    assert not (tree / "vllm" / "new.py").exists()


def test_applied_twice_is_refused(apply_tool, folder, tree, capsys):
    assert apply_tool.main([str(tree)]) == 0
    assert apply_tool.main([str(tree)]) == 7
    assert "is not what the patch expects" in capsys.readouterr().err


def test_missing_file_is_refused(apply_tool, folder, tree):
    (tree / "vllm" / "x.py").unlink()
    with pytest.raises(apply_tool.PatchError, match="does not exist"):
        apply_tool.apply(tree)


def test_header_is_required(apply_tool, folder, tree):
    (folder / "0001-x.patch").write_text(PATCH.replace("Delete when: c\n", ""))
    with pytest.raises(apply_tool.PatchError, match="no 'Delete when:' line"):
        apply_tool.apply(tree)


def test_miscounted_hunk_is_refused(apply_tool, folder, tree):
    (folder / "0001-x.patch").write_text(PATCH.replace("@@ -2,3", "@@ -2,9"))
    with pytest.raises(apply_tool.PatchError, match="cut short or miscounted"):
        apply_tool.apply(tree)


def test_links_are_replaced_not_written_through(apply_tool, folder, tree, tmp_path):
    original = tmp_path / "installed.py"
    original.write_text(TEXT)
    (tree / "vllm" / "x.py").unlink()
    (tree / "vllm" / "x.py").symlink_to(original)
    apply_tool.apply(tree)
    assert original.read_text() == TEXT
    assert not (tree / "vllm" / "x.py").is_symlink()


def test_real_patches_apply_to_and_reverse_from_0_32_0(tmp_path, apply_tool):
    source = installed_vllm()
    tree = tmp_path / "tree"
    for name in set(apply_tool.touched()):
        if (source.parent / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.parent / name, tree / name)
    before = {p: p.read_text() for p in tree.rglob("*.py")}
    changed = apply_tool.apply(tree)
    assert {p: p.read_text() for p in tree.rglob("*.py")} != before
    apply_tool.apply(tree, reverse=True)
    assert {p: p.read_text() for p in tree.rglob("*.py")} == before
    assert changed


def test_patched_files_are_python(patched_tree, apply_tool):
    for name in set(apply_tool.touched()):
        compile((patched_tree / name).read_text(), name, "exec")
