"""The thin library behind the book: what two chapters need, and nothing else.

Modules are built in floors and import only from floors below their own:

1. ``norms``, ``stats``, ``draws``, ``spectra``, ``parameters``, ``environment``; on ``stats`` stand ``ranking``, then
   ``resampling`` and ``power``
2. ``placements``; ``teacher``, then ``tasks``; ``recording``
3. ``figure_data``, then ``figures`` (styles by placement), then ``explorer``; ``stack`` (what the models share), then ``models``
4. ``jacobians``, ``probes``; ``ensemble``
5. ``claim_rows``, then ``claim_records``, then ``claims``; ``chapters``, ``results`` and ``engine``, then ``settings``, then
   ``costs`` and ``sweeps``, then ``rerun``
"""
