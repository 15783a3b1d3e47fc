"""Variational integrators on vector spaces and groups, with contact."""

from ._elastic_impact import ElasticImpact as ElasticImpact
from ._galerkin import Galerkin as Galerkin
from ._lie_variational import LieVariational as LieVariational
from ._quadrature import Quadrature as Quadrature, gauss as gauss, lobatto as lobatto
from ._symplecticity import (
    symplectic_form as symplectic_form,
    symplecticity_defect as symplecticity_defect,
)
from ._triple_jump import TripleJump as TripleJump
