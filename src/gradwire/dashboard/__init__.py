"""Web dashboard: a read-only page and a JSON API over the recorded events of one or several runs.

    files -> library (follows them) -> run_data (one run, bounded) -> views (responses) -> app (Starlette) -> browser

It never writes to a run, makes no external requests, and keeps a bounded amount of data per run.
"""
