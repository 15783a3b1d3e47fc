"""Files of measured tosses: round trips, views, and a clear sentence for every kind of bad file."""

import io
import os
import pickle
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from diffnsd.apps import _files
from diffnsd.apps.toss import (
    OutputDirError,
    Tosses,
    TossFileError,
    check_output_dir,
    load_tosses,
    save_predictions,
    save_tosses,
)

FRAME_KEYS = ("position", "quaternion_wxyz", "velocity_world", "angular_velocity_body")
LENGTHS = (4, 2, 7)


def _arrays(lengths=LENGTHS, seed=0) -> dict:
    """Plausible content of a file: tosses 10, 20, 30 of different lengths."""
    rng = np.random.default_rng(seed)
    frames = sum(lengths)
    quaternion = rng.normal(size=(frames, 4))
    return dict(
        toss_id=10 * (1 + np.arange(len(lengths))),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        position=rng.uniform(-0.5, 0.5, (frames, 3)),
        quaternion_wxyz=quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True),
        velocity_world=rng.normal(size=(frames, 3)),
        angular_velocity_body=rng.normal(size=(frames, 3)),
        dt=1 / 148,
        half_width=0.05,
        mass=0.37,
        inertia=8.1e-4,
        gravity=9.81,
    )


def _write(path, arrays):
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory) -> bytes:
    return _write(tmp_path_factory.mktemp("good") / "good.npz", _arrays()).read_bytes()


# --- what is read is what was written -------------------------------------------------------------


def test_round_trip(tmp_path):
    arrays = _arrays()
    saved = save_tosses(tmp_path / "a.npz", Tosses(**arrays))
    loaded = load_tosses(saved)
    for key, value in arrays.items():
        # Only the quaternions are touched (normalised again): one rounding error.
        np.testing.assert_allclose(
            getattr(loaded, key), value, rtol=0, atol=2.3e-16 if "quat" in key else 0
        )
    assert os.listdir(tmp_path) == ["a.npz"]


def test_types_of_other_programs_are_accepted(tmp_path):
    arrays = {key: np.asarray(value, dtype=np.float32) for key, value in _arrays().items()}
    arrays["dt"] = np.array([arrays["dt"]])
    arrays |= {
        "half_width": np.array([0.05, 0.04, 0.03]),
        "inertia": np.array([8e-4, 7e-4, 6e-4]),
        "remark": "extra",
    }
    loaded = load_tosses(_write(tmp_path / "a.npz", arrays))
    assert loaded.position.dtype == np.float64 and loaded.offsets.dtype == np.int64
    assert isinstance(loaded.dt, float) and loaded.half_width.shape == loaded.inertia.shape == (3,)
    np.testing.assert_allclose(np.linalg.norm(loaded.quaternion_wxyz, axis=1), 1.0, atol=3e-16)


def test_toss_select_and_lengths():
    arrays = _arrays()
    tosses = Tosses(**arrays)
    assert len(tosses) == 3
    np.testing.assert_array_equal(tosses.lengths, LENGTHS)
    one = tosses.toss(1)
    assert one.toss_id == 20
    np.testing.assert_array_equal(one.position, arrays["position"][4:6])
    assert np.shares_memory(one.position, tosses.position)
    assert tosses.toss(-1).toss_id == 30
    part = tosses.select([2, 0])
    np.testing.assert_array_equal(part.toss_id, [30, 10])
    np.testing.assert_array_equal(part.offsets, [0, 7, 11])
    np.testing.assert_array_equal(part.toss(0).velocity_world, tosses.toss(2).velocity_world)
    np.testing.assert_array_equal(tosses.select(tosses.lengths > 3).toss_id, [10, 30])


@pytest.mark.parametrize("bad", [[3], [-4], [], np.array([0.5]), np.array([True, False])])
def test_select_says_what_is_wrong(bad):
    with pytest.raises(IndexError, match="toss"):
        Tosses(**_arrays()).select(bad)


def test_arrays_cannot_be_changed_behind_the_checks():
    arrays = _arrays()
    tosses = Tosses(**arrays)
    with pytest.raises(ValueError, match="read-only"):
        tosses.position[0, 0] = np.nan
    arrays["position"][0, 0] = np.nan
    assert np.isfinite(tosses.position).all()


def test_padded_repeats_the_last_frame():
    tosses = Tosses(**_arrays())
    padded = tosses.padded()
    assert padded.position.shape == (3, 7, 3) and padded.quaternion_wxyz.shape == (3, 7, 4)
    np.testing.assert_array_equal(padded.mask.sum(axis=1), LENGTHS)
    for j in range(3):
        for key in FRAME_KEYS:
            own = getattr(tosses.toss(j), key)
            np.testing.assert_array_equal(getattr(padded, key)[j, : len(own)], own)
            np.testing.assert_array_equal(
                getattr(padded, key)[j, len(own) :], np.tile(own[-1], (7 - len(own), 1))
            )


def test_predictions_keep_failures_visible(tmp_path):
    arrays = _arrays()
    arrays["position"][5] = np.nan
    path = save_predictions(
        tmp_path / "p.npz",
        *(arrays[key] for key in ("toss_id", "offsets", "position", "quaternion_wxyz")),
    )
    with np.load(path, allow_pickle=False) as archive:
        assert sorted(archive.files) == ["offsets", "position", "quaternion_wxyz", "toss_id"]
        np.testing.assert_array_equal(archive["position"], arrays["position"])
    with pytest.raises(TossFileError, match="rows"):
        save_predictions(
            path,
            arrays["toss_id"],
            arrays["offsets"],
            arrays["position"],
            arrays["quaternion_wxyz"][:-1],
        )


def test_measured_file(data_dir):
    tosses = load_tosses(data_dir / "tossed_cube" / "tossed_cube_open.npz")
    assert len(tosses) == 399 and tosses.lengths.min() == 80 and tosses.lengths.max() == 383
    assert tosses.half_width == 0.0524 and tosses.padded().mask.sum() == 41882


# --- bad content ----------------------------------------------------------------------------------


def _with(**changes):
    """A change of the arrays of a good file, as a function."""

    def change(arrays):
        for key, value in changes.items():
            arrays[key] = value(arrays[key]) if callable(value) else value

    return change


def _entry(key, row, value):
    def change(arrays):
        arrays[key][row] = value

    return change


def _drop(*keys):
    return lambda arrays: [arrays.pop(key) for key in keys]


BAD_CONTENT = {
    "missing keys": (_drop("mass", "dt"), ["keys dt, mass are missing"]),
    "NaN": (
        _entry("position", 5, np.nan),
        ["`position`", "NaN", "toss 20 (number 1 in the file), frame 1"],
    ),
    "infinite": (_entry("velocity_world", 12, np.inf), ["`velocity_world`", "toss 30", "frame 6"]),
    "not unit": (
        _entry("quaternion_wxyz", 0, [1, 0.1, 0, 0]),
        ["`quaternion_wxyz`", "toss 10", "frame 0", "1.00499"],
    ),
    "zero quaternion": (_entry("quaternion_wxyz", 3, 0.0), ["`quaternion_wxyz`", "frame 3"]),
    "three columns": (
        _with(quaternion_wxyz=lambda q: q[:, :3]),
        ["`quaternion_wxyz` has shape (13, 3)"],
    ),
    "flat position": (_with(position=lambda p: p.ravel()), ["`position` has shape (39,)"]),
    "rows": (_with(velocity_world=lambda v: v[:-1]), ["`velocity_world` has 12 rows", "13"]),
    "offsets count": (_with(offsets=np.array([0, 13])), ["`offsets` has 2 entries for 3 tosses"]),
    "offsets order": (_with(offsets=np.array([0, 6, 4, 13])), ["`offsets`", "toss 20", "increase"]),
    "offsets end": (
        _with(offsets=np.array([0, 4, 6, 12])),
        ["`offsets` runs from 0 to 12", "13 frames"],
    ),
    "offsets start": (_with(offsets=np.array([1, 4, 6, 13])), ["`offsets` runs from 1"]),
    "one frame": (_with(offsets=np.array([0, 4, 5, 13])), ["toss 20", "at least two frames"]),
    "fractional offsets": (
        _with(offsets=np.array([0, 4.5, 6, 13])),
        ["`offsets` must hold whole numbers"],
    ),
    "repeated toss": (_with(toss_id=np.array([10, 20, 10])), ["`toss_id`", "10 more than once"]),
    "no tosses": (_with(toss_id=np.zeros(0, int), offsets=np.zeros(1, int)), ["no tosses"]),
    "no frames": (
        _with(**{k: np.zeros((0, 4 if "quat" in k else 3)) for k in FRAME_KEYS}),
        ["no tosses"],
    ),
    "zero dt": (_with(dt=0.0), ["`dt`", "positive"]),
    "negative mass": (_with(mass=-0.37), ["`mass`", "positive"]),
    "NaN inertia": (_with(inertia=np.nan), ["`inertia`", "positive and finite"]),
    "zero half width": (_with(half_width=0.0), ["`half_width`", "positive"]),
    "negative gravity": (_with(gravity=-9.81), ["`gravity`", "positive"]),
    "vector mass": (_with(mass=np.ones(3)), ["`mass` has shape (3,)"]),
    "text": (_with(mass=np.array("heavy")), ["`mass` has the type"]),
    "complex": (_with(position=lambda p: p + 1j), ["`position` has the type complex128"]),
    "millimetres": (_with(position=lambda p: 1000 * p), ["`position`", "metres", "millimetres"]),
    "frame rate": (_with(dt=148.0), ["`dt`", "frame rate"]),
    "wide": (_with(half_width=52.4), ["`half_width`", "metres"]),
    "body units": (_with(gravity=187.2), ["`gravity`", "m/s^2"]),
    "degrees": (
        _with(angular_velocity_body=lambda w: 1e5 * w),
        ["`angular_velocity_body`", "rad/s"],
    ),
    "inertia a thousand times too small": (_with(inertia=8.1e-7), ["`inertia`", "far less"]),
    "mass in grams": (_with(mass=370.0), ["`mass` must be in kg", "divide grams by 1000"]),
    "inertia in g cm^2": (_with(inertia=8100.0), ["`inertia`", "kg m^2"]),
    "impossible inertia": (
        _with(inertia=np.array([1e-4, 1e-4, 3e-4])),
        ["`inertia`", "sum of the other two"],
    ),
}


@pytest.mark.parametrize("case", BAD_CONTENT)
def test_bad_content_is_explained(case, tmp_path):
    change, sentences = BAD_CONTENT[case]
    arrays = _arrays()
    change(arrays)
    path = _write(tmp_path / "bad.npz", arrays)
    with pytest.raises(TossFileError) as caught:
        load_tosses(path)
    for sentence in [str(path), *sentences]:
        assert sentence in str(caught.value)
    assert isinstance(caught.value, ValueError)


# --- bad files ------------------------------------------------------------------------------------


class _Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("key", ["position", "mass"])
def test_pickled_arrays_are_never_loaded(key, tmp_path):
    arrays = _arrays()
    arrays[key] = np.array([_Trap(tmp_path / "sprung")], dtype=object)
    with pytest.raises(TossFileError, match=f"`{key}` holds Python objects"):
        load_tosses(_write(tmp_path / "trap.npz", arrays))
    plain = tmp_path / "trap.pkl"
    plain.write_bytes(pickle.dumps(_Trap(tmp_path / "sprung")))
    with pytest.raises(TossFileError, match="not an .npz"):
        load_tosses(plain)
    assert not (tmp_path / "sprung").exists()


def test_files_of_another_kind(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "table.csv").write_text("t, x, y\n")
    expected = {
        "one.npy": "not an .npz",
        "empty.npz": "0 bytes",
        "table.csv": "not an .npz",
        "none.npz": "no such file",
    }
    for name, sentence in expected.items():
        with pytest.raises(TossFileError, match=sentence):
            load_tosses(tmp_path / name)
    with pytest.raises(TossFileError, match="folder"):
        load_tosses(tmp_path)
    for name in ("a" * 300, "nul\0byte"):
        with pytest.raises(TossFileError, match="cannot be opened"):
            load_tosses(tmp_path / name)


def _archive(path, size: int, shape: tuple[int, ...]) -> None:
    """An archive with one array of zeros, whose header says that it has `shape`."""
    header = io.BytesIO()
    written = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, written)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("positions.npy", "w", force_zip64=True) as stream,
    ):
        stream.write(header.getvalue())
        for _ in range(size):
            stream.write(bytes(1 << 20))


def test_archives_that_unpack_to_too_much(tmp_path, monkeypatch):
    """A bomb is refused by its table, and a header that promises what is not there before it is allocated."""
    monkeypatch.setattr(_files, "LARGEST_ARCHIVE", 1 << 20)
    bomb, lie = tmp_path / "bomb.npz", tmp_path / "lie.npz"
    _archive(bomb, 4, (4 << 17,))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(TossFileError, match="unpacks to 1 arrays"):
        load_tosses(bomb)
    _archive(lie, 0, (10**12,))
    with pytest.raises(TossFileError, match="says that it holds 8000000000000 bytes and holds 128"):
        load_tosses(lie)
    many = tmp_path / "many.npz"
    np.savez(many, **{f"a{i}": np.zeros(1) for i in range(1001)})
    with pytest.raises(TossFileError, match="unpacks to 1001 arrays"):
        load_tosses(many)


def _load_or_explain(path):
    """A bad file may raise one kind of error only, and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return load_tosses(path)
        except TossFileError as error:
            assert str(path) in str(error)
            return None


_property = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@_property
@given(share=st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_found(share, good_bytes, tmp_path):
    path = tmp_path / "cut.npz"
    path.write_bytes(good_bytes[: int(share * len(good_bytes))])
    assert _load_or_explain(path) is None


@_property
@given(
    content=st.binary(max_size=300),
    start=st.sampled_from([b"", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04"]),
)
def test_random_bytes_are_refused(content, start, tmp_path):
    path = tmp_path / "noise.npz"
    path.write_bytes(start + content)
    assert _load_or_explain(path) is None


@_property
@given(
    places=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8
    )
)
def test_flipped_bits_are_found_or_harmless(places, good_bytes, tmp_path):
    content = bytearray(good_bytes)
    for share, flip in places:
        content[int(share * len(content))] ^= flip
    path = tmp_path / "flipped.npz"
    path.write_bytes(bytes(content))
    tosses = _load_or_explain(path)
    # Not every byte of an archive matters (dates, attributes); whatever loads has the right
    # numbers.
    if tosses is not None:
        np.testing.assert_array_equal(tosses.position, _arrays()["position"])


# --- output folders -------------------------------------------------------------------------------


def test_output_dir_is_made_and_left_clean(tmp_path):
    folder = check_output_dir(tmp_path / "a" / "b")
    assert folder.is_dir() and list(folder.iterdir()) == []
    assert check_output_dir(str(folder)) == folder


def test_links_out_of_the_output_dir_are_refused(tmp_path):
    precious, folder = tmp_path / "precious.txt", tmp_path / "out"
    precious.write_text("keep me")
    folder.mkdir()
    (folder / "within.html").symlink_to(folder / "report.html")
    assert check_output_dir(folder) == folder
    (folder / "report.html").symlink_to(precious)
    with pytest.raises(OutputDirError, match="outside of the output folder"):
        check_output_dir(folder)
    assert precious.read_text() == "keep me"


def test_output_dir_that_cannot_be_used(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("keep me")
    cases = {occupied: "not a folder"}
    cases |= {place: "cannot be created" for place in (occupied / "below", tmp_path / ("a" * 300))}
    for path, sentence in cases.items():
        with pytest.raises(OutputDirError, match=sentence) as caught:
            check_output_dir(path)
        assert str(path) in str(caught.value)
    with pytest.raises(OutputDirError, match="cannot be written"):
        save_tosses(occupied / "a.npz", Tosses(**_arrays()))
    assert occupied.read_text() == "keep me"


@pytest.mark.skipif(
    not os.path.isdir("/proc/self"),
    reason="needs a file system that refuses new files, even to root",
)
def test_output_dir_that_refuses_files():
    with pytest.raises(OutputDirError, match="cannot be written into"):
        check_output_dir("/proc/self")
