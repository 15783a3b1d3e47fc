"""The commands. They import heavy packages only when run, so that `--help` is fast."""

import os
import platform
import shlex
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Out = Annotated[Path, typer.Option(help="Folder for what is written; made if it is not there.")]


def _nonnegative(value: int | None) -> int | None:
    if value is not None and value < 0:
        raise typer.BadParameter(f"must be 0 or more, got {value}.")
    return value


Seed = Annotated[int, typer.Option(callback=_nonnegative, help="Seed of the random numbers.")]

Ignore = Annotated[
    str,
    typer.Option(help="Of a file: elements without counterpart to leave out, comma separated."),
]

Seconds = Annotated[float, typer.Option(help="Of a file: how long.")]
Step = Annotated[float | None, typer.Option(help="Of a file: the step; by default its own.")]
Controls = Annotated[
    Path | None,
    typer.Option(help="Of a file: a .npz with controls (k, nu), and times (k,) if not each step."),
]

MaxActive = Annotated[
    int,
    typer.Option(
        callback=_nonnegative, help="Of a file: most contacts solved at a time; 0 is all."
    ),
]
Near = Annotated[
    int,
    typer.Option(
        callback=_nonnegative,
        help="Of a file: find contacts only of so many pairs of each two kinds of geoms, the nearest; 0 is "
        "all. Faster with many geoms.",
    ),
]
MaxVertices = Annotated[
    int, typer.Option(min=4, help="Of a file: the most corners of the hull of a mesh.")
]
Restitution = Annotated[
    float | None,
    typer.Option(help="Of a file: of all contacts and limits; by default that of the file, or 0."),
]
Keyframe = Annotated[
    str | None,
    typer.Option(help="Of a file: name or number of the keyframe to start from; by default 0."),
]


def _names(text: str) -> list[str]:
    """The names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _sampler(laplace: bool, nuts: bool):
    """What draws from the posterior, None if nothing does."""
    from ..._optional import require
    from ...identification import NUTS, Laplace

    if nuts:
        require("blackjax", "sampling", "posterior")  # before the fit
        return NUTS()
    return Laplace(draws=400) if laplace else None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffnsd {version('diffnsd')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Differentiable nonsmooth dynamics: identify and simulate from the command line."""
    del show_version


@app.command()
def demo(out: Out = Path("diffnsd-demo"), seed: Seed = 0) -> None:
    """Identifies friction and restitution from noisy tosses that it makes itself."""
    with _Session() as session:
        from ..toss._demo import TRUTH, make_tosses

        folder = session.folder(out)
        with session.stage("simulating 24 tosses with sensor noise"):
            tosses = make_tosses(seed=seed)
        from ..toss._data import save_tosses

        save_tosses(folder / "tosses.npz", tosses)
        session.identify(tosses, folder, "mu,e", len(tosses), None, seed, True, "Demo", TRUTH)
        for name, truth in TRUTH.items():
            session.print(f"{name}: true value {truth:g}")


@app.command()
def identify(
    data: Annotated[
        Path,
        typer.Argument(
            help="Measured tosses of a cube (.npz), or an MJCF or URDF file and its runs."
        ),
    ],
    runs: Annotated[
        Path | None, typer.Argument(help="Of a file: measured runs (.npz) in its coordinates.")
    ] = None,
    out: Out = Path("diffnsd-out"),
    free: Annotated[
        str | None,
        typer.Option(help="What to fit, comma separated; of a cube mu, of a file by its names."),
    ] = None,
    tosses: Annotated[
        int | None,
        typer.Option(
            callback=_nonnegative,
            help="Tosses drawn for the fit; 0 is all; by default 30, or all if there are fewer.",
        ),
    ] = None,
    predict: Annotated[
        Path | None, typer.Option(help="Another file whose tosses or runs are to be predicted.")
    ] = None,
    seed: Seed = 0,
    smooth_start: Annotated[
        bool,
        typer.Option(
            "--smooth-start/--raw-start",
            help="Predict from start velocities fitted to the frames before contact, or from the "
            "measured ones. The fit always takes the fitted ones.",
        ),
    ] = True,
    starts: Annotated[
        int,
        typer.Option(
            min=1, help="Descend from so many starts, and go on from the best: for several valleys."
        ),
    ] = 1,
    posterior: Annotated[
        bool,
        typer.Option("--posterior", help="Then draw from the posterior, by Laplace's method."),
    ] = False,
    nuts: Annotated[
        bool, typer.Option("--nuts", help="Then draw from the posterior, by NUTS: far slower.")
    ] = False,
    ignore: Ignore = "",
    substeps: Annotated[int, typer.Option(help="Of a file: steps between two frames.")] = 4,
    max_active: MaxActive = 16,
    restitution: Restitution = None,
    near: Near = 0,
    max_vertices: MaxVertices = 64,
) -> None:
    """Identifies parameters of a tossed cube, or of an MJCF or URDF file, from measured motion."""
    with _Session() as session:
        from ..mechanism._run import check_cube, identify_file, runs_of_file
        from ..mechanism._simulate import Loading, is_file

        sampler = _sampler(posterior, nuts)
        if is_file(str(data)):
            runs = runs_of_file(data, runs, tosses)
            folder, names = session.folder(out), _names(free or "")
            loading = Loading(_names(ignore), max_active, restitution, near, max_vertices)
            identify_file(
                session,
                data,
                runs,
                names,
                folder,
                predict,
                loading,
                substeps,
                starts,
                smooth_start,
                sampler,
                seed,
            )
            return
        from ..toss._data import load_tosses

        check_cube(data, runs)
        measured = load_tosses(data)
        other = None if predict is None else load_tosses(predict)
        folder = session.folder(out)
        session.identify(
            measured,
            folder,
            free or "mu",
            tosses,
            other,
            seed,
            smooth_start,
            data.stem,
            starts=starts,
            sampler=sampler,
        )


@app.command()
def simulate(
    name: Annotated[
        str,
        typer.Argument(help="A ready model (a wrong name lists them), or an MJCF or URDF file."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for motion.npz, of a ready model motion.svg too.")
    ] = None,
    seconds: Seconds = 1.0,
    dt: Step = None,
    controls: Controls = None,
    ignore: Ignore = "",
    max_active: MaxActive = 16,
    restitution: Restitution = None,
    near: Near = 0,
    max_vertices: MaxVertices = 64,
    keyframe: Keyframe = None,
) -> None:
    """Simulates a ready model or a file, and prints its energy and contacts."""
    with _Session() as session:
        from ..mechanism._simulate import Loading, is_file, simulate_file
        from ._ready import simulate_ready

        folder = None if out is None else session.folder(out)
        solved = True
        with session.stage(f"compiling and simulating {name}"):
            if is_file(name):
                lines, solved = simulate_file(
                    name,
                    folder,
                    Loading(_names(ignore), max_active, restitution, near, max_vertices),
                    seconds=seconds,
                    dt=dt,
                    controls=controls,
                    keyframe=keyframe,
                )
            else:
                lines = simulate_ready(name, folder)
        for line in lines:
            session.print(line)
        if not solved:
            raise typer.Exit(1)


@app.command()
def view(
    file: Annotated[Path, typer.Argument(help="An MJCF or URDF file.")],
    seconds: Seconds = 1.0,
    dt: Step = None,
    controls: Controls = None,
    ignore: Ignore = "",
    max_active: MaxActive = 16,
    restitution: Restitution = None,
    near: Near = 0,
    max_vertices: MaxVertices = 64,
    keyframe: Keyframe = None,
    host: Annotated[str, typer.Option(help="The address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; another one if it is taken.")] = 8080,
    public: Annotated[
        bool, typer.Option("--public", help="Allow a host that other machines can reach.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write a page (.html) that needs no server, and end.")
    ] = None,
) -> None:
    """Shows a file and its motion in the browser, with contacts and forces at any time."""
    with _Session() as session:
        from ..mechanism._simulate import Loading, failure, simulated
        from ..mechanism._view import Scene, check_host, check_is_file, view_file

        check_is_file(file)
        check_host(host, public)
        with session.stage(f"compiling and simulating {file}"):
            loading = Loading(_names(ignore), max_active, restitution, near, max_vertices)
            shown = simulated(str(file), seconds, dt, controls, keyframe, loading)
            scene = Scene(shown)
        for line in failure(shown):
            session.print(line)
        if out is None:
            view_file(session, scene, host, port)
        else:
            scene.write(session.folder(out.parent) / out.name, file.stem)
            session.print(f"wrote {out}")


@app.command()
def gallery(
    names: Annotated[
        list[str] | None, typer.Argument(help="Ready models; by default all of them.")
    ] = None,
    out: Out = Path("diffnsd-gallery"),
    notebooks: Annotated[
        Path | None, typer.Option(help="A folder with executed notebooks, to show their pictures.")
    ] = None,
) -> None:
    """Writes pictures of all ready models; each leads to its motion, in pages that need no network."""
    with _Session() as session:
        from ..gallery import write_gallery

        if notebooks is not None and not notebooks.is_dir():
            raise ValueError(f"--notebooks must be a folder, got {notebooks}.")
        folder, chosen = session.folder(out), names or []
        written = write_gallery(
            folder, chosen, notebooks, lambda name: session.print(f"simulating {name}")
        )
        session.print(f"wrote {written}")


class _Session:
    """Sets up the console, progress bars, precision and error handling of one command."""

    def __enter__(self):
        self.started = time.perf_counter()
        # XLA's older code generator compiles in half the time; later versions of jaxlib may drop the flag.
        if version("jaxlib").startswith("0.10."):
            os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
        import jax
        from rich.console import Console

        # The command line is an application, so it may set the precision; the package never does.
        jax.config.update("jax_enable_x64", True)
        self.console = Console(stderr=True)
        # Treat SIGTERM as an interrupt, so that results so far are written.
        self.before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, kind, error, trace):
        signal.signal(signal.SIGTERM, self.before)
        if error is None or isinstance(error, SystemExit | typer.Exit):
            return False
        if isinstance(error, KeyboardInterrupt):
            self.console.print("[yellow]interrupted[/]")
            sys.exit(130)
        if isinstance(error, ValueError | OSError | ImportError):
            self.console.print(f"[red]error:[/] {error}", highlight=False)
            sys.exit(2)
        return False

    def print(self, text: str) -> None:
        """Prints a line for the user."""
        self.console.print(text, highlight=False)

    def origin(self) -> dict[str, str | float | dict[str, str]]:
        """What a result needs to be made again: the command, versions, and the wall time so far."""
        versions = {name: version(name) for name in ("diffnsd", "jax", "jaxlib", "numpy")}
        return {
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "versions": versions | {"python": platform.python_version()},
            "platform": f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores",
            "wall_seconds": round(time.perf_counter() - self.started, 1),
        }

    def folder(self, path: Path) -> Path:
        """Checks and returns the output folder."""
        from .._files import check_output_dir

        return check_output_dir(path)

    def stage(self, text: str):
        """A spinner with elapsed time, for a task of unknown duration."""
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=False,
        )
        progress.add_task(text, total=None)
        return progress

    def identify(self, tosses, folder, free, *given, **more):
        """Fits, predicts and writes all outputs, see `run_identification`; returns the record."""
        from ..toss._run import run_identification

        return run_identification(self, tosses, folder, _names(free), *given, **more)
