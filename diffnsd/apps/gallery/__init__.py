"""A gallery: every ready model as a picture that links to a page with its motion, which needs no network."""

from ._gallery import write_gallery as write_gallery
