import gzip
import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from plesio.core.errors import DataError, TaskError
from plesio.tasks import check_task
from plesio.tasks.cifar10_files import read_cifar10_binary, read_cifar10_python
from plesio.tasks.image_folder import find_images
from plesio.tasks.images import images
from plesio.tasks.mnist_files import MAX_BYTES, read_idx, read_mnist

Bytes = npt.NDArray[np.uint8]
CIFAR_NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def some_images(seed: int, *, number: int, num_bytes: int) -> tuple[Bytes, Bytes]:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (number, num_bytes), dtype=np.uint8)
    return pixels, random.integers(0, 10, number, dtype=np.uint8)


def write_cifar_python(path: Path, pixels: Bytes, labels: Bytes) -> None:
    batch = {b"batch_label": b"batch", b"labels": labels.tolist(), b"data": pixels, b"filenames": [b"a.png"]}
    path.write_bytes(pickle.dumps(batch, protocol=2))


def write_cifar_binary(path: Path, pixels: Bytes, labels: Bytes) -> None:
    path.write_bytes(np.concatenate([labels[:, None], pixels], axis=1).tobytes())


def write_mnist(folder: Path, part: str, pixels: Bytes, labels: Bytes, *, ending: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    side = int(np.sqrt(pixels.shape[1]))
    encode: Callable[[bytes], bytes] = gzip.compress if ending else bytes
    image_file = struct.pack(">4I", 0x803, len(pixels), side, side) + pixels.tobytes()
    (folder / f"{part}-images-idx3-ubyte{ending}").write_bytes(encode(image_file))
    label_file = struct.pack(">2I", 0x801, len(labels)) + labels.tobytes()
    (folder / f"{part}-labels-idx1-ubyte{ending}").write_bytes(encode(label_file))


def write_all(folder: Path, format: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if format.startswith("mnist"):
        for seed, part in enumerate(("train", "t10k")):
            pixels, labels = some_images(seed, number=20, num_bytes=28 * 28)
            write_mnist(folder, part, pixels, labels, ending=".gz" if format == "mnist.gz" else "")
        return
    for seed, name in enumerate(CIFAR_NAMES):
        pixels, labels = some_images(seed, number=4, num_bytes=3072)
        if format == "cifar10-binary":
            write_cifar_binary(folder / f"{name}.bin", pixels, labels)
        else:
            write_cifar_python(folder / name, pixels, labels)


@pytest.mark.parametrize(
    ("format", "place"),
    [
        ("cifar10-python", "."),
        ("cifar10-python", "cifar-10-batches-py"),
        ("cifar10-binary", "cifar-10-batches-bin"),
        ("mnist", "MNIST/raw"),
        ("mnist.gz", "."),
    ],
)
def test_every_format_is_found_read_and_trained(tmp_path: Path, format: str, place: str) -> None:
    write_all(tmp_path / place, format)
    task = images(folder=tmp_path, batch_size=8)
    check_task(task)
    dataset: Any = task.train_set()
    assert len(dataset) == 20
    assert 0 <= task.metric(task.build(0)[0]) <= 1


@pytest.mark.parametrize(
    ("write", "read"),
    [(write_cifar_python, read_cifar10_python), (write_cifar_binary, read_cifar10_binary)],
)
def test_cifar_files_come_back_in_order(
    tmp_path: Path,
    write: Callable[[Path, Bytes, Bytes], None],
    read: Callable[[tuple[Path, ...]], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    paths = (tmp_path / "one", tmp_path / "two")
    written = [some_images(seed, number=3, num_bytes=3072) for seed in range(2)]
    for path, (pixels, labels) in zip(paths, written, strict=True):
        write(path, pixels, labels)
    found, names = read(paths)
    assert found.shape == (6, 3, 32, 32)
    assert names.dtype == torch.int64
    assert np.array_equal(found.numpy().reshape(6, -1), np.concatenate([pixels for pixels, _ in written]))
    assert names.tolist() == [int(label) for _, labels in written for label in labels]


def test_the_pickle_of_python_2_is_read() -> None:
    """The authors' own files are such: texts of Python 2, and numpy under its old name."""
    data = b"\x00" * 3072
    written = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff"
        b"\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", len(data)) + data + b"tbU\x06labelsq\x08]q\tK\x07au."
    )
    assert read_pickled(written)[1].tolist() == [7]


def read_pickled(content: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    class InMemory(type(Path())):  # type: ignore[misc]
        def open(self, *_: Any, **__: Any) -> io.BytesIO:
            return io.BytesIO(content)

    return read_cifar10_python((InMemory("data_batch_1"),))


class Attack:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (Attack(print, "run"), "asks for .*print"),
        (Attack(eval, "1"), "asks for .*eval"),
        (Attack(__import__, "os"), "asks for .*__import__"),
        (Attack(np.ndarray, (10**9,)), "array of a given size"),
        (np.zeros(3, dtype=np.float64), "type 'f8'"),
        (np.array([print], dtype=object), "type 'O8'"),
        (Path("somewhere"), "asks for pathlib"),
    ],
)
def test_a_pickle_that_is_more_than_data_is_refused(
    attack: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = pickle.dumps({b"data": attack}, protocol=2)
    with pytest.raises(DataError, match=message):
        read_pickled(content)
    assert capsys.readouterr().out == ""


def test_a_pickle_cannot_change_how_the_next_is_read() -> None:
    poison = b"\x80\x02cnumpy\ndtype\n}U\x09_functionNsb."
    with pytest.raises(DataError, match="changes a function"):
        read_pickled(poison)


@pytest.mark.parametrize("kept", [0, 1, 50, 4000])
def test_a_pickle_cut_short_is_a_data_error(kept: int) -> None:
    pixels, labels = some_images(0, number=2, num_bytes=3072)
    content = pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2)
    with pytest.raises(DataError, match="data_batch_1 is no CIFAR-10 batch"):
        read_pickled(content[:kept])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "holds a list, not a dictionary"),
        ({}, "no array of bytes with 3072 columns"),
        ({b"data": np.zeros((2, 5), dtype=np.uint8), b"labels": [1, 2]}, "3072 columns"),
        ({b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [1]}, "one label for each of 2 images"),
        ({b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": [10]}, "label 10; labels are 0 to 9"),
    ],
)
def test_a_batch_with_other_contents_is_a_data_error(batch: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_pickled(pickle.dumps(batch, protocol=2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut short"),
        (b"\0" * 3072, "no whole number of records"),
        (b"\0" * 3074, "no whole number of records"),
        (b"\x0a" + b"\0" * 3072, "label 10"),
    ],
)
def test_a_damaged_binary_batch_is_a_data_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_cifar10_binary((path,))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_files_come_back(tmp_path: Path, ending: str) -> None:
    pixels, labels = some_images(3, number=5, num_bytes=9)
    write_mnist(tmp_path, "train", pixels, labels, ending=ending)
    paths = [tmp_path / f"train-{what}-ubyte{ending}" for what in ("images-idx3", "labels-idx1")]
    found, names = read_mnist((paths[0], paths[1]))
    assert np.array_equal(found.numpy(), pixels.reshape(5, 1, 3, 3))
    assert names.tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0", "ends within its header"),
        (struct.pack(">2I", 0x803, 1) + b"\1", "magic number 0x00000803, not 0x00000801"),
        (struct.pack(">2I", 0x801, 3) + b"\1\2", "cut short.*promises 3 bytes"),
        (struct.pack(">2I", 0x801, 3) + b"\1\2\3\4", "too long"),
        (struct.pack(">2I", 0x801, MAX_BYTES + 1), "header is damaged"),
    ],
)
def test_a_damaged_idx_file_is_a_data_error(tmp_path: Path, content: bytes, message: str) -> None:
    for path, encoded in ((tmp_path / "f", content), (tmp_path / "f.gz", gzip.compress(content))):
        path.write_bytes(encoded)
        with pytest.raises(DataError, match=message):
            read_idx(path, num_dimensions=1)


@pytest.mark.parametrize(
    "damage", [b"no gzip at all", gzip.compress(bytes(1000), mtime=0)[:-12]], ids=["no gzip", "cut off"]
)
def test_a_damaged_gzip_file_is_a_data_error(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(damage)
    with pytest.raises(DataError, match=str(path)):
        read_idx(path, num_dimensions=1)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    pixels, labels = some_images(0, number=5, num_bytes=9)
    write_mnist(tmp_path, "train", pixels, labels[:4])
    with pytest.raises(DataError, match=r"5 images, but .* 4 labels"):
        read_mnist((tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path / "nowhere")):
        images(folder=tmp_path / "nowhere")


def test_an_empty_folder_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1, .*test_batch; .*train-images-idx3-ubyte") as caught:
        images(folder=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "cifar-10-batches-py" in str(caught.value)


def test_a_single_missing_file_is_named(tmp_path: Path) -> None:
    write_all(tmp_path / "cifar-10-batches-py", "cifar10-python")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"only a part of cifar10-python; missing: data_batch_3$"):
        images(folder=tmp_path)


def test_two_formats_in_one_folder_need_a_choice(tmp_path: Path) -> None:
    write_all(tmp_path, "mnist")
    write_all(tmp_path, "cifar10-binary")
    with pytest.raises(TaskError, match="holds cifar10-binary and mnist; say which by format"):
        images(folder=tmp_path)
    assert find_images(tmp_path, format="mnist").format == "mnist"


def test_an_unknown_format_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match='did you mean "cifar10-python"'):
        images(folder=tmp_path, format="cifar10-pyton")
