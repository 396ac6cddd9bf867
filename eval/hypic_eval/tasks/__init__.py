"""One file a task; each defines ``TASK``, and ``hypic_eval.task`` finds it."""
