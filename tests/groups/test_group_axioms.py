"""What makes a group a group, for all groups, at ordinary and at singular points.

The oracle is the matrix of an element: exponentials by `scipy.linalg.expm`, brackets and adjoints
by matrix products.
"""

import functools

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import Phase, given, settings
from jax.flatten_util import ravel_pytree
from marks import nightly

from diffnsd.groups import (
    GL,
    SE2,
    SE3,
    SL,
    SO,
    SO2,
    SO3,
    Euclidean,
    JointSpace,
    Pose,
    PoseGroup,
    Product,
    RotationVectors,
    SO3Matrix,
    rotation_matrix,
)

GROUPS = {
    "euclidean": Euclidean(3),
    "so2": SO2(),
    "se2": SE2(),
    "so3": SO3(),
    "so3 matrix": SO3Matrix(),
    "se3": SE3(),
    "so4": SO(4),
    "sl2": SL(2),
    "sl3": SL(3),
    "gl3": GL(3),
    "product": Product((Euclidean(2), SO3())),
    "one body": PoseGroup(1),
    "two bodies": PoseGroup(2),
    "joints": JointSpace(8, (1, 5)),
    "ball joint": JointSpace(3, (0,)),
    "rotation vectors": RotationVectors(),
    "nodes": JointSpace(9, (2, 6), RotationVectors()),
}
ROTATIONS = {  # which entries of a tangent vector are rotations
    "so2": (slice(0, 1),),
    "se2": (slice(2, 3),),
    "so3": (slice(0, 3),),
    "so3 matrix": (slice(0, 3),),
    "se3": (slice(3, 6),),
    "so4": (slice(0, 6),),
    "product": (slice(2, 5),),
    "one body": (slice(3, 6),),
    "two bodies": (slice(3, 6), slice(9, 12)),
    "joints": (slice(1, 4), slice(5, 8)),
    "ball joint": (slice(0, 3),),
    "rotation vectors": (slice(0, 3),),
    "nodes": (slice(2, 5), slice(6, 9)),
}
QUATERNIONS = (
    "euclidean",
    "so3",
    "product",
    "one body",
    "two bodies",
    "joints",
    "ball joint",
    "rotation vectors",
    "nodes",
)
VECTORS = ("rotation vectors", "nodes")  # their numbers jump at pi
UNCLOSED = ("so4", "sl2", "sl3", "gl3")  # no closed forms: exponentials of norm 10 and more


def block_diagonal(blocks):
    return jax.scipy.linalg.block_diag(*blocks)


def affine(turn, position):
    n = len(position)
    return jnp.eye(n + 1).at[:n, :n].set(turn).at[:n, n].set(position)


def matrix(group, g):
    """The matrix of an element: affine for translations, rotation matrices, block by block."""
    match group:
        case Euclidean():
            return jnp.eye(group.n + 1).at[:-1, -1].set(g)
        case SO2():
            return jnp.array([[g[0], -g[1]], [g[1], g[0]]])
        case SO3():
            return rotation_matrix(g)
        case RotationVectors():
            return matrix(SO3(), SO3().exp(g))
        case SE2():
            return affine(matrix(SO2(), g[1]), g[0])
        case SE3():
            return affine(matrix(SO3(), g[1]), g[0])
        case Product():
            return block_diagonal([matrix(f, x) for f, x in zip(group.factors, g, strict=True)])
        case PoseGroup():
            bodies = zip(g.position, g.orientation, strict=True)
            return block_diagonal(
                [x for p, q in bodies for x in (matrix(Euclidean(3), p), matrix(SO3(), q))]
            )
        case JointSpace():
            width = len(group.rotation.identity())
            starts = [s + (width - 3) * i for i, s in enumerate(group.rotations)]
            turning = [s + i for s in starts for i in range(width)]
            numbers = [i for i in range(group.size) if i not in turning]
            rest = matrix(Euclidean(len(numbers)), g[np.array(numbers, int)])
            turns = [matrix(group.rotation, g[s : s + width]) for s in starts]
            return block_diagonal([rest, *turns])
        case _:
            return g


@functools.cache
def evaluator(name):
    """Everything the tests look at, as one compiled function of tangent vectors."""
    group = GROUPS[name]

    def element(x):
        return matrix(group, group.exp(x))

    def trivialised(function, x, w):
        """Right-trivialised tangent of a map to the group, from its matrix."""
        value, rate = jax.jvp(lambda y: matrix(group, function(y)), (x,), (w,))
        return group.vee(rate @ jnp.linalg.inv(value))

    @eqx.filter_jit
    def evaluate(x, y, w):
        gx, gy = group.exp(x), group.exp(y)
        product = group.compose(gx, gy)
        _, moved = jax.jvp(lambda s: group.compose(gx, group.exp(s * w)), (0.0,), (1.0,))
        out = dict(
            exp=element(x),
            hat_x=group.hat(x),
            hat_y=group.hat(y),
            vee=group.vee(group.hat(x)),
            product=matrix(group, product),
            factors=element(x) @ element(y),
            inverse=matrix(group, group.inverse(gx)),
            neutral=matrix(group, group.compose(gx, group.identity())),
            cancelled=matrix(group, group.compose(gx, group.inverse(gx))),
            associated=matrix(group, group.compose(gx, group.compose(gy, group.exp(w)))),
            reassociated=matrix(group, group.compose(product, group.exp(w))),
            log=group.log(gx),
            ad=group.ad(x) @ y,
            Ad=group.Ad(gx) @ y,
            dexp=group.dexp(x, w),
            dexp_ad=trivialised(group.exp, x, w),
            dexp_inverted=group.dexp(x, group.dexpinv(x, w)),
            dexpinv_inverted=group.dexpinv(x, group.dexp(x, w)),
            dexp_left=group.Ad(gx) @ group.dexp(-x, w),
            dexpinv_left=group.dexpinv(x, group.Ad(gx) @ w) - group.dexpinv(-x, w),
            tangent=group.tangent_of(gx, moved),
            rate=ravel_pytree(group.rate(gx, w))[0] - ravel_pytree(moved)[0],
            bracket=group.bracket(x, y),
            coAd=group.coAd(gx, w) - group.Ad(gx).T @ w,
            defect=group.defect(gx),
            ad_spectrum=group.ad(x),
            angle=group.angle_squared(x),
            w=w,
        )
        if group.cayley_problem is None:
            out |= retraction(group.cay, group.cay_inv, group.dcay, group.dcayinv, x, w, "cay")
        if group.quaternion_problem is None:  # its chart ends at 2: shortened to stay inside
            z = x / jnp.sqrt(1 + group.angle_squared(x) / 3)
            out |= retraction(group.quat, group.quat_inv, group.dquat, group.dquatinv, z, w, "quat")
            out["inside"] = z
        return out

    def retraction(tau, inverse, tangent, tangent_inverse, x, w, name):
        return {
            name: matrix(group, tau(x)),
            f"{name}_inv": inverse(tau(x)),
            f"d{name}": tangent(x, w),
            f"d{name}_ad": trivialised(tau, x, w),
            f"d{name}_inverted": tangent(x, tangent_inverse(x, w)),
            f"d{name}inv_inverted": tangent_inverse(x, tangent(x, w)),
            f"d{name}_left": group.Ad(tau(x)) @ tangent(-x, w),
        }

    def checked(x, y, w):
        out = jax.tree.map(np.asarray, evaluate(jnp.asarray(x), jnp.asarray(y), jnp.asarray(w)))
        assert all(np.all(np.isfinite(v)) for v in out.values())
        return out

    return checked


def largest_rotation(matrix):
    """Largest imaginary part in the spectrum."""
    return np.max(np.abs(np.linalg.eigvals(matrix).imag), initial=0.0)


def near(a, b, atol=1e-13):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=atol)


def check_retraction(out, name, x, w):
    near(out[f"d{name}"], out[f"d{name}_ad"], 1e-12)
    near(out[f"d{name}"], out[f"d{name}_left"], 1e-12)
    near(out[f"d{name}_inverted"], w, 1e-12)
    near(out[f"d{name}inv_inverted"], w, 1e-12)
    near(out[f"{name}_inv"], x, 1e-11)


def check_axioms(name, x, y, w):
    """Everything that holds for rotations shorter than 2 pi; the logarithm for those up to pi."""
    out = evaluator(name)(x, y, w)
    scale = max(1.0, np.max(np.abs(out["exp"]))) if name in UNCLOSED else 1.0
    near(out["vee"], x)
    near(out["exp"], scipy.linalg.expm(out["hat_x"]), 1e-13 * scale)
    identity = np.eye(len(out["hat_x"]))
    near(out["product"], out["factors"])
    near(out["inverse"], np.linalg.inv(out["exp"]), 1e-13 * scale**2)
    near(out["neutral"], out["exp"])
    near(out["cancelled"], identity, 1e-13 * scale**2)
    near(out["associated"], out["reassociated"], 1e-12 * scale)
    bracket = out["hat_x"] @ out["hat_y"] - out["hat_y"] @ out["hat_x"]
    near(evaluator(name)(out["ad"], y, w)["hat_x"], bracket, 1e-12)
    near(out["bracket"], out["ad"], 1e-12)
    conjugate = out["exp"] @ out["hat_y"] @ np.linalg.inv(out["exp"])
    near(evaluator(name)(out["Ad"], y, w)["hat_x"], conjugate, 1e-12 * scale**2)
    near(out["coAd"], np.zeros_like(w), 1e-12 * scale**2)
    if name not in VECTORS or abs(largest_rotation(out["hat_x"]) - np.pi) > 1e-13:
        near(out["tangent"], w, 1e-12 * scale)
        near(out["rate"], 0 * out["rate"], 1e-12 * scale)
    assert out["defect"] < 1e-14 * scale**3

    rotation = largest_rotation(out["ad_spectrum"])  # of ad: dexpinv is singular at 2 pi
    if name == "so2":
        rotation = abs(x[0])
    assert out["angle"] >= rotation**2 - 1e-10
    near(out["dexp"], out["dexp_ad"], 1e-12 * scale**2)
    near(out["dexp"], out["dexp_left"], 1e-12 * scale**2)
    if rotation < 6.0:
        near(out["dexp_inverted"], w, 1e-11 * scale)
        near(out["dexpinv_inverted"], w, 1e-11 * scale)
        near(out["dexpinv_left"], np.zeros_like(w), 1e-11 * scale**2)
    if largest_rotation(out["hat_x"]) < np.pi - (1e-2 if name in UNCLOSED else 5e-13):
        near(out["log"], x, 1e-12 if name not in UNCLOSED else 2e-11 * scale**2)

    if "cay" in out and name not in ("sl2", "gl3"):  # there (1 - x/2) may be singular
        half = out["hat_x"] / 2
        near(out["cay"], np.linalg.solve(identity - half, identity + half))
        check_retraction(out, "cay", x, w)
    if "quat" in out:
        check_retraction(out, "quat", out["inside"], w)


def vectors(n, size):
    return st.lists(st.floats(-size, size), min_size=n, max_size=n).map(np.array)


# Each repeats in kind what a shorter row proves.
LONG = "one body", "joints", "rotation vectors"


@pytest.mark.slow
@pytest.mark.parametrize("name", [nightly(n) if n in LONG else n for n in GROUPS])
@settings(max_examples=50, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data())
def test_axioms(name, data):
    n = GROUPS[name].dim
    # Rotations up to 2 sqrt(3) rad: on both sides of pi, and of the Taylor switch at 2 rad.
    size = 0.9 if name in UNCLOSED else 2.0
    check_axioms(name, *(data.draw(vectors(n, size)) for _ in range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROTATIONS)
@pytest.mark.parametrize(
    "angle",
    [0.0, 1e-300, 1e-160, 1e-20, 1e-8, 1e-4, 2.0, np.pi - 1e-6, np.pi - 1e-12, np.pi, 5.9],
)
def test_axioms_at_singular_rotations(name, angle):
    random = np.random.default_rng(3)
    n = GROUPS[name].dim
    x, y, w = random.normal(size=(3, n))
    for part in ROTATIONS[name]:
        x[part] *= angle / np.linalg.norm(x[part])
    check_axioms(name, x, y, w)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in GROUPS if name not in UNCLOSED])
def test_casimirs_are_all_that_an_orbit_keeps(name):
    """Constant under the coadjoint action, and as many as the rank of the bracket leaves over."""
    group = GROUPS[name]
    x, mu = np.random.default_rng(7).normal(size=(2, group.dim))

    @eqx.filter_jit
    def evaluate(x, mu):
        gradient = jax.jacfwd(group.casimirs)(mu)
        bracket = jax.vmap(lambda e: group.ad(e).T @ mu)(jnp.eye(group.dim))
        return group.casimirs(mu), group.casimirs(group.coAd(group.exp(x), mu)), gradient, bracket

    before, after, gradient, bracket = evaluate(jnp.asarray(x), jnp.asarray(mu))
    near(after, before)
    rank = np.linalg.matrix_rank(gradient)
    assert rank == before.size == group.dim - np.linalg.matrix_rank(bracket)


def test_casimirs_that_are_not_written_down():
    with pytest.raises(ValueError, match="not for SL"):
        SL(2).casimirs(jnp.ones(3))


@pytest.mark.slow
def test_pose_rotates_bodies_apart():
    """Two bodies are two copies of one, and translations stay in the world frame."""
    random = np.random.default_rng(5)
    x, y = random.normal(size=(2, 12))
    two, one = PoseGroup(2), PoseGroup(1)
    both = two.compose(two.exp(jnp.asarray(x)), two.exp(jnp.asarray(y)))
    for i in range(2):
        part = slice(6 * i, 6 * i + 6)
        alone = one.compose(one.exp(jnp.asarray(x[part])), one.exp(jnp.asarray(y[part])))
        near(both.position[i], alone.position[0])
        near(both.orientation[i], alone.orientation[0])
        near(both.position[i], x[part][:3] + y[part][:3])


@pytest.mark.slow
def test_dtype_is_kept():
    x = jnp.full(6, 0.3, jnp.float32)
    group = PoseGroup(1)
    g = group.compose(group.exp(x), group.cay(x))
    assert isinstance(g, Pose)
    outputs = [g, group.log(g), group.dexp(x, x), group.dexpinv(x, x), group.Ad(g), group.ad(x)]
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("float32")}
