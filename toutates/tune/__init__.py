"""Finds a model's best configuration: ``constraints`` and ``scores`` say what best is, ``space`` which keys are tried,
``search`` which values next, ``turns`` whether the best beats what there was; these five are numbers only. ``server``
has the server that candidates are loaded into, ``measuring`` measures them with ``toutates.bench``, and ``tuning`` is
the way in."""
