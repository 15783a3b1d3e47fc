"""Elastic bodies by finite elements: meshes, elements, materials, boundary conditions."""

from ._base import AbstractElements as AbstractElements
from ._beams import Beams as Beams
from ._bending import Hinges as Hinges, PlanarBeams as PlanarBeams
from ._boundary import (
    AbstractLoad as AbstractLoad,
    NodalForce as NodalForce,
    Prescribed as Prescribed,
    Pressure as Pressure,
)
from ._elastic import Elastic as Elastic
from ._inertia import (
    AbstractMass as AbstractMass,
    Consistent as Consistent,
    Lumped as Lumped,
    Rayleigh as Rayleigh,
)
from ._materials import (
    AbstractIsotropic as AbstractIsotropic,
    AbstractMaterial as AbstractMaterial,
    Corotational as Corotational,
    Hyperelastic as Hyperelastic,
    LinearElastic as LinearElastic,
    NeoHookean as NeoHookean,
    SaintVenantKirchhoff as SaintVenantKirchhoff,
    Shared as Shared,
)
from ._mesh import Mesh as Mesh, bar as bar, block as block, read_mesh as read_mesh, sheet as sheet
from ._solids import (
    AbstractSimplex as AbstractSimplex,
    AbstractThickness as AbstractThickness,
    Bars as Bars,
    Masses as Masses,
    Membranes as Membranes,
    PlaneStrain as PlaneStrain,
    PlaneStress as PlaneStress,
    Springs as Springs,
    Tetrahedra as Tetrahedra,
    Triangles as Triangles,
)
from ._static import Equilibrium as Equilibrium, equilibrium as equilibrium
