"""Which geoms may touch, against what MuJoCo finds where all of them overlap."""

import mujoco
import numpy as np
import pytest

from diffnsd.relations import Geom, touching_pairs
from diffnsd.shapes import Sphere


def overlapping(parents, geoms, groups, touches, excluded):
    """Balls that all overlap, on hinges; the world has an immovable one."""
    children = {
        i: [j for j, p in enumerate(parents) if p == i] for i in [None, *range(len(parents))]
    }

    def balls(body):
        for k, on in enumerate(geoms):
            if on == body:
                bits = f'contype="{groups[k]}" conaffinity="{touches[k]}"'
                yield f'<geom name="{k}" size=".5" pos="{k / 50} 0 0" {bits}/>'

    def text(body):
        inside = "".join([*balls(body), *map(text, children[body])])
        return f'<body name="b{body}"><joint type="slide"/>{inside}</body>'

    names = {None: "world"} | {i: f"b{i}" for i in range(len(parents))}
    apart = "".join(f'<exclude body1="{names[a]}" body2="{names[b]}"/>' for a, b in excluded)
    world = "".join([*balls(None), *map(text, children[None])])
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody>{world}</worldbody><contact>{apart}</contact></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    # MuJoCo numbers geoms by body: back to the order here, by name.
    order = [int(model.geom(g).name) for g in range(model.ngeom)]
    return {frozenset(order[g] for g in contact.geom) for contact in data.contact}


@pytest.mark.parametrize("seed", range(20))
def test_the_pairs_are_those_that_mujoco_finds(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 6))
    parents = [None, *(int(rng.integers(-1, i)) for i in range(1, count))]
    parents = [None if p is None or p < 0 else p for p in parents]
    # A ball on each body, so that it has a mass; others anywhere.
    on = [*range(count), *(int(b) for b in rng.integers(-1, count, 4))]
    on = [None if b < 0 else b for b in on]
    groups, touches = (rng.integers(1, 8, len(on)).tolist() for _ in range(2))
    excluded = [(0, int(rng.integers(1, count)))]
    found = overlapping(parents, on, groups, touches, excluded)
    geoms = [Geom(Sphere(0.5), body, name=str(k)) for k, body in enumerate(on)]
    try:
        pairs = touching_pairs(
            geoms, parents=parents, excluded=excluded, groups=groups, touches=touches
        )
    except ValueError as error:
        assert "no pair of geoms is left" in str(error) and not found
        return
    named = {frozenset(int(g.name) for g in pair) for pair in pairs}
    assert named == found and len(named) == len(pairs)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parents": []}, "parents must be one for each body, got 0; a geom is on body 0"),
        ({"parents": [0]}, "parent of body 0 must be a body before it, or None for the world"),
        ({"parents": [-1]}, "or None for the world, got -1"),
        ({"excluded": [(0, 7)]}, "excluded names body 7"),
        ({"groups": [1]}, "groups must be an integer, 0 or more, for each of the 2 geoms"),
        ({"touches": [1, -1]}, "touches must be an integer, 0 or more"),
        ({"groups": [0, 0]}, "no pair of geoms is left"),
        ({"excluded": [(None, 0)]}, "no pair of geoms is left"),
    ],
)
def test_filters_that_do_not_fit_are_explained(changes, sentence):
    geoms = [Geom(Sphere(0.1)), Geom(Sphere(0.1), 0)]
    assert len(touching_pairs(geoms)) == 1
    with pytest.raises(ValueError, match=sentence):
        touching_pairs(geoms, **changes)
