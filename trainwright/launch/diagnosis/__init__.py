"""Diagnose how a job ended, and why: pure functions over observed states.

Feed an ``ObservedJob`` with what a watch or a list returns. Call
:func:`~trainwright.launch.diagnosis.waiting.job_status` while the job runs and
:func:`~trainwright.launch.diagnosis.diagnosis.diagnose` for its end.
"""
