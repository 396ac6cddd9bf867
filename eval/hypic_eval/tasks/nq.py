"""NQ-open: a passage with the answer, among nine of other questions."""

from dataclasses import replace

from hypic_eval.tasks import qa

TASK = replace(qa.TASK, name="nq", version=1, datasets=("nq_open",), n_documents=10)
