"""Draws the README's picture: a toss, where it ends for other frictions, and the derivative.

Usage: python .github/make_picture.py [OUT.png]
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import PolyCollection

import diffnsd as nsd
from diffnsd import models

jax.config.update("jax_enable_x64", True)

HALF = 0.0524
BLUE, ORANGE, INK, GREY = "#2563eb", "#ea580c", "#0f172a", "#94a3b8"
FACES = [[0, 1, 3, 2], [4, 5, 7, 6], [0, 1, 5, 4], [2, 3, 7, 6], [0, 2, 6, 4], [1, 3, 7, 5]]
CORNERS = HALF * np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
PITCH = np.deg2rad(14)  # the camera looks along y and a little down; x is not foreshortened


def toss(mu):
    """The motion for a friction."""
    start = models.cube_state((0.0, 0.0, 0.25), (1, 0.0, 0.0, 0.0), (1.2, 0.3, 0.5), (3, 9.0, 2.0))
    cube, method = models.tossed_cube(mu), nsd.MoreauJean(theta=1.0)
    return nsd.simulate(cube, method, 0.0, 1.25, 1 / 592, start)


def resting_place(mu):
    """Where the cube ends, along x, and the whole motion beside it."""
    run = toss(mu)
    return run.states.q.position[-1, 0, 0], (run.states.q, run.impulses[0])


def project(points):
    """World to picture: x to the right, z and a little y upwards; and the distance."""
    x, y, z = np.moveaxis(points, -1, 0)
    up = z * np.cos(PITCH) + y * np.sin(PITCH)
    return np.stack([x, up], axis=-1), y * np.cos(PITCH) - z * np.sin(PITCH)


def draw_cube(ax, position, rotation, color, alpha, order):
    """The visible faces of a cube, shaded by how much they face the light."""
    corners = position + CORNERS @ rotation.T
    flat, depth = project(corners)
    light = np.array([-0.35, -0.6, 0.72])
    shadow = corners * [1, 1, 0] + [0.25, 0.1, 0] * corners[:, 2:]
    ax.add_collection(
        PolyCollection([project(shadow[face])[0] for face in FACES], color="#dde5ee", zorder=1)
    )
    polygons, shades = [], []
    for face in sorted(FACES, key=lambda f: -depth[f].mean()):
        normal = (corners[face].mean(axis=0) - position) / HALF
        if normal @ [0, -np.cos(PITCH), np.sin(PITCH)] <= 0:
            continue
        brightness = 0.62 + 0.38 * max(normal @ light, -0.6)
        base = np.array(matplotlib.colors.to_rgb(color))
        polygons.append(flat[face])
        shades.append(np.clip(base * brightness + (1 - brightness) * 0.05, 0, 1))
    ax.add_collection(
        PolyCollection(
            polygons, facecolor=shades, edgecolor="white", lw=0.9, alpha=alpha, zorder=order
        )
    )


def main(out: Path) -> None:
    """Simulates and draws."""
    mus = jnp.linspace(0.06, 0.6, 55)
    gradient = jax.value_and_grad(resting_place, has_aux=True)
    (ends, (poses, impulses)), slopes = nsd.rollout(gradient, mus)
    rotations = np.asarray(
        jax.vmap(jax.vmap(nsd.groups.rotation_matrix))(poses.orientation[:, :, 0])
    )
    places, impulses = np.asarray(poses.position[:, :, 0]), np.asarray(impulses)

    width, height, left, above = 9.0, 5.0, 0.55, 2.7  # inches; x is to scale in both halves
    fig = plt.figure(figsize=(width, height))
    low = fig.add_axes((left / width, 0.48 / height, 1 - (left + 0.1) / width, 1.6 / height))
    top = fig.add_axes((left / width, 2.0 / height, 1 - (left + 0.1) / width, above / height))
    limits, metres_per_inch = (-0.12, 1.18), 1.3 / (width - left - 0.1)

    # The toss at one friction, and the ends of others.
    one = int(np.argmin(np.abs(np.asarray(mus) - 0.18)))
    for i in (4, one, 36):
        color = ORANGE if i == one else GREY
        draw_cube(top, places[i, -1], rotations[i, -1], color, 1.0, 5)
        label = rf"$\mu$ = {float(mus[i]):.2f}"
        spot = project(places[i, -1] - [0, 0, HALF])[0] - [0, 0.03]
        top.text(*spot, label, ha="center", va="top", color=INK, fontsize=9, zorder=8)
    chosen, last = [], -np.inf
    for frame in range(places.shape[1]):
        if places[one, frame, 0] - last >= 0.118 and ends[one] - places[one, frame, 0] > 0.05:
            chosen.append(frame)
            last = places[one, frame, 0]
    for n, frame in enumerate(chosen):
        alpha = 0.35 + 0.5 * n / len(chosen)
        draw_cube(top, places[one, frame], rotations[one, frame], BLUE, alpha, 3)
    path = project(places[one])[0]
    top.plot(*path.T, color=INK, lw=0.8, alpha=0.6, zorder=6)
    normal = impulses[one, :, :, 0]
    for frame, corner in zip(*np.nonzero(normal > 0.04), strict=True):
        foot = places[one, frame] + rotations[one, frame] @ CORNERS[corner]
        tip = foot + [0, 0, 0.3 * normal[frame, corner]]
        (a, b), _ = project(np.stack([foot, tip]))
        arrow = {"arrowstyle": "-|>", "color": ORANGE, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
        top.annotate("", b, a, arrowprops=arrow, zorder=7)
    back, front = (project(np.array([0.0, y, 0.0]))[0][1] for y in (0.33, -0.3))
    top.axhspan(front, back, color="#eef2f7", zorder=0, lw=0)
    bottom = front - 0.012
    top.set(xlim=limits, ylim=(bottom, bottom + above * metres_per_inch), xticks=[], yticks=[])
    top.set_title(
        "a cube tossed on a table, the impulses at its corners, and where other frictions take it",
        fontsize=10,
        color=INK,
        loc="left",
        pad=4,
    )

    # Where it ends, for all frictions, with the derivative of single tosses as tangents.
    low.plot(ends, mus, color=BLUE, lw=2, zorder=3, label="55 tosses, one call of rollout")
    for i in range(4, 55, 6):
        d = 0.035 if i > 8 else 0.02
        x = ends[i] + slopes[i] * np.array([-d, d])
        low.plot(x, mus[i] + np.array([-d, d]), color=ORANGE, lw=2.2, zorder=4)
        low.plot(ends[i], mus[i], "o", color=ORANGE, ms=4.5, zorder=5)
    low.plot([], [], "o-", color=ORANGE, lw=2.2, ms=4.5, label="jax.grad of one toss")
    low.set(
        xlim=limits,
        ylim=(0.0, 0.7),
        xlabel="where the cube comes to rest, x [m]",
        ylabel=r"friction $\mu$",
    )
    low.legend(loc="upper right", frameon=False, fontsize=9)
    low.grid(color="#e2e8f0", lw=0.7)
    for ax in (top, low):
        for side in ("top", "right", *(("left", "bottom") if ax is top else ())):
            ax.spines[side].set_visible(False)
    fig.savefig(out, dpi=130, facecolor="white", pil_kwargs={"optimize": True})
    worst = np.max(np.abs(slopes[2:-2] / np.gradient(ends, mus)[2:-2] - 1))
    print(f"{out}: {out.stat().st_size / 1e3:.0f} kB; derivative against the curve: {worst:.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("toss.png"))
