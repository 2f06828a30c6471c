"""Running a sweep: the runner, the worker process, the stages of a pair."""
