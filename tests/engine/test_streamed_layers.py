"""An engine whose layers lie in host memory answers as one that holds them."""

from pathlib import Path

from tests.e2e.served import make_random_model
from tests.engine.test_weight_changes import Answers, answer, engine_of


def test_answers_are_those_of_resident_layers(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model, num_layers=5)
    with engine_of(model, tmp_path, "torch") as engine:
        expected = [answer(engine, number) for number in range(4)]
    with engine_of(model, tmp_path, "torch", "hardware.memory.cpu_offload=1GiB") as engine:
        assert [answer(engine, number) for number in range(4)] == expected
        together = Answers(engine)
        for number in range(4):
            together.ask(str(number), number)
        together.finish()
        assert [together.tokens[str(number)] for number in range(4)] == expected
        assert len(engine._loop._runner.executable._layers._copies) == 5
