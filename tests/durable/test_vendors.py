"""Over the wire, the request after a replay is byte for byte the one it would have been."""

from pathlib import Path

import pytest

from tests.adapters.vendors import VENDORS, Vendor
from tests.durable.desk import Question, prompt_with, shout
from tests.servers.turn import Call, Raw, Turn
from weakincentives import PromptEvaluationError
from weakincentives.durable import DurableMainLoop
from weakincentives.prompt import ReadSections

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_the_request_after_a_replay_is_the_one_that_failed(vendor: Vendor, tmp_path: Path) -> None:
    script = (
        Turn(calls=(Call("read_section", {"section_key": "tools"}, id="call_1"),)),
        Turn(calls=(Call("shout", {"text": "hi"}, id="call_2"),)),
        Raw(status=400, body=b'{"error": {"type": "invalid_request_error", "message": "not now"}}'),
        Turn(text="HI it is."),
    )
    with vendor.server(script) as server:
        prepare = prompt_with(shout, disclosure=ReadSections())
        with DurableMainLoop("vendor", prepare, vendor.adapter(server), str(tmp_path / "durable.db")) as loop:
            with pytest.raises(PromptEvaluationError, match="not now"):
                loop.execute(Question("Say hi, loudly."), key="a")
            loop.retry("a")
            assert loop.result("a").text == "HI it is."
        assert len(server.requests) == 4
        assert server.requests[3].body == server.requests[2].body
