"""Operations of a sample, known without building the model."""

import pytest

from campaign.workloads.sample_flops import sample_flops
from campaign.workloads.trainer.models import training_flops

BERT = {"kind": "train", "model": "bert-nano"}


def test_operations_are_those_of_the_catalog_scaled_by_the_size_of_a_sample() -> None:
    assert sample_flops(BERT, {}) == 54_558_720
    for workload, options in ((BERT, {"seq_len": 32}), ({"kind": "train", "model": "resnet50w16"}, {"image_px": 64})):
        counted = training_flops(workload["model"], options, 1)
        assert counted is not None
        assert sample_flops(workload, options) == pytest.approx(counted / 3, rel=0.1)


@pytest.mark.parametrize("workload", [{}, {"kind": "command"}, {"kind": "train", "model": "transformers:bert"}])
def test_of_other_programs_nothing_is_known(workload: dict[str, str]) -> None:
    assert sample_flops(workload, {}) is None
