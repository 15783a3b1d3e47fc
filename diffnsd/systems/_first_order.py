"""First-order systems in `R^n`: circuits, relays, control loops, gene networks."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AbstractChecked, Numbers, checked_arguments
from .._jax import eval_now
from .._numerics import as_float, lu_solve, matvec
from .._types import Args, Config, Matrix, Scalar, State, Vector, at_time
from ..groups import AbstractGroup, Euclidean
from ._base import AbstractSystem, Kind, shaped


class LinearField(AbstractChecked):
    """`A(t) x + b(t) + F u`, with `u` the exogenous inputs of a simulation.

    **Arguments:** `a`: `(n, n)`, or a function of `t`; `b`: `(n,)`, a function of `t`, or `None` for
    zero; `inputs`: `F`, `(n, p)`, or `None` if there are no inputs.
    """

    a: Float[Array, "n n"] | Callable
    b: Float[Array, " n"] | Callable | None = None
    inputs: Float[Array, "n p"] | None = None

    def __call__(self, t: Scalar, x: Vector, args: Args) -> Vector:
        n = x.shape[0]
        total = matvec(shaped("A(t)", at_time(self.a, t), (n, n), x.dtype), x)
        if self.b is not None:
            total = total + shaped("b(t)", at_time(self.b, t), (n,), x.dtype)
        if self.inputs is not None:
            u = shaped("the input u, the args of simulate,", args, self.inputs.shape[1:], x.dtype)
            total = total + matvec(self.inputs, u)
        return total


class FirstOrderSystem(AbstractSystem):
    """`E(t) x' = f(t, x, args) + r`, with `r` the input of its interactions.

    Its states are `State(q=None, v=x)`, made by `state(x)`: the variable that may jump is `x`, and
    there are no positions. Stepped by `EulerMoreau`, `ThetaGamma` and `ZeroOrderHold`; without
    interactions also by `RKMK`, which is a Runge-Kutta method here.

    **Arguments:**

    - `field`: `f(t, x, args) -> (n,)`; `args` are the exogenous inputs passed to `simulate`.
    - `E`: matrix `(n, n)`, or a function of `t`; `None` is the identity. It may be singular where
      `E − h theta ∂f/∂x` is not, as with the algebraic equations of a circuit.
    - `n`: dimension, needed unless `E` is an array.
    - `storage`: stored energy `storage(x) -> ()` [J]; `None`: the energy is not known, and
      `Solution.energy` is `None`.

    Functions may be `equinox.Module`s: their leaves are parameters.

    **Raises:** `ValueError` if the dimension is missing, or `E` is not square or does not match it; in
    a simulation, before it is compiled, if a function returns another shape.

    Reference: V. Acary, O. Bonnefon, B. Brogliato, Nonsmooth modeling and simulation for switched
    circuits (2011), doi:10.1007/978-90-481-9681-4.
    """

    field: Annotated[Callable, "(t, x, args)"]
    E: Float[Array, "n n"] | Callable | None
    storage: Annotated[Callable, "(x)"] | None
    n: int = eqx.field(static=True)

    def __init__(self, field, E=None, *, n: int | None = None, storage: Callable | None = None):
        if E is not None and not callable(E):
            E = eval_now(as_float, E)
            n = E.shape[0] if n is None and E.ndim else n
            if E.shape != (n, n):
                raise ValueError(f"E must have shape (n, n) = ({n}, {n}), got {E.shape}.")
        if n is None:
            raise ValueError("the dimension is not known from E: give it, for example n=2.")
        self.field = field
        self.E = E
        self.storage = storage
        self.n = int(n)

    @staticmethod
    @checked_arguments
    def linear(
        A: Numbers | Annotated[Callable, "(t)"],
        b: Numbers | Annotated[Callable, "(t)"] | None = None,
        E=None,
        *,
        inputs: Numbers = None,
        storage=None,
    ) -> "FirstOrderSystem":
        """A linear system `E x' = A x + b + F u + r`.

        **Arguments:** `A`: `(n, n)`; `b`: `(n,)`; each an array or a function of `t`; `E` and
        `storage` as in `FirstOrderSystem`; `inputs`: `F`, `(n, p)`: then the `args` of `simulate`
        are `u`, shape `(p,)`, which a sampled controller supplies.

        **Raises:** `ValueError` if shapes do not match.
        """
        a = A if callable(A) else eval_now(as_float, A)
        shape = jax.eval_shape(a, 0.0).shape if callable(a) else a.shape
        n = shape[0] if shape else 0
        if shape != (n, n):
            raise ValueError(f"A must have shape (n, n), got {shape}.")
        if b is not None and not callable(b):
            b = shaped("b", b, (n,), float)
        if inputs is not None:
            inputs = eval_now(as_float, inputs)
            if inputs.ndim != 2 or inputs.shape[0] != n:
                raise ValueError(f"inputs must have shape ({n}, p), got {inputs.shape}.")
        return FirstOrderSystem(LinearField(a, b, inputs), E, n=n, storage=storage)

    def state(self, x) -> State:
        """The state `x`, shape `(n,)`."""
        return State(None, as_float(x))

    @property
    def group(self) -> AbstractGroup:
        """The trivial group: there are no positions."""
        return Euclidean(0)

    @property
    def velocities(self) -> int:
        return self.n

    @property
    def kind(self) -> Kind:
        return Kind.STATE_SPACE

    @property
    def has_energy(self) -> bool:
        return self.storage is not None

    def check_point(self, q: Config) -> str | None:
        return None if q is None else "a first-order system has no positions: State(q=None, v=x)"

    def defect(self, q: Config) -> Scalar:
        """Zero: `R^n` has no equations."""
        del q
        return jnp.zeros(())

    def mass(self, t: Scalar, q: Config) -> Matrix:
        """`E(t)`, shape `(n, n)`."""
        del q
        if self.E is None:
            return jnp.eye(self.n)
        return shaped("E(t)", at_time(self.E, t), (self.n, self.n), float)

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        """`f(t, x, args)`, shape `(n,)`."""
        x = state.v
        return shaped("field(t, x, args)", self.field(t, x, args), (self.n,), x.dtype)

    def applied(self, t: Scalar, state: State, args: Args) -> Vector:
        return self.force(t, state, args)

    def linear_step(
        self, t: Scalar, state: State, args: Args, h: Scalar
    ) -> tuple[Matrix, Vector] | None:
        """`E − h ∂f/∂x` and `f`: for a `SystemProduct` with a mechanism that gives its own."""

        def field(x):
            value = self.force(t, State(None, x), args)
            return value, value

        slope, now = jax.jacfwd(field, has_aux=True)(state.v)
        return self.mass(t, None).astype(now.dtype) - h * slope, now

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        """Zero: `x` is not the velocity of a mass."""
        del t
        return jnp.zeros_like(state.v)

    def kinetic_slope(self, t: Scalar, state: State) -> Vector:
        del t
        return jnp.zeros_like(state.v)

    @property
    def flow_group(self) -> AbstractGroup:
        return Euclidean(self.n)

    def flow_apply(self, g: Config, state: State) -> State:
        return State(None, state.v + g)

    def flow_rate(self, t: Scalar, state: State, args: Args) -> Vector:
        rate = self.force(t, state, args)
        if self.E is None:
            return rate
        return lu_solve(self.mass(t, None).astype(rate.dtype), rate)

    def momentum(self, t: Scalar, state: State) -> Vector:
        """`E x`, shape `(n,)`."""
        return matvec(self.mass(t, None).astype(state.v.dtype), state.v)

    def kinetic(self, t: Scalar, state: State) -> Scalar:
        """The stored energy, or zero if it is not known."""
        del t
        zero = jnp.zeros((), state.v.dtype)
        return (
            zero
            if self.storage is None
            else shaped("storage(x)", self.storage(state.v), (), zero.dtype)
        )

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Zero: all energy is in `x`."""
        del t, q
        return jnp.zeros(())

    def check(self, q: Config | None = None) -> str | None:
        del q
        return None
