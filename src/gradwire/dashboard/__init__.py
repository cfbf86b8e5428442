"""The web dashboard: recorded events of one or several runs in, a read-only page and a JSON interface out.

    files -> library (follows them) -> book (one run, folded, bounded) -> views (answers) -> app (Starlette) -> browser

Nothing here writes to a run, asks anything of the outside, or keeps more than a bounded amount per run.
"""
