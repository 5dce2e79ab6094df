"""A new signature family is one Python module: the example in ADDING_PROVIDERS.md is complete."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.operations.doctor import examine
from oncehook.providers import families
from oncehook.providers.definition import read_provider
from oncehook.providers.family import Family
from oncehook.testing import DeliveryResponse, deliver, post, sign
from tests.providers.test_definition import ALLOWED
from tests.support import ROOT
from tests.support.documentation import as_own_provider

GUIDE = (ROOT / "ADDING_PROVIDERS.md").read_text("utf-8")
SECRET = "a secret of the test"


def block(name: str) -> str:
    """The file of this name in the guide."""
    (text,) = re.findall(rf"^```\w+ {re.escape(name)}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    return str(text)


# -- in the package -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests, with the module and the definition of the guide."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    providers = folder / "src" / "oncehook" / "providers"
    (providers / "families" / "globex.py").write_text(block("globex.py"), "utf-8")
    (providers / "catalog" / "globex.toml").write_text(block("globex.toml"), "utf-8")
    return folder


def run_python(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.torture
def test_family_of_the_guide_passes_the_tests_of_every_provider(tree: Path) -> None:
    assert "wrote globex.json" in run_python(tree, "-m", "tests.vectors.make", "globex")
    contract = ("test_every_provider.py", "test_vectors.py", "test_signatures.py", "test_definition.py")
    files = [f"tests/providers/{name}" for name in contract]
    output = run_python(tree, "-m", "pytest", "--noconftest", "-v", "-k", "globex or test_definition", *files)
    passed = set(re.findall(r"::(test_\w+).* PASSED", output))
    assert {
        "test_each_example_verifies_and_has_id_type_object_and_time",
        "test_retry_of_an_event_has_the_same_id_and_fingerprint",
        "test_any_of_several_secrets_verifies_during_a_rotation",
        "test_changed_body_is_rejected_if_the_signature_covers_the_body",
        "test_signature_truncated_at_any_length_is_rejected",
        "test_repeated_signature_header_is_malformed_even_if_both_values_are_valid",
        "test_authentic_body_in_another_format_is_malformed",
        "test_timestamp_at_either_end_of_the_tolerance_is_accepted",
        "test_blank_secret_is_a_configuration_error",
        "test_error_about_an_unusable_secret_names_the_setting_and_never_the_value",
        "test_stored_vector_verifies_and_has_the_same_facts",
        "test_secrets_are_compared_in_constant_time_only",
        "test_built_in_provider_describes_its_secret_and_has_an_example",
    } <= passed
    assert "failed" not in output


def test_commands_know_the_family_of_the_guide(tree: Path) -> None:
    printed = json.loads(run_python(tree, "-m", "oncehook", "providers", "globex", "--json"))
    assert (printed["title"], printed["signature"]) == ("Globex", "globex")


# -- in the user's code ---------------------------------------------------------------------------------------------


@pytest.fixture
def definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The definition of the guide as a table of oncehook.toml, with its family in a module outside the package."""
    (tmp_path / "globex_family.py").write_text(block("globex.py"), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    table = block("globex.toml").replace('algorithm = "globex"', 'algorithm = "globex_family:FAMILY"')
    yield as_own_provider(table, "globex")
    sys.modules.pop("globex_family", None)
    families.find.cache_clear()


@pytest.fixture
def inbox(tmp_path: Path, definition: str) -> Inbox:
    file = tmp_path / "oncehook.toml"
    database = f'database = "sqlite:///{tmp_path / "inbox.db"}"'
    file.write_text(f'{database}\n[sources.globex]\nsecrets = ["{SECRET}"]\n{definition}', "utf-8")
    return Inbox(config=file, worker=False)


@pytest.mark.anyio
async def test_custom_family_verifies_rejects_and_recognizes_duplicates(inbox: Inbox) -> None:
    async with inbox.lifespan():
        first = await deliver(inbox, "globex", type="order.paid")
        assert first.outcome == (202, "accepted")
        assert (await deliver(inbox, "globex", first.sent)).was_duplicate
        assert (await deliver(inbox, "globex", tampered=True)).outcome == (401, "bad_signature")
        assert (await deliver(inbox, "globex", now=1.0)).outcome == (401, "stale_timestamp")
        assert (await deliver(inbox, "globex", secret="another")).outcome == (401, "bad_signature")


@pytest.mark.anyio
async def test_custom_family_signs_for_tests(inbox: Inbox) -> None:
    body = b'{"id":"evt_1","type":"order.paid","order":{"id":"ord_1"}}'
    source = inbox._runtime.sources["globex"]
    async with inbox.lifespan():
        answer = await post(inbox, "globex", body, sign(source.provider, body, SECRET))
        assert answer.outcome == (202, "accepted")


async def causes_of(inbox: Inbox, answer: DeliveryResponse) -> list[str]:
    assert answer.status == 401
    runtime = inbox._runtime
    await runtime.reception.rejection_samples.stop()
    (case,) = await examine(runtime.store, runtime.sources)
    return [finding["cause"] for finding in case["findings"]]


@pytest.mark.anyio
async def test_doctor_explains_rejections_of_a_custom_family(inbox: Inbox) -> None:
    async with inbox.lifespan():
        assert await causes_of(inbox, await post(inbox, "globex", b"{}", {})) == ["no signature"]
        good = await deliver(inbox, "globex")
        assert good.sent is not None
        added = good.sent.body + b"\n"
        assert await causes_of(inbox, await post(inbox, "globex", added, good.sent.headers)) == ["newline"]
        assert await causes_of(inbox, await deliver(inbox, "globex", now=1.0)) == ["clock"]


@pytest.mark.anyio
async def test_signature_of_a_custom_family_is_not_stored(inbox: Inbox) -> None:
    async with inbox.lifespan():
        answer = await deliver(inbox, "globex")
        assert answer.receipt is not None
        payload = await inbox._runtime.store.receipts.payload(answer.receipt)
        assert payload is not None and "globex-seal" not in payload.headers


# -- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (
            "no_such_module:FAMILY",
            "signature family no_such_module:FAMILY cannot be imported: ModuleNotFoundError: No module",
        ),
        ("json:dumps", "json:dumps is not a signature family"),
        ("json:nothing", "json:nothing is not a signature family"),
        (".:FAMILY", "cannot be imported"),
        ("template", f"signatures[0].algorithm is 'template': the allowed values are {ALLOWED}"),
        ("paipal", "did you mean paypal?"),
    ],
)
def test_unknown_family_is_a_configuration_error(algorithm: str, problem: str) -> None:
    table = {"signatures": [{"algorithm": algorithm}], "event": {"id": "id", "type": "type"}}
    with pytest.raises(ConfigurationError) as caught:
        read_provider("acme", table, "providers.acme")
    assert str(caught.value).startswith("providers.acme: signatures[0].algorithm") and problem in str(caught.value)


@pytest.mark.parametrize(("algorithm", "option"), [("sns", "topics"), ("paypal", "webhook_id")])
def test_definition_lists_the_options_that_its_family_needs(algorithm: str, option: str) -> None:
    table: dict[str, Any] = {"signatures": [{"algorithm": algorithm}], "event": {"id": "id", "type": "type"}}
    with pytest.raises(ConfigurationError, match=f'add "{option}" to `options`'):
        read_provider("acme", table, "providers.acme")
    assert read_provider("acme", {**table, "options": [option]}, "providers.acme").options == [option]


# -- independence of families ---------------------------------------------------------------------------------------


def test_every_module_in_families_is_a_family() -> None:
    for name in families.built_in_names():
        assert isinstance(families.find(name), Family)


def test_no_other_module_names_a_family() -> None:
    named = {name for name in families.built_in_names() if families.find(name).named_by} - {"basic"}
    assert named >= {"braintree", "microsoft", "paypal", "plaid", "sns"}
    pattern = re.compile(rf"""(?:["'](?:{"|".join(named)})["']|families\.(?:{"|".join(named)})\b)""")
    folder = ROOT / "src" / "oncehook"
    files = [file for file in folder.rglob("*.py") if file.parent.name != "families"]
    texts = {file.relative_to(folder).as_posix(): file.read_text("utf-8") for file in files}
    formats = {"config/intake_settings.py", "config/options.py", "intake/formats.py"}  # `sns` is a message format there
    assert [name for name, text in texts.items() if name not in formats and pattern.search(text)] == []


def test_importing_the_definitions_imports_no_family() -> None:
    code = "import oncehook.providers.source, sys; print(*(name for name in sys.modules if '.families.' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
