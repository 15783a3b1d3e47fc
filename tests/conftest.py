"""Settings of every test, as hostile as the code can bear; and the data beside the checkout."""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
# A worker for every core: the threads of one program would only get in the way of the other. And batches of
# LAPACK, which tests use freely, may wait for ever for each other in the threads of jaxlib 0.10.
# And the older code generator, without optimisation: half the time to compile, and a third less of the whole
# time again, since most programs here run for less than they compile. It rounds differently from the one that
# users have, and derivatives must hold with both. A flag that a later jaxlib does not know would end the
# process.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false" * metadata.version("jaxlib").startswith("0.10."),
)

import jax
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Set here and not in the package: `import diffnsd` changes no global configuration.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
if cache := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    jax.config.update("jax_compilation_cache_dir", cache)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shapes",
        action="store_true",
        help="check every annotated array shape and dtype of diffnsd at run time (slower)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Before any test module imports diffnsd; with xdist this runs in each worker.
    if config.getoption("--shapes"):
        import jaxtyping

        jaxtyping.install_import_hook("diffnsd", "beartype.beartype")


def pytest_collection_finish() -> None:
    # Tracing makes millions of small objects that live on in programs. With the usual thresholds the
    # collector looks through all of them again and again, for a fifth of the time of tracing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 20)


@pytest.hookimpl(tryfirst=True)  # before the slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
    # Files with the most slow tests first: a long file that begins last would leave one worker without work.
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and jax.default_backend() != "gpu":
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and JAX finds none"))


@pytest.fixture(autouse=True, scope="module")
def release_programs() -> Iterator[None]:
    """Drops compiled programs before a process holds too many: of memory, and of memory maps.

    Every program maps a few pages, and Linux allows 65530 maps to a process: beyond them the
    compiler crashes.
    """
    yield
    maps, status = Path("/proc/self/maps"), Path("/proc/self/status")
    if not maps.exists():
        return
    (resident,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    if int(resident.split()[1]) > 3_000_000 or maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the measured and reference data, which are not part of the project.

    `DIFFNSD_DATA` names it; without that it is looked for at `../shared/data`, beside the checkout.
    """
    if named := os.environ.get("DIFFNSD_DATA"):
        folder = Path(named)
        if not folder.is_dir():
            pytest.fail(f"DIFFNSD_DATA names {named}, which is no folder")
        return folder
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data folder: set DIFFNSD_DATA, or put the data at {folder}")
    return folder
