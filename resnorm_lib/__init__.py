"""The thin library behind the book: what two chapters need, and nothing else.

Modules are built in floors and import only from floors below their own:

1. ``norms``, ``stats``, ``parameters``, ``environment``
2. ``placements``, ``tasks``
3. ``figures`` (styles by placement), ``stack`` (what the models share), then ``models``
5. ``claims``
"""
