"""The bench of tiers: it measures what it says, and says so."""

import json
from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.dev.tiers import LENGTHS, costs, main, measured_crossover

FOUND = {
    "computed": {length: 1.0 + 0.10 * length for length in LENGTHS},
    "memory": {length: 1.5 + 0.02 * length for length in LENGTHS},
    "disk": {length: 20.0 + 0.09 * length for length in LENGTHS},
    "server": {length: 2.0 + 0.11 * length for length in LENGTHS},
}


def test_prices_and_crossovers_from_lines() -> None:
    """What is paid at once is what it takes beyond a step's own time."""
    found = costs(FOUND, bytes_per_token=100)
    assert found["memory"].seconds_at_once == pytest.approx(0.5)
    assert found["memory"].seconds_per_byte == pytest.approx(0.0002)
    crossings = {name: cost.crossover_tokens(100) for name, cost in found.items()}
    assert crossings == {"memory": 7, "disk": 1901, "server": None}
    measured = {name: measured_crossover(FOUND, name) for name in found}
    assert measured == {"memory": 16, "disk": None, "server": None}


def test_a_machine_that_is_too_busy_is_told() -> None:
    """A line that falls is no price."""
    falling = FOUND | {"computed": {length: 1.0 - 0.001 * length for length in LENGTHS}}
    with pytest.raises(ConfigError, match="longer prompts took no longer: this machine is too busy to be measured"):
        costs(falling, bytes_per_token=100)


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a server: three rows, and every hit as long as it should be, or it would raise."""
    assert main(["--repeats", "5", "--json", str(tmp_path / "tiers.json")]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["computed", "memory", "disk"]
    record = json.loads((tmp_path / "tiers.json").read_text())
    assert list(record["milliseconds"]["disk"]) == [str(length) for length in LENGTHS]
    assert main(["--repeats", "0"]) == 2
