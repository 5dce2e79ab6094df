"""The model of the inbox in `proof/`: TLC finds nothing in it, and finds every broken variant."""

import shutil
import time

import pytest

from proof.check import BROKEN, RIGHT, TINY, check_all, summary
from proof.results import write_result
from proof.tlc import MISSING_JAVA, TlcFailed, read_report

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason=MISSING_JAVA)
UNFENCED = next(model for model in BROKEN if model.bug == "unfenced settle")


@needs_java
def test_small_model_holds_and_a_settle_without_the_fence_is_found() -> None:
    checked = check_all([TINY, UNFENCED], 2)
    assert {one.model.bug: one.report.violated for one in checked} == {
        "none": None,
        "unfenced settle": "I6_StaleChangesNothing",
    }
    assert all(one.report.distinct > 100 for one in checked), "TLC looked at too few states to find anything"


@needs_java
@pytest.mark.torture
def test_every_model_holds_and_every_broken_variant_is_found() -> None:
    began = time.monotonic()
    checked = check_all([*RIGHT, *BROKEN], 2)
    print("\n".join(one.line() for one in checked))
    write_result("model", summary(checked, time.monotonic() - began))
    assert [one.line() for one in checked if not one.is_as_expected] == []


def test_report_without_a_result_is_an_error() -> None:
    with pytest.raises(TlcFailed, match="Parsing or semantic analysis failed"):
        read_report("TLC2 Version 2.15\nError: Parsing or semantic analysis failed.\n", 1.0)
