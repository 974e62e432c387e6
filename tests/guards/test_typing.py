from tests.guards.typed_program import Forecast, main


def test_the_program_that_the_type_checker_reads_also_runs() -> None:
    assert main() == Forecast(20)
