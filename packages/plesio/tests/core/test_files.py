from pathlib import Path

import pytest

from plesio.core.errors import DataError
from plesio.core.files import write_whole


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "file"
    write_whole(path, "old")
    write_whole(path, "new")
    assert path.read_text() == "new"
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(DataError, match=f"cannot write {folder}: "):
        write_whole(folder, "new")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder"]
