"""What makes a group a group, for all groups, at ordinary and at singular points.

The oracle is the matrix of an element: exponentials by `scipy.linalg.expm`, brackets and adjoints
by matrix products.
"""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from quick import quick_jit

from diffnsd.groups import SO3, Euclidean, Pose, PoseGroup, Product, rotation_matrix

GROUPS = {
    "euclidean": Euclidean(3),
    "so3": SO3(),
    "product": Product((Euclidean(2), SO3())),
    "one body": PoseGroup(1),
    "two bodies": PoseGroup(2),
}
ROTATIONS = {  # where the rotation parts begin in a tangent vector
    "euclidean": (),
    "so3": (0,),
    "product": (2,),
    "one body": (3,),
    "two bodies": (3, 9),
}


def block_diagonal(blocks):
    return jax.scipy.linalg.block_diag(*blocks)


def matrix(group, g):
    """The matrix of an element: affine for translations, rotation matrices, block by block."""
    match group:
        case Euclidean():
            return jnp.eye(group.n + 1).at[:-1, -1].set(g)
        case SO3():
            return rotation_matrix(g)
        case Product():
            return block_diagonal([matrix(f, x) for f, x in zip(group.factors, g, strict=True)])
        case PoseGroup():
            bodies = zip(g.position, g.orientation, strict=True)
            return block_diagonal(
                [x for p, q in bodies for x in (matrix(Euclidean(3), p), matrix(SO3(), q))]
            )


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

    @quick_jit
    def evaluate(x, y, w):
        gx, gy = group.exp(x), group.exp(y)
        product = group.compose(gx, gy)
        _, moved = jax.jvp(lambda s: group.compose(gx, group.exp(s * w)), (0.0,), (1.0,))
        return dict(
            exp=element(x),
            cay=matrix(group, group.cay(x)),
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
            cay_inv=group.cay_inv(group.cay(x)),
            ad=group.ad(x) @ y,
            Ad=group.Ad(gx) @ y,
            dexp=group.dexp(x, w),
            dexp_ad=trivialised(group.exp, x, w),
            dexp_inverted=group.dexp(x, group.dexpinv(x, w)),
            dexpinv_inverted=group.dexpinv(x, group.dexp(x, w)),
            dexp_left=group.Ad(gx) @ group.dexp(-x, w),
            dexpinv_left=group.dexpinv(x, group.Ad(gx) @ w) - group.dexpinv(-x, w),
            dcay=group.dcay(x, w),
            dcay_ad=trivialised(group.cay, x, w),
            dcay_inverted=group.dcay(x, group.dcayinv(x, w)),
            dcayinv_inverted=group.dcayinv(x, group.dcay(x, w)),
            dcay_left=group.Ad(group.cay(x)) @ group.dcay(-x, w),
            tangent=group.tangent_of(gx, moved),
            w=w,
        )

    def checked(x, y, w):
        out = jax.tree.map(np.asarray, evaluate(jnp.asarray(x), jnp.asarray(y), jnp.asarray(w)))
        assert all(np.all(np.isfinite(v)) for v in out.values())
        return out

    return checked


def rotation_angle(name, x):
    return max((np.linalg.norm(x[i : i + 3]) for i in ROTATIONS[name]), default=0.0)


def near(a, b, atol=1e-13):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=atol)


def check_axioms(name, x, y, w):
    """Everything that holds for rotations shorter than 2 pi; the logarithm for those up to pi."""
    out = evaluator(name)(x, y, w)
    near(out["vee"], x)
    near(out["exp"], scipy.linalg.expm(out["hat_x"]))
    identity = np.eye(len(out["hat_x"]))
    half = out["hat_x"] / 2
    near(out["cay"], np.linalg.solve(identity - half, identity + half))
    near(out["product"], out["factors"])
    near(out["inverse"], np.linalg.inv(out["exp"]))
    near(out["neutral"], out["exp"])
    near(out["cancelled"], identity)
    near(out["associated"], out["reassociated"])
    bracket = out["hat_x"] @ out["hat_y"] - out["hat_y"] @ out["hat_x"]
    near(evaluator(name)(out["ad"], y, w)["hat_x"], bracket, 1e-12)
    conjugate = out["exp"] @ out["hat_y"] @ np.linalg.inv(out["exp"])
    near(evaluator(name)(out["Ad"], y, w)["hat_x"], conjugate, 1e-12)
    near(out["tangent"], w)

    near(out["dexp"], out["dexp_ad"], 1e-12)
    near(out["dexp"], out["dexp_left"], 1e-12)
    near(out["dcay"], out["dcay_ad"], 1e-12)
    near(out["dcay"], out["dcay_left"], 1e-12)
    near(out["dcay_inverted"], w, 1e-12)
    near(out["dcayinv_inverted"], w, 1e-12)
    near(out["cay_inv"], x, 1e-11)
    if rotation_angle(name, x) < 6.0:  # dexpinv is singular at 2 pi
        near(out["dexp_inverted"], w, 1e-11)
        near(out["dexpinv_inverted"], w, 1e-11)
        near(out["dexpinv_left"], np.zeros_like(w), 1e-11)
    if rotation_angle(name, x) < np.pi:
        near(out["log"], x, 1e-12)


def vectors(n, size):
    return st.lists(st.floats(-size, size), min_size=n, max_size=n).map(np.array)


@pytest.mark.parametrize("name", GROUPS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_axioms(name, data):
    n = GROUPS[name].dim
    # Rotations up to 2 sqrt(3) rad: on both sides of pi, and of the Taylor switch at 2 rad.
    check_axioms(name, *(data.draw(vectors(n, 2.0)) for _ in range(3)))


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(
    "angle",
    [0.0, 1e-300, 1e-160, 1e-20, 1e-8, 1e-4, 2.0, np.pi - 1e-6, np.pi - 1e-12, np.pi, 5.9],
)
def test_axioms_at_singular_rotations(name, angle):
    random = np.random.default_rng(3)
    n = GROUPS[name].dim
    x, y, w = random.normal(size=(3, n))
    for i in ROTATIONS[name]:
        x[i : i + 3] *= angle / np.linalg.norm(x[i : i + 3])
    check_axioms(name, x, y, w)


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


def test_dtype_is_kept():
    x = jnp.full(6, 0.3, jnp.float32)
    group = PoseGroup(1)
    g = group.compose(group.exp(x), group.cay(x))
    assert isinstance(g, Pose)
    outputs = [g, group.log(g), group.dexp(x, x), group.dexpinv(x, x), group.Ad(g), group.ad(x)]
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("float32")}
