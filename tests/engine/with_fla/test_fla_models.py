"""Every model of flash-linear-attention that the engine knows, through the table of ``test_architectures``.

Its Triton kernels cannot run on a CPU; ``on_cpu`` puts its naive functions in their place. With them, on a GPU:
HYPIC_TEST_DEVICE=cuda TRITON_F32_DEFAULT=ieee pytest tests/engine/with_fla
"""

import pytest

pytest.importorskip("fla.models", reason="pip install flash-linear-attention")

import fla_cases
import test_architectures
from test_architectures import (  # noqa: F401
    test_an_entry_comes_back_from_disk_with_equal_bits,
    test_an_entry_is_decided_by_its_segment,
    test_every_length_equals_the_two_stream_oracle,
    test_every_policy_equals_the_two_stream_oracle,
    test_full_mode_equals_the_plain_model,
    test_greedy_decoding_equals_the_plain_model,
    test_leading_and_question_equal_the_plain_model,
    test_memory_is_live,
    test_policies_differ,
    test_requests_at_once_equal_requests_alone,
)

test_architectures.CASES.update(fla_cases.CASES)
pytestmark = [  # what its layers say when they are made
    pytest.mark.filterwarnings("ignore:According to Bo"),
    pytest.mark.filterwarnings("ignore:ShortConvolution is crucial"),
    pytest.mark.filterwarnings("ignore:ChunkDeltaRuleFunction does not support float32"),
]


@pytest.fixture(params=fla_cases.CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
