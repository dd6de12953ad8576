"""What the numbers of training programs mean, and where they mislead, on saved logs."""

from __future__ import annotations

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, Scope, format_of, read_log
from tests.unit.workloads.parsed import LOGS, flagged, read, text_of


@pytest.mark.parametrize("name", PARSERS)
def test_every_parser_has_a_module_and_logs(name: str) -> None:
    assert format_of(name).reader().reading(Scope()).status == "incomplete"
    assert list((LOGS / name).glob("*.log"))


class TestTfCnnBenchmarks:
    def test_every_rank_prints_the_total_of_all_and_the_slowest_clock_counts(self) -> None:
        found = read("tf_cnn_benchmarks/horovod-4-ranks", ranks=4, batch=64, batch_global=256)
        assert (found.status, found.throughput_per_s, found.flags) == ("ok", 1198.42, ())

    def test_labelled_ranks_that_take_turns(self) -> None:
        rank = text_of("tf_cnn_benchmarks/one-gpu").splitlines()
        slower = [line.replace("238.68", "230.00") for line in rank]
        lines = [f"{number}: {line}" for pair in zip(rank, slower, strict=True) for number, line in enumerate(pair)]
        found = read_log("tf_cnn_benchmarks", Log.of("\n".join(lines) + "\n"), Scope(ranks=2))
        assert (found.status, found.throughput_per_s) == ("ok", 230.00)

    def test_totals_that_ran_into_each_other_are_read_and_torn_ones_are_not(self) -> None:
        glued = ("total images/sec: 1198.42total", "total images/sec: 1198.4total")
        found = read("tf_cnn_benchmarks/horovod-4-ranks", glued)
        assert (found.status, found.throughput_per_s) == ("incomplete", None)
        longer = ("total images/sec: 1198.42total", "total images/sec: 1198.421 images/sec total")
        assert read("tf_cnn_benchmarks/horovod-4-ranks", longer).status == "incomplete"

    def test_ranks_that_do_not_know_of_each_other_are_no_job_of_four(self) -> None:
        found = read("tf_cnn_benchmarks/horovod-4-ranks", ("256 global", "64 global"), ranks=4, batch_global=256)
        assert found.status == "invalid"
        assert "the global batch is 64, the run has 256" in found.problem

    def test_totals_far_apart_and_missing_ranks_are_told(self) -> None:
        found = read("tf_cnn_benchmarks/horovod-4-ranks", ("1199.31", "1399.31"), ranks=8)
        assert flagged(found, "1.17 times apart", "4 totals of 8 ranks")

    def test_a_loss_that_is_no_number_is_not_believed_and_the_rate_is_kept(self) -> None:
        found = read("tf_cnn_benchmarks/loss-nan")
        assert (found.status, found.throughput_per_s) == ("nan", 46.61)

    def test_forward_only_and_evaluation_are_told(self) -> None:
        forward = read("tf_cnn_benchmarks/loss-nan", ("\tnan", "\t0.000"))
        assert forward.status == "ok"
        assert flagged(forward, "forward-only")
        found = read("tf_cnn_benchmarks/eval-during-training")
        assert found.status == "incomplete"
        assert "Done with training" in found.problem

    def test_spaces_in_place_of_tabs_and_one_gpu(self) -> None:
        found = read("tf_cnn_benchmarks/one-gpu", ("\t", "   "), ranks=1, batch=128, batch_global=128)
        assert (found.status, found.throughput_per_s, found.metrics["loss_last"]) == ("ok", 238.68, 8.042)

    def test_of_two_benchmarks_in_a_log_the_last_counts(self) -> None:
        text = text_of("tf_cnn_benchmarks/one-gpu")
        log = Log.of(text.replace("238.68", "999.99") + text)
        assert read_log("tf_cnn_benchmarks", log, Scope()).throughput_per_s == 238.68


class TestHorovodSynthetic:
    def test_the_total_and_what_it_is(self) -> None:
        found = read("horovod_synthetic/pytorch-4-gpus", ranks=4, batch=32)
        assert (found.status, found.throughput_per_s) == ("ok", 432.8)
        assert found.metrics["throughput_per_device_per_s"] == 108.2
        assert found.metrics["iteration_rate_std_per_s"] == pytest.approx(0.51, abs=0.01)
        assert flagged(found, "not a measured sum")
        assert flagged(read("horovod_synthetic/cpu"), "known to 1.6 %")

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            (("GPU(s): 432.8", "GPU(s): 532.8"), "is not that of 4 times 108.2"),
            (("Iter #3: 108.7", "Iter #3: 148.7"), "the iterations' mean"),
            (("Number of GPUs: 4", "Number of GPUs: 1"), "the ranks are 1, the run has 4"),
            (("Batch size: 32", "Batch size: 64"), "the batch per device is 64, the run has 32"),
        ],
    )
    def test_numbers_that_contradict_each_other_are_not_believed(self, change: tuple[str, str], problem: str) -> None:
        found = read("horovod_synthetic/pytorch-4-gpus", change, ranks=4, batch=32)
        assert found.status == "invalid"
        assert problem in found.problem

    def test_a_rate_that_is_no_number(self) -> None:
        assert read("horovod_synthetic/pytorch-4-gpus", ("432.8", "nan")).status == "nan"


class TestNvidiaBert:
    def test_steps_that_ran_out_do_not_count(self) -> None:
        """A public log of 16 GPUs: 5000 steps were asked for, 2 epochs of 693 were done; the printed rate is 3.6 times too high."""
        found = read("nvidia_bert/full-epochs-max-steps-too-large", ranks=16, batch=8, batch_global=128)
        assert found.status == "ok"
        assert found.throughput_per_s == pytest.approx(88641 * 2 / 585.0896)
        assert found.metrics["printed_throughput_per_s"] == 1093.849
        assert flagged(found, "3.61 times")

    def test_without_progress_bars_the_features_say_how_many_batches_an_epoch_has(self) -> None:
        name = "nvidia_bert/full-epochs-max-steps-too-large"
        found = read(name, ("Iteration: 100%", "Iteration:  99%"), ranks=16, batch=8)
        assert found.throughput_per_s == pytest.approx(88641 * 2 / 585.0896)

    def test_one_step_more_than_asked_for_is_done(self) -> None:
        found = read("nvidia_bert/dllogger-max-steps", ranks=8, batch=4, batch_global=32)
        assert found.status == "ok"
        assert found.throughput_per_s == pytest.approx(32 * 101 / 40.4)
        assert flagged(found, "0.99 times")
        assert (found.metrics["exact_match_pct"], found.metrics["f1_pct"]) == (80.65, 88.12)

    def test_what_cannot_be_recomputed_is_not_believed(self) -> None:
        found = read("nvidia_bert/units", ranks=8, batch=4, batch_global=32)
        assert found.status == "invalid"
        assert found.throughput_per_s == pytest.approx(517.4157, abs=1e-3)

    def test_iterations_that_contradict_the_plan_make_it_unknown(self) -> None:
        found = read(
            "nvidia_bert/dllogger-max-steps", ('"step": [0, 101]', '"step": [0, 301]'), ranks=8, batch_global=32
        )
        assert found.status == "invalid"
        assert "iterations are printed to 301" in found.problem

    def test_a_fraction_of_an_epoch_is_not_run(self) -> None:
        changes = (("max_steps=5000.0", "max_steps=-1.0"), ("num_train_epochs=2.0", "num_train_epochs=2.5"))
        found = read("nvidia_bert/full-epochs-max-steps-too-large", *changes, ranks=16, batch=8)
        assert found.throughput_per_s == pytest.approx(88641 * 2 / 585.0896)

    def test_a_loss_that_is_no_number(self) -> None:
        name = "nvidia_bert/full-epochs-max-steps-too-large"
        assert read(name, ("final_loss : 6.2163", "final_loss : nan")).status == "nan"


class TestYolov5:
    def test_seconds_an_iteration_and_iterations_a_second(self) -> None:
        slow = read("yolov5/train-2-gpus", ranks=2, batch=32, batch_global=64)
        assert slow.status == "ok"
        assert slow.throughput_per_s == pytest.approx(64 * 298 / 511, rel=3e-3)
        assert (slow.metrics["parameters"], slow.metrics["epochs"]) == (46563709, 3)
        fast = read("yolov5/iterations-per-second")
        assert fast.throughput_per_s == pytest.approx(16 * 12.5)

    def test_the_batch_is_that_of_all_devices(self) -> None:
        found = read("yolov5/train-2-gpus", ranks=2, batch=64, batch_global=128)
        assert found.status == "invalid"
        assert "the batch of all devices is 64, the run has 128" in found.problem

    def test_the_first_epoch_warms_up(self) -> None:
        found = read("yolov5/train-2-gpus")
        assert found.metrics["epoch_time_s"] == pytest.approx(511, rel=3e-3)
        one = read("yolov5/iterations-per-second", (" 1/1 ", " 0/1 "))
        assert flagged(one, "one epoch only")

    def test_a_rate_that_is_not_the_epochs_mean_gives_way_to_the_clock(self) -> None:
        found = read("yolov5/iterations-per-second", ("12.50it/s", "19.50it/s"))
        assert found.throughput_per_s == pytest.approx(16 * 100 / 8.5)
        assert flagged(found, "from its elapsed time")

    def test_bars_longer_than_the_training_are_not_believed(self) -> None:
        assert read("yolov5/train-2-gpus", ("0.470 hours", "0.170 hours")).status == "invalid"

    def test_losses_that_are_no_number_and_trainings_without_end(self) -> None:
        assert read("yolov5/iterations-per-second", ("0.0661", "nan")).status == "nan"
        assert read("yolov5/train-2-gpus", ("epochs completed", "epochs")).status == "incomplete"

    def test_the_table_of_results(self) -> None:
        found = read("yolov5/results")
        assert (found.status, found.throughput_per_s) == ("ok", None)
        assert found.metrics == {"epochs": 2, "map50_pct": pytest.approx(59), "map50_95_pct": pytest.approx(37)}


class TestMlperf:
    def test_the_time_of_all_ranks_and_the_tracked_rate(self) -> None:
        found = read("mlperf/bert-2-ranks", ranks=2, batch_global=448)
        assert (found.status, found.metrics["time_to_train_s"]) == ("ok", 92.116)
        assert found.throughput_per_s == pytest.approx(14214.6596, abs=1e-3)

    def test_a_run_that_was_aborted_has_no_time_to_train(self) -> None:
        found = read("mlperf/bert-2-ranks", ('"status": "success"', '"status": "aborted"'))
        assert (found.status, "time_to_train_s" in found.metrics) == ("ok", False)
        assert flagged(found, "aborted")
        changes = (('"status": "success"', '"status": "aborted"'), ("tracked_stats", "other_stats"))
        assert read("mlperf/bert-2-ranks", *changes).status == "incomplete"

    def test_events_without_times_say_so(self) -> None:
        found = read("mlperf/bert-2-ranks", ('"time_ms"', '"no_time"'))
        assert found.status == "incomplete"
        assert "no time_ms" in found.problem

    def test_more_samples_than_the_tracked_rate_allows_are_not_believed(self) -> None:
        assert read("mlperf/bert-2-ranks", ("1272000", "9272000")).status == "invalid"
        assert read("mlperf/bert-2-ranks", batch_global=512).status == "invalid"

    def test_ranks_that_ran_into_each_others_lines(self) -> None:
        found = read("mlperf/bert-2-ranks", ("\n1: :::MLLOG", "1: :::MLLOG"))
        assert (found.status, found.metrics["time_to_train_s"]) == ("ok", 92.116)
